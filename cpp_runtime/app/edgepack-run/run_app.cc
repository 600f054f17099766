#include "run_app.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>
#include <sys/resource.h>
#include <system_error>

#include <edgepack/cpu_topology.h>
#include <edgepack/errors.h>
#include <edgepack/model.h>
#include <edgepack/npy.h>
#include <edgepack/postprocessor.h>
#include <edgepack/preprocessor.h>
#include <edgepack/session.h>
#include <edgepack/thread_pool.h>
#include <edgepack/workspace.h>
#include <opencv2/core.hpp>

#include "bundle.h"
#include "driver_watch.h"
#include "gpu.h"
#include "live.h"
#include "memory_map.h"
#include "metrics.h"
#include "metrics_file.h"
#include "notify.h"
#include "options.h"
#include "platform/opencv/decode.h"
#include "platform/opencv/draw.h"
#include "platform/opencv/preprocess_buffers.h"
#include "platform/opencv/to_input.h"
#include "preview.h"
#include "profile.h"
#include "report.h"
#include "result_sinks.h"
#include "serve.h"
#include "sight.h"
#include "source_state.h"
#include "stages.h"
#include "statistics.h"
#include "tracker.h"
#include "trial.h"
#include "watch.h"

namespace edgepack {
namespace {

/// Requests that may wait, unless told otherwise.
constexpr int kQueue = 8;

class Stopwatch {
 public:
  [[nodiscard]] double ms() const {
    return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// The most memory this process ever had in RAM.
std::size_t PeakRssBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; status.ignore(4096, '\n')) {
    std::size_t kib = 0;
    if (key == "VmHWM:" && status >> kib) return kib * 1024;
  }
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

/// A .npy file the user named.
NpyFile OpenNpy(const std::filesystem::path& path) {
  try {
    return NpyFile::Open(path);
  } catch (const std::system_error& error) {
    throw UsageError("cannot read " + path.string() + ": " + error.code().message());
  } catch (const std::runtime_error& error) {
    throw UsageError(path.string() + " " + error.what());
  }
}

/// A .npy file of the bundle.
NpyFile OpenGolden(const std::filesystem::path& path) {
  try {
    return NpyFile::Open(path);
  } catch (const std::system_error& error) {
    throw BundleError("cannot read " + path.string() + ": " + error.code().message());
  } catch (const std::runtime_error& error) {
    throw BundleError(path.string() + " " + error.what());
  }
}

/// "input.npy: " before the message of a tensor that does not fit.
void SetInputFrom(const std::filesystem::path& path, const NpyFile& file, std::size_t index,
                  Session* session) {
  try {
    session->SetInput(index, file.info(), file.data());
  } catch (const ModelInputError& error) {
    throw ModelInputError(path.string() + ": " + error.message, error.hint);
  }
}

void SetRawInput(const std::filesystem::path& path, std::size_t index, Session* session) {
  try {
    const MemoryMap file = MemoryMap::File(path);
    const TensorInfo& info = *session->inputs().at(index).info;
    if (file.size() != info.bytes) {
      throw ModelInputError(path.string() + ": input '" + info.name + "' is " +
                            std::string(Name(info.dtype)) + " " + ToString(info.shape) + ", " +
                            std::to_string(info.bytes) + " bytes; the file has " +
                            std::to_string(file.size()));
    }
    session->SetInput(index, info, file.data());
  } catch (const std::system_error& error) {
    throw UsageError("cannot read " + path.string() + ": " + error.code().message());
  }
}

/// Inputs that are no states, by position.
std::vector<std::size_t> GivenInputs(const Session& session) {
  return InputsBesides(session.model().states(), session.inputs().size());
}

/// All inputs, or all that are no states.
void SetInputs(const std::vector<std::filesystem::path>& paths, Session* session) {
  std::vector<std::size_t> inputs = GivenInputs(*session);
  if (paths.size() != inputs.size()) {
    const std::size_t needed = inputs.size();
    inputs.resize(session->inputs().size());
    std::iota(inputs.begin(), inputs.end(), std::size_t{0});
    if (paths.size() != inputs.size()) {
      std::string names;
      for (const TensorView& input : session->inputs()) {
        names += (names.empty() ? "" : ", ") + input.info->name;
      }
      const std::size_t states = inputs.size() - needed;
      throw ModelInputError(
          "the model has " + std::to_string(inputs.size()) + " inputs (" + names + "), " +
              std::to_string(paths.size()) + " given",
          std::string("give one --input for each, in this order") +
              (states > 0 ? "; all " + std::to_string(states) + " states may be left out" : ""));
    }
  }
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (paths[i].extension() == ".npy") {
      SetInputFrom(paths[i], OpenNpy(paths[i]), inputs[i], session);
    } else {
      SetRawInput(paths[i], inputs[i], session);
    }
  }
}

void SetGoldenInputs(const BundleFolder& bundle, Session* session) {
  for (std::size_t i = 0; i < session->inputs().size(); ++i) {
    const std::filesystem::path path = bundle.golden("input", i);
    const NpyFile file = OpenGolden(path);
    try {
      session->SetInput(i, file.info(), file.data());
    } catch (const ModelInputError& error) {
      throw BundleError(path.string() + ": " + error.what());
    }
  }
}

/// Where the image's tensor goes: the model's input itself, without a copy.
TensorView ImageInput(const Session& session, const std::string& name) {
  for (const TensorView& input : session.inputs()) {
    if (input.info->name == name) return input;
  }
  throw BundleError("preprocess.json: the model has no input '" + name + "'");
}

void SaveResized(const std::filesystem::path& path, const cv::Mat& resized) {
  const cv::Mat packed = resized.isContinuous() ? resized : resized.clone();
  const DType dtype = packed.depth() == CV_32F ? DType::kFloat32 : DType::kUInt8;
  WriteNpy(path, dtype, {packed.rows, packed.cols, packed.channels()}, packed.data);
}

/// Where a photo lies in the tensor that was made of it; the same of those after it in a batch of
/// so many.
struct Photo {
  Geometry geometry;
  std::size_t batch = 1;
  std::vector<Geometry> more = {};
  cv::Mat image = {};  ///< all its pixels, if they are asked for
  Light light = {};
};

std::size_t BatchOf(const TensorInfo& info) {
  return info.shape.empty() ? 1 : static_cast<std::size_t>(info.shape.front());
}

/// The photos after the first in a batch: of too few the last is repeated.
void FillBatch(const Options& options, const Preprocessor& preprocessor, const TensorInfo& one,
               void* batch, Photo* photo) {
  if (options.more_images.size() >= photo->batch) {
    throw UsageError(std::to_string(options.more_images.size() + 1) +
                     " times --image: the model takes " + std::to_string(photo->batch));
  }
  auto* to = static_cast<char*>(batch);
  for (std::size_t i = 1; i < photo->batch; ++i) {
    char* const last = to;
    to += one.bytes;
    if (i > options.more_images.size()) {
      std::copy_n(last, one.bytes, to);
      continue;
    }
    const std::filesystem::path& path = options.more_images[i - 1];
    const Decoded picture = preprocessor.Decode(path);
    const cv::Mat resized = preprocessor.Resized(picture);
    const TensorInfo info = preprocessor.InfoOf(resized);
    if (info.shape != one.shape) {
      throw ModelInputError(path.string() + ": the preprocessing makes " + ToString(info.shape) +
                                ", of the photo before " + ToString(one.shape),
                            "set resize and crop in the [preprocess] table");
    }
    preprocessor.ToTensor(resized, to);
    photo->more.push_back(preprocessor.GeometryOf(picture.size.height, picture.size.width));
  }
}

/// Photo to tensor: into the model, or (without one) into memory of its own. With `shown` the
/// photo's pixels stay.
Photo Preprocess(const Options& options, const BundleFolder& bundle, Session* session,
                 Report* report, bool shown = false) {
  const Preprocessor preprocessor(LoadPreprocessSpec(bundle.preprocess()));
  const Stopwatch decode;
  const Decoded picture = preprocessor.Decode(*options.image);
  report->decode_ms = decode.ms();
  const Stopwatch preprocess;
  const cv::Mat resized = preprocessor.Resized(picture);
  TensorInfo info = preprocessor.InfoOf(resized);
  std::vector<char> own;
  TensorView target;
  if (session != nullptr) {
    target = ImageInput(*session, info.name);
    if (GivenInputs(*session).size() != 1) {
      throw ModelInputError("the model has " + std::to_string(session->inputs().size()) +
                                " inputs, an image is only one of them",
                            "use --input");
    }
    Shape batch = info.shape;
    batch.front() = static_cast<std::int64_t>(BatchOf(*target.info));
    if (target.info->dtype != info.dtype || target.info->shape != batch) {
      throw ModelInputError(
          options.image->string() + ": the preprocessing makes " + std::string(Name(info.dtype)) +
              " " + ToString(info.shape) + ", input '" + info.name + "' is " +
              std::string(Name(target.info->dtype)) + " " + ToString(target.info->shape),
          "set resize and crop in the [preprocess] table so that they fit every photo");
    }
  } else {
    own.resize(info.bytes);
    target = {&info, own.data()};
  }
  preprocessor.ToTensor(resized, target.data);
  Photo photo = {preprocessor.GeometryOf(picture.size.height, picture.size.width),
                 BatchOf(*target.info)};
  FillBatch(options, preprocessor, info, target.data, &photo);
  photo.light = LightOf(picture);
  report->preprocess_ms = preprocess.ms();
  if (shown) {
    const bool whole = picture.bgr.size() == picture.size;
    photo.image = whole ? picture.bgr : preprocessor.InFull().Decode(*options.image).bgr;
  }
  if (options.save_resized) SaveResized(*options.save_resized, resized);
  if (options.save_tensor) WriteNpy(*options.save_tensor, info.dtype, info.shape, target.data);
  return photo;
}

/// What the inputs hold. A run uses them up, so each further one needs them again.
class InputCopies {
 public:
  InputCopies() = default;
  explicit InputCopies(const Session& session) {
    for (const TensorView& input : session.inputs()) {
      const char* data = static_cast<const char*>(input.data);
      copies_.emplace_back(data, data + input.info->bytes);
    }
  }

