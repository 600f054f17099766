#include "options.h"

#include <cmath>
#include <cstdlib>
#include <map>

#include "common/command_line.h"
#include "common/error.h"
#include "tracker.h"

namespace edgepack {
namespace {

constexpr int kMaxThreads = 64;
constexpr int kMaxRuns = 1000000;
constexpr int kMaxFps = 1000;
constexpr int kMaxSide = 65535;
constexpr int kMaxQueue = 10000;
constexpr int kMaxKept = 1000;

double ToTolerance(const std::string& flag, const std::string& text) {
  char* next = nullptr;
  const double value = std::strtod(text.c_str(), &next);
  if (text.empty() || *next != '\0' || !std::isfinite(value) || value < 0) {
    throw UsageError(flag + ": '" + text + "' is not a number of 0 or more");
  }
  return value;
}

double ToLimit(const std::string& flag, const std::string& text) {
  constexpr double kLeastS = 0.001;
  constexpr double kMostS = 86400;
  char* next = nullptr;
  const double value = std::strtod(text.c_str(), &next);
  if (text.empty() || *next != '\0' || !(value >= kLeastS && value <= kMostS)) {
    throw UsageError(flag + ": '" + text + "' is not a number of seconds, 0.001 to 86400");
  }
  return value;
}

/// "CALL:TENSOR:FILE".
Dump ToDump(const std::string& text) {
  const std::size_t first = text.find(':');
  const std::size_t second = first == std::string::npos ? first : text.find(':', first + 1);
  if (second == std::string::npos || second + 1 == text.size()) {
    throw UsageError("--dump: '" + text + "' is not CALL:TENSOR:FILE",
                     "for example --dump 7:19:/tmp/layer.npy");
  }
  const auto number = [](const std::string& digits) {
    return static_cast<std::size_t>(WholeNumber("--dump", digits, 0, kMaxRuns));
  };
  return {number(text.substr(0, first)), number(text.substr(first + 1, second - first - 1)),
          text.substr(second + 1)};
}

/// "16M": bytes.
std::int64_t ToBytes(const std::string& flag, const std::string& text) {
  const std::string units = "KMG";
  const std::size_t unit = text.empty() ? std::string::npos : units.find(text.back());
  const bool scaled = unit != std::string::npos;
  const int number = WholeNumber(flag, scaled ? text.substr(0, text.size() - 1) : text, 1);
  return scaled ? std::int64_t{number} << (10 * (unit + 1)) : number;
}

/// "640x480".
ImageSize ToSize(const std::string& flag, const std::string& text) {
  const std::size_t cross = text.find('x');
  if (cross == std::string::npos) throw UsageError(flag + ": '" + text + "' is no WIDTHxHEIGHT");
  return {WholeNumber(flag, text.substr(0, cross), 1, kMaxSide),
          WholeNumber(flag, text.substr(cross + 1), 1, kMaxSide)};
}

template <typename T>
T ToWord(const std::string& flag, const std::string& text, const std::map<std::string, T>& words) {
  const auto found = words.find(text);
  if (found != words.end()) return found->second;
  std::string known;
  for (const auto& [word, value] : words) known += (known.empty() ? "" : ", ") + word;
  throw UsageError(flag + ": '" + text + "' is none of " + known);
}

void CheckCamera(const Options& options) {
  if (options.frames && *options.frames != FrameFormat::kMjpeg &&
      *options.frames != FrameFormat::kYuyv) {
    throw UsageError("--camera gives --frames mjpeg or yuyv");
  }
  if (options.from) throw UsageError("--from and --camera exclude each other");
  if (options.at_end == AtEnd::kWait) {
    throw UsageError("--at-end wait is for pipes", "--at-end retry opens a camera again");
  }
}

void CheckFrames(const Options& options) {
  if (options.camera) return CheckCamera(options);
  if (options.fps) throw UsageError("--fps needs --camera");
  const bool raw = options.frames && *options.frames != FrameFormat::kMjpeg;
  if (raw && !options.size) {
    throw UsageError("--frames of pixels need --size", "for example --size 640x480");
  }
  if (options.size && !options.frames && options.postprocess.empty()) {
    throw UsageError("--size needs --frames or --postprocess");
  }
  if (!options.frames && (options.from || options.newest || options.at_end != AtEnd::kExit)) {
    throw UsageError("--from, --newest and --at-end need --frames");
  }
  if (!options.from && options.at_end != AtEnd::kExit) {
    throw UsageError("--at-end: stdin cannot be opened again", "name a pipe or a device: --from");
  }
}

void CheckCombination(const Options& options) {
  if (options.version || options.help) return;
  const int sources =
      static_cast<int>(options.image.has_value()) + static_cast<int>(!options.inputs.empty()) +
      static_cast<int>(options.golden) + static_cast<int>(options.load_only) +
      static_cast<int>(options.watch.has_value()) + static_cast<int>(!options.postprocess.empty()) +
      static_cast<int>(options.images.has_value()) +
      static_cast<int>(options.frames || options.camera) +
      static_cast<int>(options.serve.has_value());
  if (sources != 1) {
    throw UsageError(
        sources == 0
            ? "no input"
            : "--image, --input, --golden, --watch, --images, --frames, --camera, --serve, "
              "--postprocess and --load-only exclude each other",
        "give one of --image FILE, --images WHERE, --frames FORMAT, --camera DEVICE, "
        "--input FILE.npy, --golden, --watch FOLDER or --serve ADDRESS");
  }
  if (options.load_only && (!options.outputs.empty() || !options.expected.empty() ||
                            !options.dumps.empty() || options.bench)) {
    throw UsageError("--load-only does not run the model",
                     "leave out --output, --expected, --dump and --bench");
  }
  if (options.golden && !options.expected.empty()) {
    throw UsageError("--expected cannot be used with --golden, which has its own");
  }
  if (options.profile && !options.bench) {
    throw UsageError("--profile needs --bench", "for example --bench 20 --profile");
  }
  if (!options.dumps.empty() && (options.bench || options.watch || options.preprocess_only)) {
    throw UsageError("--dump is for a single run",
                     "leave out --bench, --watch and --preprocess-only");
  }
  if (options.results && !options.watch) throw UsageError("--results needs --watch");
  const bool pictures = options.images || options.frames || options.camera;
  if (options.out && !pictures) throw UsageError("--out needs --images, --frames or --camera");
  if (options.track && !pictures) {
    throw UsageError("--track needs --images, --frames or --camera",
                     "photos of their own have nothing to do with each other");
  }
  if (options.preview && !pictures && !options.watch) {
    throw UsageError("--preview needs --images, --frames, --camera or --watch");
  }
  if (options.metrics && !pictures && !options.watch && !options.serve) {
    throw UsageError("--metrics needs --serve, --images, --frames, --camera or --watch");
  }
  if (options.sinks && !pictures && !options.watch) {
    throw UsageError("--sinks needs --images, --frames, --camera or --watch");
  }
  if ((options.token_file || !options.hosts.empty()) && !options.serve && !options.preview) {
    throw UsageError("--host and --token-file need --serve or --preview");
  }
  if (options.queue && !options.serve) throw UsageError("--queue needs --serve");
  CheckFrames(options);
  if ((options.watch || options.images || options.frames || options.camera || options.serve) &&
      (!options.outputs.empty() || !options.expected.empty() || options.bench ||
       !options.dumps.empty())) {
    throw UsageError(
        "--watch, --images, --frames and --camera write lines of results, --serve answers",
        "leave out --output, --expected, --dump and --bench");
  }
  const bool image_only = options.save_resized || options.save_tensor || options.preprocess_only;
  if (image_only && !options.image) {
    throw UsageError("--save-resized, --save-tensor and --preprocess-only need --image");
  }
  if (!options.more_images.empty() && (options.preprocess_only || options.save_resized ||
                                       options.save_tensor || options.draw || options.mask)) {
    throw UsageError(
        "--preprocess-only, --save-resized, --save-tensor, --draw and --mask are for one --image");
  }
  if ((options.draw || options.mask || options.save_crops) &&
      (!options.image || options.preprocess_only)) {
    throw UsageError("--draw, --mask and --save-crops need --image, and the model's results");
  }
  if (!options.postprocess.empty() &&
      (!options.outputs.empty() || !options.expected.empty() || options.bench)) {
    throw UsageError("--postprocess does not run the model",
                     "leave out --output, --expected and --bench");
  }
  if (options.preprocess_only &&
      (!options.outputs.empty() || !options.expected.empty() || options.bench || options.top)) {
    throw UsageError("--preprocess-only does not run the model",
                     "leave out --output, --expected, --bench and --top");
  }
}

}  // namespace

Options ParseOptions(const std::vector<std::string>& words) {
  Options options;
  SinkOptions sink;
  bool rotates = false;
  OptionTable table;
  table.hint = "edgepack-run --help lists them";
  table.switches = {
      {"--golden", [&] { options.golden = true; }},
      {"--load-only", [&] { options.load_only = true; }},
      {"--json", [&] { options.json = true; }},
      {"--preprocess-only", [&] { options.preprocess_only = true; }},
      {"--newest", [&] { options.newest = true; }},
      {"--profile", [&] { options.profile = true; }},
      {"--version", [&] { options.version = true; }},
      {"--help", [&] { options.help = true; }},
  };
  using Value = const std::string&;
  table.values = {
      {"--bundle", [&](Value text) { options.bundle = text; }},
      {"--image",
       [&](Value text) {
         if (options.image) {
           options.more_images.emplace_back(text);
         } else {
           options.image = text;
         }
       }},
      {"--watch", [&](Value text) { options.watch = text; }},
      {"--images", [&](Value text) { options.images = text; }},
      {"--frames",
       [&](Value text) {
         options.frames = ToWord<FrameFormat>("--frames", text,
                                              {{"mjpeg", FrameFormat::kMjpeg},
                                               {"rgb24", FrameFormat::kRgb24},
                                               {"bgr24", FrameFormat::kBgr24},
                                               {"gray", FrameFormat::kGray},
                                               {"yuyv", FrameFormat::kYuyv}});
       }},
      {"--camera", [&](Value text) { options.camera = text; }},
      {"--track",
       [&](Value text) { options.track = WholeNumber("--track", text, 0, Tracker::kMostMissed); }},
      {"--fps", [&](Value text) { options.fps = WholeNumber("--fps", text, 1, kMaxFps); }},
      {"--from", [&](Value text) { options.from = text; }},
      {"--at-end",
       [&](Value text) {
         options.at_end = ToWord<AtEnd>(
             "--at-end", text,
             {{"exit", AtEnd::kExit}, {"wait", AtEnd::kWait}, {"retry", AtEnd::kRetry}});
       }},
      {"--serve", [&](Value text) { options.serve = HttpAddress::Parse("--serve", text); }},
      {"--queue", [&](Value text) { options.queue = WholeNumber("--queue", text, 1, kMaxQueue); }},
      {"--preview", [&](Value text) { options.preview = HttpAddress::Parse("--preview", text); }},
      {"--metrics", [&](Value text) { options.metrics = text; }},
      {"--host", [&](Value text) { options.hosts.push_back(ToHostName("--host", text)); }},
      {"--token-file", [&](Value text) { options.token_file = text; }},
      // What they touch is for those who start services.
      {"--sinks", [&](Value) { options.sinks = true; }},
      {"--out",
       [&](Value text) {
         sink.Parse(text);
         options.out = sink;
       }},
      {"--rotate",
       [&](Value text) {
         sink.rotate_bytes = ToBytes("--rotate", text);
         rotates = true;
       }},
      {"--keep",
       [&](Value text) {
         sink.keep = WholeNumber("--keep", text, 0, kMaxKept);
         rotates = true;
       }},
      {"--results", [&](Value text) { options.results = text; }},
      {"--input", [&](Value text) { options.inputs.emplace_back(text); }},
      {"--output", [&](Value text) { options.outputs.emplace_back(text); }},
      {"--expected", [&](Value text) { options.expected.emplace_back(text); }},
      {"--dump", [&](Value text) { options.dumps.push_back(ToDump(text)); }},
      {"--tolerance", [&](Value text) { options.tolerance = ToTolerance("--tolerance", text); }},
      {"--top", [&](Value text) { options.top = WholeNumber("--top", text, 0, kMaxRuns); }},
      {"--bench", [&](Value text) { options.bench = WholeNumber("--bench", text, 1, kMaxRuns); }},
      {"--warmup",
       [&](Value text) { options.warmup = WholeNumber("--warmup", text, 0, kMaxRuns); }},
      {"--threads",
       [&](Value text) { options.threads = WholeNumber("--threads", text, 1, kMaxThreads); }},
      {"--gpu-limit", [&](Value text) { options.gpu_limit_s = ToLimit("--gpu-limit", text); }},
      {"--affinity", [&](Value text) { options.affinity = text; }},
      {"--postprocess", [&](Value text) { options.postprocess.emplace_back(text); }},
      {"--size", [&](Value text) { options.size = ToSize("--size", text); }},
      {"--mask", [&](Value text) { options.mask = text; }},
      {"--draw", [&](Value text) { options.draw = text; }},
      {"--save-resized", [&](Value text) { options.save_resized = text; }},
      {"--save-tensor", [&](Value text) { options.save_tensor = text; }},
      {"--save-crops", [&](Value text) { options.save_crops = text; }},
  };
  ReadCommandLine(words, table);
  if (rotates && sink.file.empty()) throw UsageError("--rotate and --keep need --out FILE");
  if (options.out) options.out = sink;
  CheckCombination(options);
  return options;
}

HttpAccess AccessOf(const Options& options) {
  HttpAccess access;
  access.hosts = options.hosts;
  if (options.token_file) access.token = ReadToken("--token-file", *options.token_file);
  return access;
}

const char* HelpText() {
  return R"(Run the compiled model of an edgepack bundle.

usage: edgepack-run (--image FILE | --images WHERE | --frames FORMAT | --camera DEVICE |
                     --watch FOLDER | --serve ADDRESS | --input FILE ... | --golden |
                     --load-only) [options]

  --bundle DIR         the bundle; default: the folder above the program's own bin/
  --image FILE         a JPEG or PNG photo, preprocessed by the bundle's preprocess.json; repeat for
                       a model with a batch: if there are fewer, the last photo fills the batch
  --input FILE         a tensor, .npy or raw bytes; repeat for a model with several inputs
  --golden             run the bundle's smoke test: its input, compared with its expected output
  --load-only          load all files of the bundle as for a run, but do not run the model
  --watch FOLDER       run each new photo in FOLDER, until SIGTERM; print a line of JSON for each
  --results FILE       with --watch: append the lines to FILE instead of printing them, and run
                       missed photos after a restart; above 16 MB, FILE becomes FILE.1.
                       FILE.begun counts attempts: a photo that crashed the program twice gets
                       an error
  --images WHERE       photos: a folder, a pattern such as '/photos/*.jpg', or - for paths on stdin,
                       one per line. Prints a line of JSON for each photo, and counts at the end
  --frames FORMAT      frames on stdin: mjpeg (as from rpicam-vid --codec mjpeg or ffmpeg
                       -f mjpeg), rgb24, bgr24, gray, yuyv. Prints lines like --images. Broken
                       frames are counted and skipped
  --camera DEVICE      frames of a V4L2 device, such as /dev/video0: always the newest frame. The
                       format is mjpeg, else yuyv, or that of --frames. --at-end says what to do
                       if the camera is unplugged
  --fps N              frames per second to request from the camera
  --track N            give each box the number of a track: an object keeps its number while it
                       moves, unless it is missed in more than N frames in a row
  --size WIDTHxHEIGHT  size of the frames; mjpeg frames of another size count as broken
  --from FILE          read the frames from this pipe, device or file instead
  --at-end WHAT        what to do when --from ends: exit; wait: for the pipe's next writer; retry:
                       open it again, after 0.1 s, then twice as long, at most 30 s
  --out FILE           with --images, --frames and --camera: append the lines to FILE instead of
                       printing them, or send them to the socket unix:PATH; lines without a
                       listener are counted as lost
  --rotate SIZE        above this size (16M) FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on
  --keep N             number of these older files to keep (1)
  --preview ADDRESS    serve a page with the pictures and results, as MJPEG over HTTP, and /metrics;
                       ADDRESS is PORT (this machine only), HOST:PORT or unix:PATH
  --metrics FILE       with --serve, --watch, --images, --frames and --camera: write the metrics to
                       FILE every 10 s, for `edgepack-device metrics` and the node exporter
  --sinks WHAT         also send the lines to the bundle's sinks and actions. WHAT is a resource
                       that these use, for the service's permissions (connect=HOST, write=FOLDER,
                       ...), or none; repeat for more
  --newest             always take the newest frame, and drop older ones
  --serve ADDRESS      answer HTTP requests until SIGTERM, by version 2 of the open inference
                       protocol (as KServe and Triton); ADDRESS is PORT (this machine only),
                       HOST:PORT or unix:PATH. Photos may be posted, too; /metrics is for
                       Prometheus
  --queue N            requests that may wait for the model (8); others get status 429
  --host NAME          with --serve or --preview: accept requests to this host name, besides
                       localhost, this machine's name and IP addresses; repeat for more
  --token-file FILE    with --serve or --preview: each request must have the token in FILE, as
                       "Authorization: Bearer TOKEN" or as a password
  --output FILE        write an output as .npy; repeat for several
  --expected FILE      compare an output with this .npy; repeat for several
  --dump CALL:TENSOR:FILE
                       write tensor number TENSOR of graph.json as .npy after call number CALL, to
                       see a layer's result; repeat for several
  --tolerance T        largest error that passes, relative to the largest reference value (1e-4)
  --top N              print the N best classes (5, if the output is one vector of scores)
  --bench N            time N runs
  --warmup N           runs before them that are not timed (3)
  --profile            with --bench: after each timed run, time another run layer by layer
  --threads N          number of threads; default: one per core of the fastest kind
  --affinity WHERE     cores to use: big, little, all, none, or CPU numbers such as 0,2-3
  --gpu-limit S        seconds that a GPU may take for a run, and its driver for a call (60, or a
                       third of a service's watchdog_s if that is less)
  --json               print one JSON object instead of text
  --save-resized FILE  write the resized and cropped photo as .npy (HWC)
  --save-tensor FILE   write the model's input as .npy
  --save-crops DIR     with --image: write the input of each stage to STAGE.BOX.npy
  --preprocess-only    do not run the model
  --draw FILE          with --image: write the photo with boxes and labels, points, masks or
                       classes, as .png or .jpg
  --mask FILE          with --image: write the class of each pixel as a grey .png, 255 for none
  --postprocess FILE   do not run the model: FILE is one of its outputs, .npy; repeat for each
                       output that the bundle's postprocess.json takes. --size is the size of
                       the photo
  --version, --help

exit codes: 0 ok, 1 a bug, 2 usage or image, 3 tensor does not fit the model, 5 damaged bundle,
            7 the GPU or its driver, 8 outputs differ, 10 an input points outside of a tensor,
            13 the GPU hangs or failed three times
)";
}

}  // namespace edgepack
