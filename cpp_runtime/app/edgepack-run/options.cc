#include "options.h"

#include <cmath>
#include <cstdlib>

#include "common/command_line.h"
#include "common/error.h"

namespace edgepack {
namespace {

constexpr int kMaxThreads = 64;
constexpr int kMaxRuns = 1000000;

double ToTolerance(const std::string& flag, const std::string& text) {
  char* next = nullptr;
  const double value = std::strtod(text.c_str(), &next);
  if (text.empty() || *next != '\0' || !std::isfinite(value) || value < 0) {
    throw UsageError(flag + ": '" + text + "' is not a number of 0 or more");
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

void CheckCombination(const Options& options) {
  if (options.version || options.help) return;
  const int sources = static_cast<int>(options.image.has_value()) +
                      static_cast<int>(!options.inputs.empty()) + static_cast<int>(options.golden) +
                      static_cast<int>(options.watch.has_value());
  if (sources != 1) {
    throw UsageError(
        sources == 0 ? "no input" : "--image, --input, --golden and --watch exclude each other",
        "give one of --image FILE, --input FILE.npy, --golden or --watch FOLDER");
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
  if (options.watch && (!options.outputs.empty() || !options.expected.empty() || options.bench)) {
    throw UsageError("--watch writes lines of results",
                     "leave out --output, --expected and --bench");
  }
  const bool image_only = options.save_resized || options.save_tensor || options.preprocess_only;
  if (image_only && !options.image) {
    throw UsageError("--save-resized, --save-tensor and --preprocess-only need --image");
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
  OptionTable table;
  table.hint = "edgepack-run --help lists them";
  table.switches = {
      {"--golden", [&] { options.golden = true; }},
      {"--json", [&] { options.json = true; }},
      {"--preprocess-only", [&] { options.preprocess_only = true; }},
      {"--profile", [&] { options.profile = true; }},
      {"--version", [&] { options.version = true; }},
      {"--help", [&] { options.help = true; }},
  };
  using Value = const std::string&;
  table.values = {
      {"--bundle", [&](Value text) { options.bundle = text; }},
      {"--image", [&](Value text) { options.image = text; }},
      {"--watch", [&](Value text) { options.watch = text; }},
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
      {"--affinity", [&](Value text) { options.affinity = text; }},
      {"--save-resized", [&](Value text) { options.save_resized = text; }},
      {"--save-tensor", [&](Value text) { options.save_tensor = text; }},
  };
  ReadCommandLine(words, table);
  CheckCombination(options);
  return options;
}

const char* HelpText() {
  return R"(Runs a compiled model of an edgepack bundle.

usage: edgepack-run (--image FILE | --input FILE ... | --golden | --watch FOLDER) [options]

  --bundle DIR         the bundle; default: the folder above the program's own bin/
  --image FILE         a JPEG or PNG photo, preprocessed by the bundle's preprocess.json
  --input FILE         a tensor, .npy or raw bytes; repeat for a model with several inputs
  --golden             the bundle's golden input, compared with its golden output
  --watch FOLDER       each photo that comes into it, until SIGTERM: a line of JSON for each
  --results FILE       with --watch: append the lines to this file instead of printing them, and
                       catch up after a restart; above 16 MB it becomes FILE.1. FILE.begun
                       counts starts: a photo that ended the program twice gets an error
  --output FILE        write an output as .npy; repeat for several
  --expected FILE      compare an output with this .npy; repeat for several
  --dump CALL:TENSOR:FILE
                       write a tensor of graph.json as .npy when a call is done, both by number:
                       the result of a layer; repeat for several
  --tolerance T        largest error over largest reference value that is ok (1e-4)
  --top N              print the N best classes (5, if the output is one vector of scores)
  --bench N            time N runs, after
  --warmup N           this many that are not timed (3)
  --profile            with --bench: after each timed run another one, timed layer by layer
  --threads N          default: one per core of the fastest kind
  --affinity WHERE     big, little, all, none, or CPU numbers such as 0,2-3
  --json               one JSON object instead of words
  --save-resized FILE  write the resized and cropped photo as .npy (uint8 HWC)
  --save-tensor FILE   write the model's input as .npy
  --preprocess-only    do not run the model
  --version, --help

exit codes: 0 ok, 1 a bug, 2 usage or image, 3 tensor does not fit the model, 5 damaged bundle,
            8 outputs differ
)";
}

}  // namespace edgepack