  void Restore(const Session& session) const {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      std::copy(copies_[i].begin(), copies_[i].end(), static_cast<char*>(session.inputs()[i].data));
    }
  }

 private:
  std::vector<std::vector<char>> copies_;
};

void WriteTensor(const std::filesystem::path& path, const TensorView& tensor) {
  WriteNpy(path, tensor.info->dtype, tensor.info->shape, tensor.data);
}

/// A run that writes what --dump asks for.
void RunAndDump(const std::vector<Dump>& dumps, Session* session) {
  for (const Dump& dump : dumps) {
    if (dump.call >= session->model().layers().size()) {
      throw ModelInputError("the plan has " + std::to_string(session->model().layers().size()) +
                            " calls, there is no number " + std::to_string(dump.call));
    }
    (void)session->tensor(dump.tensor);
  }
  session->Run([&](std::size_t call) {
    for (const Dump& dump : dumps) {
      if (dump.call == call) WriteTensor(dump.file, session->tensor(dump.tensor));
    }
  });
}

/// `copies`, if there are any, are what --bench restores the inputs from.
void Run(const Options& options, Session* session, Report* report,
         const InputCopies* copies = nullptr) {
  if (!options.dumps.empty()) {
    const Stopwatch run;
    RunAndDump(options.dumps, session);
    report->run_ms = run.ms();
    return;
  }
  if (!options.bench) {
    const Stopwatch run;
    session->Run();
    report->run_ms = run.ms();
    return;
  }
  const InputCopies own = copies != nullptr ? InputCopies() : InputCopies(*session);
  const InputCopies& inputs = copies != nullptr ? *copies : own;
  for (int i = 0; i < options.warmup; ++i) {
    inputs.Restore(*session);
    session->Run();
  }
  Report::Bench bench;
  bench.warmup = options.warmup;
  std::vector<std::vector<double>> profiled;
  std::vector<double> profiled_ms;
  for (int i = 0; i < *options.bench; ++i) {
    inputs.Restore(*session);
    const Stopwatch run;
    session->Run();
    bench.times_ms.push_back(run.ms());
    if (options.profile) {
      inputs.Restore(*session);
      const Stopwatch whole;
      session->Run(&profiled.emplace_back());
      profiled_ms.push_back(whole.ms());
    }
  }
  if (options.profile) {
    report->profile = MakeProfile(session->model().layers(), profiled, profiled_ms, bench.times_ms);
  }
  report->run_ms = Summarise(bench.times_ms).p50;
  report->bench = std::move(bench);
}

/// The worse of two comparisons, by error over what is tolerated.
Comparison Worse(const Comparison& a, const Comparison& b) {
  if (a.ok() != b.ok()) return a.ok() ? b : a;
  return a.max_abs_error * (b.tolerance * b.max_abs_reference) >=
                 b.max_abs_error * (a.tolerance * a.max_abs_reference)
             ? a
             : b;
}

/// Whether a tensor of another shape may be what this output is on other data.
bool WithinBound(const TensorInfo& output, const Shape& shape) {
  return output.bound.size() == shape.size() && !shape.empty() &&
         std::equal(shape.begin(), shape.end(), output.bound.begin(), std::less_equal<>());
}

template <typename MismatchError>
void CompareOutput(const Session& session, std::size_t index, const std::filesystem::path& path,
                   const NpyFile& file, double tolerance, Report* report) {
  const TensorView& output = session.outputs()[index];
  const bool same = file.info().shape == output.info->shape;
  if (file.info().dtype != output.info->dtype ||
      !(same || WithinBound(*output.info, file.info().shape))) {
    throw MismatchError(path.string() + " is " + std::string(Name(file.info().dtype)) + " " +
                        ToString(file.info().shape) + ", output '" + output.info->name + "' is " +
                        std::string(Name(output.info->dtype)) + " " + ToString(output.info->shape));
  }
  Comparison comparison;
  if (same) {
    comparison = Compare(output, file.data(), tolerance);
  } else {
    // Another number of results: no error of their values is small enough.
    comparison.max_abs_error = std::numeric_limits<double>::infinity();
    comparison.tolerance = tolerance;
  }
  report->expected = report->expected ? Worse(*report->expected, comparison) : comparison;
}

void CompareOutputs(const Options& options, const BundleFolder& bundle, const Session& session,
                    Report* report) {
  if (options.golden) {
    for (std::size_t i = 0; i < session.outputs().size(); ++i) {
      const std::filesystem::path path = bundle.golden("output", i);
      CompareOutput<BundleError>(session, i, path, OpenGolden(path), options.tolerance, report);
    }
  }
  for (std::size_t i = 0; i < options.expected.size(); ++i) {
    const std::filesystem::path& path = options.expected[i];
    CompareOutput<ModelInputError>(session, i, path, OpenNpy(path), options.tolerance, report);
  }
}

/// The bundle's postprocessing, if it has any.
std::optional<Postprocessor> PostprocessorOf(const Options& options, const BundleFolder& bundle) {
  if (!std::filesystem::exists(bundle.postprocess())) return std::nullopt;
  PostprocessSpec spec = LoadPostprocessSpec(bundle.postprocess());
  spec.top = options.top.value_or(spec.top);
  return Postprocessor(std::move(spec));
}

/// What photos show: of a batch each has its own part of the outputs.
void FindPhotos(const Options& options, const Session& session, const Photo& photo, Finder* finder,
                Report* report) {
  for (std::size_t i = 0; i <= photo.more.size(); ++i) {
    std::vector<TensorInfo> infos;
    std::vector<TensorView> views;
    infos.reserve(session.outputs().size());
    for (const TensorView& output : session.outputs()) {
      TensorInfo& info = infos.emplace_back(*output.info);
      auto* data = static_cast<char*>(output.data);
      if (photo.batch > 1 && BatchOf(info) == photo.batch) {
        info.shape.front() = 1;
        info.bytes /= photo.batch;
        data += i * info.bytes;
      }
      views.push_back({&info, data});
    }
    const Geometry& geometry = i == 0 ? photo.geometry : photo.more[i - 1];
    Found* found = report;
    if (i > 0) {
      found = &report->more.emplace_back(options.more_images[i - 1].string(), Found()).second;
    }
    finder->Find(views, geometry, found);
  }
}

/// --postprocess: outputs from files.
void PostprocessFiles(const Options& options, const BundleFolder& bundle, Report* report) {
  const auto postprocessor = PostprocessorOf(options, bundle);
  if (!postprocessor) {
    throw BundleError("the bundle has no postprocess.json", "add a [postprocess] table");
  }
  const std::vector<std::string>& names = postprocessor->spec().outputs;
  if (options.postprocess.size() != names.size()) {
    throw UsageError("postprocess.json takes " + std::to_string(names.size()) + " outputs, " +
                         std::to_string(options.postprocess.size()) + " given",
                     "give one --postprocess for each, in its order");
  }
  std::vector<NpyFile> files;
  std::vector<TensorInfo> infos;
  for (std::size_t i = 0; i < names.size(); ++i) {
    files.push_back(OpenNpy(options.postprocess[i]));
    infos.push_back(files.back().info());
    infos.back().name = names[i];
  }
  std::vector<TensorView> tensors;
  for (std::size_t i = 0; i < names.size(); ++i) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): outputs are only read
    tensors.push_back({&infos[i], const_cast<void*>(files[i].data())});
  }
  std::optional<Geometry> geometry;
  if (options.size) {
    const Preprocessor preprocessor(LoadPreprocessSpec(bundle.preprocess()));
    geometry = preprocessor.GeometryOf(options.size->height, options.size->width);
  }
  Results results = postprocessor->Run(tensors, geometry);
  Name(bundle.labels, &results, report);
}

void SaveMask(const std::filesystem::path& path, const Report& report) {
  if (!report.mask) {
    throw UsageError("--mask: the bundle's postprocessing makes no mask",
                     "kind = \"segmentation\" in [postprocess] does");
  }
  if (path.extension() != ".png") throw UsageError("cannot write " + path.string() + ": not .png");
  SaveImage(path, MaskImage(*report.mask));
}

void CheckCounts(const Options& options, const Session& session) {
  const std::size_t count = session.outputs().size();
  if (options.outputs.size() > count || options.expected.size() > count) {
    throw UsageError("more --output or --expected files than the model has outputs, " +
                     std::to_string(count));
  }
}

/// The bundle's first model; its stages, if it has some, are begun with it.
Session OpenSession(const BundleFolder& bundle, Stages* stages) {
  Model model(bundle.model());
  return stages != nullptr ? stages->Begin(std::move(model)) : Session(std::move(model));
}

/// Has stages look at the boxes of a photo: part of the run.
void LookAtBoxes(const cv::Mat& photo, const Options& options, Stages* stages, Report* report) {
  *report->run_ms += stages->Look(photo, options.save_crops, report);
}

/// --bench of a photo through all stages: from the first model's tensor, `inputs`, to the last
/// answer.
void BenchWhole(const Options& options, const InputCopies& inputs, const Photo& photo,
                Session* session, Finder* finder, Stages* stages, Report* report) {
  Report::Bench bench;
  bench.warmup = options.warmup;
  for (int i = 0; i < options.warmup + *options.bench; ++i) {
    inputs.Restore(*session);
    const Stopwatch run;
    session->Run();
    finder->Find(session->outputs(), photo.geometry, report);
    stages->Look(photo.image, std::nullopt, report);
    if (i >= options.warmup) bench.times_ms.push_back(run.ms());
  }
  report->whole_bench = std::move(bench);
}

/// The golden inputs of stages, each compared with its own golden outputs.
void CompareStages(const Stages& stages, Report* report) {
  for (const auto& stage : stages.all()) {
    Session* const session = &*stage->session;
    SetGoldenInputs(stage->bundle, session);
    const Stopwatch run;
    session->Run();
    *report->run_ms += run.ms();
    for (std::size_t i = 0; i < session->outputs().size(); ++i) {
      const std::filesystem::path path = stage->bundle.golden("output", i);
      CompareOutput<BundleError>(*session, i, path, OpenGolden(path), stage->tolerance, report);
    }
  }
}

/// What --image and --golden read besides the model.
void LoadRest(const Options& options, const BundleFolder& bundle, Session* session) {
  if (std::filesystem::exists(bundle.preprocess())) {
    const Preprocessor preprocessor(LoadPreprocessSpec(bundle.preprocess()));
    (void)ImageInput(*session, preprocessor.spec().input);
  }
  (void)PostprocessorOf(options, bundle);
  if (std::filesystem::exists(bundle.golden("input", 0))) SetGoldenInputs(bundle, session);
}

void ConfigureThreads(const Options& options, Report* report) {
  const std::vector<Cpu> allowed = AllowedCpus();
  const Placement placement = Place(allowed, options.threads, options.affinity);
  ThreadPool::Global().Configure(placement.threads, placement.cpus);
  report->threads = placement.threads;
  report->cpus = placement.cpus;
  if (report->cpus.empty()) {
    for (const Cpu& cpu : allowed) report->cpus.push_back(cpu.id);
  }
}

BundleFolder BundleOf(const Options& options) {
  return OpenBundle(options.bundle ? *options.bundle : OwnBundle());
}

/// Names in the report lie in `bundle` and in its stages.
Report Execute(const Options& options, const BundleFolder& bundle,
               std::unique_ptr<Stages>* bundle_stages) {
  Report report;
  if (options.preprocess_only) {
    Preprocess(options, bundle, nullptr, &report);
    report.rss_peak_bytes = PeakRssBytes();
    return report;
  }
  if (!options.postprocess.empty()) {
    PostprocessFiles(options, bundle, &report);
    report.rss_peak_bytes = PeakRssBytes();
    return report;
  }
  ConfigureThreads(options, &report);
  const Stopwatch load;
  *bundle_stages = Stages::Load(bundle, options.top);
  Stages* const stages = bundle_stages->get();
  Session session = OpenSession(bundle, stages);
  report.load_ms = load.ms();
  if (options.save_crops && stages == nullptr) {
    throw UsageError("--save-crops: the bundle has no stages");
  }
  CheckCounts(options, session);
  report.model = session.model().name();
  report.arena_bytes = session.model().arena_bytes();
  report.params_bytes = session.model().params_bytes();
  if (stages != nullptr) {
    for (const auto& stage : stages->all()) {
      report.arena_bytes = std::max(report.arena_bytes, stage->model.arena_bytes());
      report.params_bytes += stage->model.params_bytes();
    }
  }
  report.processor = session.model().processor();
  if (options.load_only) {
    LoadRest(options, bundle, &session);
    if (stages != nullptr) {
      for (const auto& stage : stages->all()) SetGoldenInputs(stage->bundle, &*stage->session);
    }
    report.rss_peak_bytes = PeakRssBytes();
    return report;
  }

  std::optional<Photo> photo;
  if (options.image) {
    photo = Preprocess(options, bundle, &session, &report, options.draw || stages != nullptr);
  } else if (options.golden) {
    SetGoldenInputs(bundle, &session);
  } else {
    SetInputs(options.inputs, &session);
  }
  std::optional<InputCopies> inputs;
  if (options.bench && photo && stages != nullptr) inputs.emplace(session);
  Run(options, &session, &report, inputs ? &*inputs : nullptr);
  report.processor = session.model().processor();
  for (const TensorView& output : session.outputs()) report.outputs.push_back(*output.info);
  report.workspace_peak_bytes = Workspace::Global().peak_bytes();
  CompareOutputs(options, bundle, session, &report);
  const std::optional<Postprocessor> postprocessor = PostprocessorOf(options, bundle);
  Finder finder(postprocessor, bundle, options.top);
  if (photo) {
    FindPhotos(options, session, *photo, &finder, &report);
  } else {
    finder.Find(session.outputs(), std::nullopt, &report);
  }
  for (std::size_t i = 0; i < options.outputs.size(); ++i) {
    WriteTensor(options.outputs[i], session.outputs()[i]);
  }
  if (stages != nullptr) {  // in the memory of the first model's outputs
    if (photo) LookAtBoxes(photo->image, options, stages, &report);
    if (inputs) BenchWhole(options, *inputs, *photo, &session, &finder, stages, &report);
    if (options.golden) CompareStages(*stages, &report);
  }
  if (options.mask) SaveMask(*options.mask, report);
  if (options.draw) {
    DrawFound(report, &photo->image);
    SaveImage(*options.draw, photo->image);
  }
  report.rss_peak_bytes = PeakRssBytes();
  return report;
}

/// --watch: the model is loaded once; each photo gets a line, one that cannot be read too.
[[gnu::noinline]] void WatchPhotos(const Options& options, std::ostream& out, std::ostream& err) {
  HoldStopSignals();
  const BundleFolder bundle = BundleOf(options);
  Report setup;
  ConfigureThreads(options, &setup);
  const std::unique_ptr<Stages> stages = Stages::Load(bundle, options.top);
  Session session = OpenSession(bundle, stages.get());
  const std::optional<Postprocessor> postprocessor = PostprocessorOf(options, bundle);
  Finder finder(postprocessor, bundle, options.top);
  TrialTap trial(bundle.path, stages == nullptr && session.model().states().empty());
  Sight sight(bundle);
  sight.Follow(&trial.counts());
  FrameMetrics metrics(&sight);
  std::optional<ResultSinks> sinks;
  if (options.sinks) {
    sinks.emplace(bundle.path, err);
    metrics.Append([&] { return sinks->Metrics(); });
  }
  std::optional<MetricsFile> metrics_file;
  if (options.metrics) metrics_file.emplace(*options.metrics, [&] { return metrics.Text(); });
  std::optional<Preview> preview;
  if (options.preview) preview.emplace(*options.preview, AccessOf(options), &metrics, err);
  SourceState state("--watch: " + options.watch->string(), &metrics, err);
  const auto line_of = [&](const PhotoFolder::Key& photo, bool given_up) {
    const Stopwatch all;
    Report report;
    report.image = photo.first;
    report.image_mtime_ns = photo.second;
    Options one = options;
    one.image = *options.watch / photo.first;
    PhotoLine line;
    try {
      if (given_up) {
        throw ImageError(one.image->string() + ": begun twice and never finished: it is left out",
                         "see why the program was killed; most likely the photo takes more memory "
                         "or time than it may");
      }
      session.Reset();  // photos have nothing to do with each other
      const bool shown =
          stages != nullptr || (preview && preview->wanted()) || trial.wants_thumbnail();
      const Photo seen = Preprocess(one, bundle, &session, &report, shown);
      Run(one, &session, &report);
      FindPhotos(one, session, seen, &finder, &report);
      if (stages != nullptr) LookAtBoxes(seen.image, one, stages.get(), &report);
      sight.AddRun(*report.run_ms / 1000);
      report.rss_peak_bytes = PeakRssBytes();
      line.text = JsonLine(report);
      trial.Look();
      std::optional<SharedPicture> shared;
      if (trial.Picks()) shared = trial.SharePhotoAt(*one.image);
      if (shared) trial.AddThumbnail(seen.image, &*shared);
      const Report& answer = trial.Answer(shared, report, &line.text);
      sight.AddPicture(seen.light, report, answer);
      metrics.Add(all.ms() / 1000);
      metrics.SetProcessor(session.model().processor());
      if (preview) preview->Show(seen.image, answer, line.text);
    } catch (const Error& error) {
      if (error.exit_code == kExitBundle || error.exit_code == kExitGpuLost) throw;
      line.problem = error.message;
      sight.AddError(error);
      std::ostringstream text;
      PrintJsonError(error, text, report);
      line.text = text.str();
      metrics.Count(state.rejected() + 1, 0, 0);
    }
    if (sinks) sinks->Write(line.text);
    return line;
  };
  Watch(*options.watch, options.results, line_of, &state, out);
}

/// Where the tensor of a photo goes, if the model takes one at a time.
TensorView PhotoInput(const Session& session, const Preprocessor& preprocessor) {
  if (GivenInputs(session).size() != 1) {
    throw ModelInputError("the model has " + std::to_string(session.inputs().size()) +
                          " inputs, an image is only one of them");
  }
  const TensorView input = ImageInput(session, preprocessor.spec().input);
  if (BatchOf(*input.info) != 1) {
    throw ModelInputError(
        "the model takes " + std::to_string(BatchOf(*input.info)) + " photos at a time",
        "name them: --image, as often");
  }
  return input;
}

/// How long a GPU may take: of a service so short that the CPU can still do the run, or the program
/// say why it ends, before the supervisor takes it for one that hangs itself.
void LimitGpu(const Options& options) {
  using std::chrono::milliseconds;
  if (options.gpu_limit_s) {
    SetDriverLimit(milliseconds(static_cast<milliseconds::rep>(*options.gpu_limit_s * 1000)));
  }
  if (const auto sign = Notifier::FromEnvironment().interval()) {
    // A sign comes every half of the time after which silence ends a service.
    SetDefaultDriverLimit(std::min<milliseconds>(*sign * 2 / 3, kDriverLimit));
  }
}

/// --serve.
[[gnu::noinline]] void ServeModel(const Options& options, std::ostream& err) {
  HoldStopSignals();
  const BundleFolder bundle = BundleOf(options);
  const std::optional<Postprocessor> postprocessor = PostprocessorOf(options, bundle);
  Finder finder(postprocessor, bundle, options.top);
  std::optional<Preprocessor> preprocessor;
  if (std::filesystem::exists(bundle.preprocess())) {
    preprocessor.emplace(LoadPreprocessSpec(bundle.preprocess()));
  }
  Report setup;
  ConfigureThreads(options, &setup);
  const std::unique_ptr<Stages> stages = Stages::Load(bundle, options.top);
  Session session = OpenSession(bundle, stages.get());
  Sight sight(bundle);
  ServedModel model;
  model.sight = &sight;
  model.metrics = options.metrics;
  model.name = session.model().name();
  model.inputs = session.inputs();
  model.outputs = session.model().outputs();
  model.states = session.model().states();
  model.processor = [&] { return session.model().processor(); };
  model.reset = [&] { session.Reset(); };
  model.run = [&]() -> const std::vector<TensorView>& {
    session.Run();
    return session.outputs();
  };
  PreprocessBuffers buffers;
  TrialTap trial(bundle.path, stages == nullptr && model.states.empty());
  sight.Follow(&trial.counts());
  model.photo_line = [&](std::string_view bytes, double* run_ms) {
    if (!preprocessor) throw UsageError("the bundle has no preprocessing for photos");
    const TensorView input = PhotoInput(session, *preprocessor);
    Report report;
    const Stopwatch decode;
    const Decoded picture = preprocessor->Decode(bytes, "the photo");
    report.decode_ms = decode.ms();
    const Stopwatch preprocess;
    ToInput(picture, *preprocessor, input, &buffers);
    report.preprocess_ms = preprocess.ms();
    Run(options, &session, &report);
    finder.Find(session.outputs(),
                preprocessor->GeometryOf(picture.size.height, picture.size.width), &report);
    if (stages != nullptr) {
      const bool whole = picture.bgr.size() == picture.size;
      const Decoded all = whole ? picture : preprocessor->InFull().Decode(bytes, "the photo");
      LookAtBoxes(all.bgr, options, stages.get(), &report);
    }
    *run_ms = *report.run_ms;
    std::string line = JsonLine(report);
    trial.Look();
    std::optional<SharedPicture> shared;
    if (trial.Picks()) shared = trial.SharePhoto(bytes);
    if (shared) trial.AddThumbnail(picture.bgr, &*shared);
    const Report& answer = trial.Answer(shared, report, &line);
    sight.AddPicture(LightOf(picture), report, answer);
    return line;
  };
  Serve(model, *options.serve, AccessOf(options),
        static_cast<std::size_t>(options.queue.value_or(kQueue)), err);
}

/// --images, --frames and --camera.
[[gnu::noinline]] void RunLiveSource(const Options& options, std::ostream& out, std::ostream& err) {
  HoldStopSignals();
  const BundleFolder bundle = BundleOf(options);
  const Preprocessor preprocessor(LoadPreprocessSpec(bundle.preprocess()));
  const std::optional<Postprocessor> postprocessor = PostprocessorOf(options, bundle);
  if (options.size &&
      std::int64_t{options.size->width} * options.size->height > preprocessor.spec().max_pixels) {
    throw UsageError("--size: more pixels than the " +
                     std::to_string(preprocessor.spec().max_pixels) + " that are allowed");
  }
  Report setup;
  ConfigureThreads(options, &setup);
  const std::unique_ptr<Stages> stages = Stages::Load(bundle, options.top);
  Session session = OpenSession(bundle, stages.get());
  const TensorView input = PhotoInput(session, preprocessor);
  Finder finder(postprocessor, bundle, options.top);
  Sight sight(bundle);
  Report report;
  std::optional<Tracker> tracker;
  if (options.track) tracker.emplace(*options.track);
  if (stages != nullptr && tracker) stages->Follow(&*tracker);
  TrialTap trial(bundle.path, stages == nullptr && !tracker && session.model().states().empty());
  sight.Follow(&trial.counts());
  const auto line_of = [&](const LiveFrame& frame, std::string* line) -> const Found& {
    report.image = frame.path;
    if (!frame.path) report.frame = frame.number;
    report.decode_ms = frame.decode_ms;
    report.preprocess_ms = frame.preprocess_ms;
    std::copy(frame.tensor.begin(), frame.tensor.end(), static_cast<char*>(input.data));
    Run(options, &session, &report);
    finder.Find(session.outputs(), frame.geometry, &report);
    if (tracker) {
      if (!report.boxes) throw UsageError("--track: the model gives no boxes");
      tracker->See(frame.opening, &*report.boxes);
    }
    if (stages != nullptr) LookAtBoxes(frame.image, options, stages.get(), &report);
    sight.AddRun(*report.run_ms / 1000);
    *line = JsonLine(report, std::move(*line));
    const Report& answer = trial.Answer(frame.shared, report, line);
    sight.AddPicture(frame.light, report, answer);
    return answer;
  };
  std::optional<ResultSinks> sinks;
  if (options.sinks) sinks.emplace(bundle.path, err);
  RunLive(options, preprocessor, *input.info, stages != nullptr, line_of, &sight,
          sinks ? &*sinks : nullptr, &trial, out, err);
}

int Fail(const Error& error, bool json, std::ostream& out, std::ostream& err) {
  err << "error: " << error.message << "\n";
  if (!error.hint.empty()) err << "\nhint: " << error.hint << "\n";
  if (json) PrintJsonError(error, out);
  return error.exit_code;
}

}  // namespace

int RunApp(const std::vector<std::string>& words, std::ostream& out, std::ostream& err) {
  const bool json = std::find(words.begin(), words.end(), "--json") != words.end();
  try {
    const Options options = ParseOptions(words);
    if (options.help) {
      out << HelpText();
      return 0;
    }
    if (options.version) {
      out << "edgepack-run " << EDGEPACK_VERSION << ", OpenCV " << CV_VERSION << "\n";
      return 0;
    }
    LimitGpu(options);
    EndIfDriverBlocks([&](const GpuLostError& error) {
      // The thread that would print is in the driver. What else is to be done at the end may wait
      // for it, too.
      const int code = Fail(error, json, out, err);
      out.flush();
      err.flush();
      std::_Exit(code);
    });
    if (options.watch) {
      WatchPhotos(options, out, err);
      return 0;
    }
    if (options.images || options.frames || options.camera) {
      RunLiveSource(options, out, err);
      return 0;
    }
    if (options.serve) {
      ServeModel(options, err);
      return 0;
    }
    const BundleFolder bundle = BundleOf(options);
    std::unique_ptr<Stages> stages;
    const Report report = Execute(options, bundle, &stages);
    options.json ? PrintJson(report, out) : PrintText(report, out);
    const bool ok = !report.expected || report.expected->ok();
    return ok ? kExitOk : kExitMismatch;
  } catch (const Error& error) {
    return Fail(error, json, out, err);
  } catch (const std::exception& error) {
    const char* const hint =
        "this is a bug in edgepack, or a model it does not fit: please report it";
    return Fail({kExitBug, "bug", error.what(), hint}, json, out, err);
  }
}

bool MustEndAtOnce() { return GpuHangs(); }

}  // namespace edgepack
