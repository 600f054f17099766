// The C API over the inference library. Nothing throws across it.
#define EDGEPACK_EXPORT __attribute__((visibility("default")))
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <edgepack/cpu_topology.h>
#include <edgepack/edgepack.h>
#include <edgepack/errors.h>
#include <edgepack/postprocessor.h>
#include <edgepack/preprocessor.h>
#include <edgepack/session.h>
#include <edgepack/thread_pool.h>
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>

#include "bundle.h"
#include "common/json.h"
#include "found.h"
#include "handles.h"
#include "platform/opencv/decode.h"
#include "platform/opencv/preprocess_buffers.h"
#include "platform/opencv/to_input.h"
#include "stages.h"
#include "tracker.h"

namespace edgepack {
namespace {

static_assert(static_cast<int>(DType::kBool) == EDGEPACK_BOOL &&
              static_cast<int>(DType::kUInt64) == EDGEPACK_UINT64 &&
              static_cast<int>(DType::kFloat16) == EDGEPACK_FLOAT16 &&
              static_cast<int>(DType::kFloat64) == EDGEPACK_FLOAT64);

// Programs that were compiled with an earlier header know these structures.
static_assert(sizeof(edgepack_error) == 1536 && offsetof(edgepack_error, hint) == 1028);
static_assert(sizeof(edgepack_model_info) == 40 && offsetof(edgepack_model_info, inputs) == 24);
static_assert(sizeof(edgepack_tensor) == 4 * sizeof(void*) + 16 &&
              offsetof(edgepack_tensor, bytes) == 4 * sizeof(void*) &&
              offsetof(edgepack_tensor, rank) == 4 * sizeof(void*) + 12);

constexpr std::int32_t kMostThreads = 256;

/// A mistake of the calling program.
struct CallError : std::runtime_error {
  CallError(edgepack_status code, const std::string& what)
      : std::runtime_error(what), status(code) {}
  edgepack_status status;
};

[[noreturn]] void Refuse(const std::string& what) {
  throw CallError(EDGEPACK_INVALID_ARGUMENT, what);
}

/// Refuses a NULL.
template <typename Value>
Value* Given(Value* value, const char* name) {
  if (value == nullptr) Refuse(std::string(name) + " is NULL");
  return value;
}

struct OpenModel {
  explicit OpenModel(const std::filesystem::path& folder)
      : bundle(OpenBundle(folder)), model(bundle.model()) {
    params_bytes = model.params_bytes();
    arena_bytes = model.arena_bytes();
    if (const auto stages = Stages::Load(bundle, std::nullopt)) {
      for (const auto& stage : stages->all()) {
        params_bytes += stage->model.params_bytes();
        arena_bytes = std::max<std::uint64_t>(arena_bytes, stage->model.arena_bytes());
      }
    }
    if (std::filesystem::exists(bundle.preprocess())) {
      preprocessor.emplace(LoadPreprocessSpec(bundle.preprocess()));
    }
    if (std::filesystem::exists(bundle.postprocess())) {
      postprocessor.emplace(LoadPostprocessSpec(bundle.postprocess()));
    }
  }

  BundleFolder bundle;
  Model model;
  std::optional<Preprocessor> preprocessor;
  std::optional<Postprocessor> postprocessor;
  /// With those of stages: all weights, and what the largest needs.
  std::uint64_t params_bytes = 0;
  std::uint64_t arena_bytes = 0;
};

struct OpenSession {
  OpenSession(std::shared_ptr<const OpenModel> of, int threads)
      : model(std::move(of)),
        stages(Stages::Load(model->bundle, std::nullopt)),
        session(stages != nullptr ? stages->Begin(model->model, &pool)
                                  : Session(model->model, &pool)),
        finder(model->postprocessor, model->bundle, std::nullopt) {
    if (threads > 1) pool.Configure(threads, {});
  }

  std::shared_ptr<const OpenModel> model;
  ThreadPool pool;
  std::unique_ptr<Stages> stages;
  Session session;
  /// For images and results after the first.
  PreprocessBuffers buffers;
  Finder finder;
  Found found;
  /// How the image that was set last lies in its tensor.
  std::optional<Geometry> geometry;
  cv::Mat photo;  ///< its pixels, if stages look at them
  std::optional<Tracker> tracker;
  std::int64_t sequence = 0;  ///< tracks end with it
  /// If there are stages or tracks: whether `found` is of the last run.
  bool looked = false;
  std::string results;
  std::mutex in_use;
};

/// Never destroyed: a program may close what it opened while it exits.
Handles<OpenModel>& Models() {
  static auto& models = *new Handles<OpenModel>;
  return models;
}

Handles<OpenSession>& Sessions() {
  static auto& sessions = *new Handles<OpenSession>;
  return sessions;
}

/// Of both kinds, so that one is never taken for the other. Odd: no address of an object.
std::uintptr_t NewHandle() {
  static std::atomic<std::uintptr_t> next{1};
  return next.fetch_add(2);
}

/// A model's kernels import a function of this library, which they only find if all may see it: so
/// it is loaded once more for all, in case it was loaded by dlopen for its caller alone.
void ShowToKernels() {
  static const bool kShown = [] {
    Dl_info own = {};
    return dladdr(reinterpret_cast<const void*>(&edgepack_api), &own) != 0 &&
           dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) != nullptr;
  }();
  // In a program that it was linked into, there is nothing to show.
  (void)kShown;
}

template <typename Handle>
std::uintptr_t NumberOf(const Handle* handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

template <typename Handle>
Handle* HandleOf(std::uintptr_t number) {
  return reinterpret_cast<Handle*>(number);  // NOLINT(performance-no-int-to-ptr)
}

template <typename Object>
std::shared_ptr<Object> Open(std::shared_ptr<Object> object, const char* kind) {
  if (object == nullptr) {
    throw CallError(EDGEPACK_INVALID_HANDLE,
                    std::string("this is no open ") + kind + ": it was closed, or never opened");
  }
  return object;
}

std::shared_ptr<OpenModel> Open(const edgepack_model* model) {
  return Open(Models().Find(NumberOf(model)), "model");
}

/// A session, held for one call.
class Held {
 public:
  explicit Held(const edgepack_session* session)
      : session_(Open(Sessions().Find(NumberOf(session)), "session")),
        lock_(session_->in_use, std::try_to_lock) {
    if (!lock_.owns_lock()) {
      throw CallError(EDGEPACK_BUSY, "another thread is using the session");
    }
  }
  OpenSession* operator->() const { return session_.get(); }

 private:
  std::shared_ptr<OpenSession> session_;
  std::unique_lock<std::mutex> lock_;
};

/// Copies as much as fits, up to the start of a character.
template <std::size_t Size>
void CopyText(std::string_view text, char (&to)[Size]) {
  std::size_t size = std::min(text.size(), Size - 1);
  while (size < text.size() && size > 0 &&
         (static_cast<unsigned char>(text[size]) & 0xC0U) == 0x80) {
    --size;
  }
  std::copy_n(text.data(), size, to);
  to[size] = '\0';
}

edgepack_status Fail(edgepack_status status, std::string_view message, std::string_view hint,
                     edgepack_error* error) {
  if (error != nullptr) {
    error->status = status;
    CopyText(message, error->message);
    CopyText(hint, error->hint);
  }
  return status;
}

/// Runs `call`; whatever it throws becomes a status and an error.
template <typename Function>
edgepack_status Guarded(edgepack_error* error, const Function& call) noexcept {
  try {
    call();
    return EDGEPACK_OK;
  } catch (const CallError& caught) {
    return Fail(caught.status, caught.what(), "", error);
  } catch (const ImageError& caught) {
    return Fail(EDGEPACK_BAD_IMAGE, caught.message, caught.hint, error);
  } catch (const ModelInputError& caught) {
    return Fail(EDGEPACK_WRONG_INPUT, caught.message, caught.hint, error);
  } catch (const PositionError& caught) {
    return Fail(EDGEPACK_BAD_POSITION, caught.message, caught.hint, error);
  } catch (const GpuError& caught) {
    const bool lost = caught.exit_code == kExitGpuLost;
    return Fail(lost ? EDGEPACK_GPU_LOST : EDGEPACK_GPU_FAILED, caught.message, caught.hint, error);
  } catch (const Error& caught) {
    const bool bundle = caught.exit_code == kExitBundle;
    return Fail(bundle ? EDGEPACK_BAD_BUNDLE : EDGEPACK_INTERNAL, caught.message, caught.hint,
                error);
  } catch (const std::bad_alloc&) {
    return Fail(EDGEPACK_NO_MEMORY, "there is no memory left", "", error);
  } catch (const std::filesystem::filesystem_error& caught) {
    return Fail(EDGEPACK_BAD_BUNDLE, caught.what(), "", error);
  } catch (const std::system_error& caught) {
    // No thread, most likely.
    return Fail(EDGEPACK_NO_MEMORY, caught.what(), "", error);
  } catch (const cv::Exception& caught) {
    return Fail(EDGEPACK_INTERNAL, caught.err, "", error);
  } catch (const std::exception& caught) {
    return Fail(EDGEPACK_INTERNAL, caught.what(), "", error);
  } catch (...) {
    return Fail(EDGEPACK_INTERNAL, "an unknown exception", "", error);
  }
}

template <typename List>
const typename List::value_type& At(const List& list, std::int32_t index, const char* what) {
  if (index < 0 || static_cast<std::size_t>(index) >= list.size()) {
    Refuse("there is no " + std::string(what) + " " + std::to_string(index) + ": the model has " +
           std::to_string(list.size()));
  }
  return list[static_cast<std::size_t>(index)];
}

edgepack_tensor Describe(const TensorInfo& info, void* data) {
  edgepack_tensor tensor = {};
  tensor.name = info.name.c_str();
  tensor.shape = info.shape.data();
  tensor.bound = info.bound.empty() ? nullptr : info.bound.data();
  tensor.data = data;
  tensor.bytes = info.bytes;
  tensor.dtype = static_cast<edgepack_dtype>(info.dtype);
  tensor.rank = static_cast<std::int32_t>(info.shape.size());
  return tensor;
}

void CheckBytes(const TensorInfo& info, const char* what, std::uint64_t bytes) {
  if (bytes == info.bytes) return;
  Refuse(std::string(what) + " '" + info.name + "' is " + std::string(Name(info.dtype)) + " " +
         ToString(info.shape) + ", " + std::to_string(info.bytes) + " bytes, not " +
         std::to_string(bytes));
}

const Preprocessor& PreprocessorOf(const OpenModel& model) {
  if (model.preprocessor) return *model.preprocessor;
  throw BundleError("the bundle has no preprocess.json",
                    "add a [preprocess] table to edgepack.toml, or set tensors");
}

/// A picture becomes the model's input.
void SetImage(const Decoded& picture, OpenSession* session) {
  const Preprocessor& preprocessor = PreprocessorOf(*session->model);
  const std::string& name = preprocessor.spec().input;
  for (const TensorView& input : session->session.inputs()) {
    if (input.info->name != name) continue;
    ToInput(picture, preprocessor, input, &session->buffers);
    session->geometry = preprocessor.GeometryOf(picture.size.height, picture.size.width);
    return;
  }
  throw BundleError("preprocess.json: the model has no input '" + name + "'");
}

/// An image file becomes the model's input, and what stages look at; `decode` decodes it by a
/// preprocessor.
template <typename Decode>
void SetFile(const Decode& decode, OpenSession* session) {
  const Preprocessor& preprocessor = PreprocessorOf(*session->model);
  const Decoded picture = decode(preprocessor);
  SetImage(picture, session);
  if (session->stages == nullptr) return;
  const bool whole = picture.bgr.size() == picture.size;
  session->photo = whole ? picture.bgr : decode(preprocessor.InFull()).bgr;
}

/// What a bundle with stages computes is what its results say: their memory is that of the outputs.
void CheckOutputs(const OpenSession& session) {
  if (session.stages == nullptr) return;
  Refuse("a bundle with stages keeps no outputs: edgepack_session_results says what was found");
}

/// Whether a run itself says what was found, once: else whoever asks for results finds it.
bool FindsInRuns(const OpenSession& session) {
  return session.stages != nullptr || session.tracker;
}

void Run(OpenSession* session) {
  session->looked = false;
  if (session->stages != nullptr && session->photo.empty()) {
    throw ModelInputError("the bundle has stages, which look at pixels, and no image was set",
                          "set an image before each run: tensors are for bundles of one model");
  }
  session->session.Run();
  if (!FindsInRuns(*session)) return;
  session->finder.Find(session->session.outputs(), session->geometry, &session->found);
  if (session->tracker) session->tracker->See(session->sequence, &*session->found.boxes);
  if (session->stages != nullptr) {
    session->stages->Look(session->photo, std::nullopt, &session->found);
  }
  session->looked = true;
}

/// Whether what its postprocessing gives are boxes.
bool GivesBoxes(const OpenModel& model) {
  if (!model.postprocessor) return false;
  const PostprocessSpec& spec = model.postprocessor->spec();
  return spec.boxes() || spec.kind == PostprocessSpec::Kind::kTextLines;
}

/// Pixels as CV_8UC3 in BGR.
cv::Mat BgrOf(const void* pixels, int height, int width, std::size_t stride,
              edgepack_pixels format) {
  const int kind = format == EDGEPACK_GRAY ? CV_8UC1 : CV_8UC3;
  // OpenCV has no matrix of constants. NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
  const cv::Mat image(height, width, kind, const_cast<void*>(pixels), stride);
  if (format == EDGEPACK_BGR) return image;
  cv::Mat bgr(height, width, CV_8UC3);
  if (format == EDGEPACK_RGB) {
    cv::cvtColor(image, bgr, cv::COLOR_RGB2BGR);
    return bgr;
  }
  for (int y = 0; y < height; ++y) {
    const auto* from = image.ptr<std::uint8_t>(y);
    auto* to = bgr.ptr<std::uint8_t>(y);
    for (int x = 0; x < width; ++x) to = std::fill_n(to, 3, from[x]);
  }
  return bgr;
}

cv::Mat CheckedPixels(const OpenModel& model, const void* pixels, std::int32_t height,
                      std::int32_t width, std::uint64_t stride, edgepack_pixels format) {
  if (format < EDGEPACK_RGB || format > EDGEPACK_GRAY) {
    Refuse("format is " + std::to_string(format) + ": neither RGB, BGR nor gray");
  }
  if (height < 1 || width < 1) Refuse("an image has at least one pixel");
  const std::int64_t most = PreprocessorOf(model).spec().max_pixels;
  if (std::int64_t{height} * width > most) {
    throw ImageError("image of " + std::to_string(width) + " x " + std::to_string(height) +
                     " pixels is larger than the " + std::to_string(most) + " pixels allowed");
  }
  const std::uint64_t row =
      std::uint64_t{static_cast<std::uint32_t>(width)} * (format == EDGEPACK_GRAY ? 1 : 3);
  if (stride == 0) stride = row;
  if (stride < row || stride > SIZE_MAX / static_cast<std::uint32_t>(height)) {
    Refuse("stride is " + std::to_string(stride) + ", a row has " + std::to_string(row) + " bytes");
  }
  return BgrOf(pixels, height, width, static_cast<std::size_t>(stride), format);
}

int ThreadsOf(std::int32_t asked) {
  if (asked < 0 || asked > kMostThreads) {
    Refuse("threads is " + std::to_string(asked) + ": 0 to " + std::to_string(kMostThreads));
  }
  return asked > 0 ? asked : Place(AllowedCpus(), std::nullopt, std::nullopt).threads;
}

}  // namespace
}  // namespace edgepack

using namespace edgepack;

extern "C" {

uint32_t edgepack_api(void) { return EDGEPACK_API; }

const char* edgepack_version(void) { return EDGEPACK_VERSION; }

const char* edgepack_dtype_name(edgepack_dtype dtype) {
  if (dtype < EDGEPACK_BOOL || dtype > EDGEPACK_FLOAT64) return nullptr;
  return Name(static_cast<DType>(dtype)).data();
}

size_t edgepack_dtype_size(edgepack_dtype dtype) {
  if (dtype < EDGEPACK_BOOL || dtype > EDGEPACK_FLOAT64) return 0;
  return ItemSize(static_cast<DType>(dtype));
}

edgepack_status edgepack_model_open(const char* bundle, edgepack_model** model,
                                    edgepack_error* error) {
  return Guarded(error, [&] {
    Given(model, "model");
    const std::filesystem::path folder = Given(bundle, "bundle");
    std::error_code unknown;
    if (!std::filesystem::is_directory(folder, unknown)) {
      throw BundleError("there is no bundle in " + folder.string(),
                        "give the folder that `edgepack package` wrote, or a release's");
    }
    ShowToKernels();
    const std::uintptr_t handle = NewHandle();
    Models().Add(handle, std::make_shared<OpenModel>(folder));
    *model = HandleOf<edgepack_model>(handle);
  });
}

edgepack_status edgepack_model_close(edgepack_model* model, edgepack_error* error) {
  return Guarded(error, [&] { Open(Models().Take(NumberOf(model)), "model"); });
}

edgepack_status edgepack_model_get_info(edgepack_model* model, edgepack_model_info* info,
                                        edgepack_error* error) {
  return Guarded(error, [&] {
    const auto open = Open(model);
    edgepack_model_info found = {};
    found.name = open->model.name().c_str();
    found.params_bytes = open->params_bytes;
    found.arena_bytes = open->arena_bytes;
    found.inputs = static_cast<std::int32_t>(open->model.inputs().size());
    found.outputs = static_cast<std::int32_t>(open->model.outputs().size());
    found.labels = static_cast<std::int32_t>(open->bundle.labels.size());
    found.states = static_cast<std::int32_t>(open->model.states().size());
    *Given(info, "info") = found;
  });
}

edgepack_status edgepack_model_input(edgepack_model* model, int32_t index, edgepack_tensor* tensor,
                                     edgepack_error* error) {
  return Guarded(error, [&] {
    const auto open = Open(model);
    *Given(tensor, "tensor") = Describe(At(open->model.inputs(), index, "input"), nullptr);
  });
}

edgepack_status edgepack_model_output(edgepack_model* model, int32_t index, edgepack_tensor* tensor,
                                      edgepack_error* error) {
  return Guarded(error, [&] {
    const auto open = Open(model);
    *Given(tensor, "tensor") = Describe(At(open->model.outputs(), index, "output"), nullptr);
  });
}

edgepack_status edgepack_model_label(edgepack_model* model, int32_t index, const char** label,
                                     edgepack_error* error) {
  return Guarded(error, [&] {
    const auto open = Open(model);
    *Given(label, "label") = At(open->bundle.labels, index, "label").c_str();
  });
}

edgepack_status edgepack_session_open(edgepack_model* model, int32_t threads,
                                      edgepack_session** session, edgepack_error* error) {
  return Guarded(error, [&] {
    const auto open = Open(model);
    Given(session, "session");
    auto opened = std::make_shared<OpenSession>(open, ThreadsOf(threads));
    const std::uintptr_t handle = NewHandle();
    Sessions().Add(handle, std::move(opened));
    *session = HandleOf<edgepack_session>(handle);
  });
}

edgepack_status edgepack_session_close(edgepack_session* session, edgepack_error* error) {
  return Guarded(error, [&] { Open(Sessions().Take(NumberOf(session)), "session"); });
}

edgepack_status edgepack_session_input(edgepack_session* session, int32_t index,
                                       edgepack_tensor* tensor, edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    const TensorView& view = At(held->session.inputs(), index, "input");
    *Given(tensor, "tensor") = Describe(*view.info, view.data);
  });
}

edgepack_status edgepack_session_output(edgepack_session* session, int32_t index,
                                        edgepack_tensor* tensor, edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    CheckOutputs(*held.operator->());
    const TensorView& view = At(held->session.outputs(), index, "output");
    *Given(tensor, "tensor") = Describe(*view.info, view.data);
  });
}

edgepack_status edgepack_session_set_input(edgepack_session* session, int32_t index,
                                           const void* data, uint64_t bytes,
                                           edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    const TensorView& view = At(held->session.inputs(), index, "input");
    CheckBytes(*view.info, "input", bytes);
    // A state may be given the output that it is.
    if (bytes > 0) std::memmove(view.data, Given(data, "data"), static_cast<std::size_t>(bytes));
    held->geometry.reset();
    held->photo.release();
  });
}

edgepack_status edgepack_session_get_output(edgepack_session* session, int32_t index, void* data,
                                            uint64_t bytes, edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    CheckOutputs(*held.operator->());
    const TensorView& view = At(held->session.outputs(), index, "output");
    CheckBytes(*view.info, "output", bytes);
    if (bytes > 0) std::memcpy(Given(data, "data"), view.data, static_cast<std::size_t>(bytes));
  });
}

edgepack_status edgepack_session_set_image_file(edgepack_session* session, const char* path,
                                                edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    const std::filesystem::path file = Given(path, "path");
    SetFile([&](const Preprocessor& by) { return by.Decode(file); }, held.operator->());
  });
}

edgepack_status edgepack_session_set_image(edgepack_session* session, const void* data,
                                           uint64_t bytes, edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    if (bytes > SIZE_MAX) Refuse("bytes is more than there is memory");
    const std::string_view file(static_cast<const char*>(Given(data, "data")),
                                static_cast<std::size_t>(bytes));
    SetFile([&](const Preprocessor& by) { return by.Decode(file, "(in memory)"); },
            held.operator->());
  });
}

edgepack_status edgepack_session_set_pixels(edgepack_session* session, const void* pixels,
                                            int32_t height, int32_t width, uint64_t stride,
                                            edgepack_pixels format, edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    Given(pixels, "pixels");
    const cv::Mat bgr = CheckedPixels(*held->model, pixels, height, width, stride, format);
    SetImage(bgr, held.operator->());
    if (held->stages != nullptr) held->photo = bgr.clone();
  });
}

edgepack_status edgepack_session_run(edgepack_session* session, edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    try {
      Run(held.operator->());
    } catch (const std::runtime_error& failed) {
      throw CallError(EDGEPACK_KERNEL_FAILED, failed.what());
    }
  });
}

edgepack_status edgepack_session_reset(edgepack_session* session, edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    held->session.Reset();
    ++held->sequence;
  });
}

edgepack_status edgepack_session_track(edgepack_session* session, int32_t most_missed,
                                       edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    if (most_missed < 0 || most_missed > Tracker::kMostMissed) {
      Refuse("most_missed is " + std::to_string(most_missed) + ": 0 to " +
             std::to_string(Tracker::kMostMissed));
    }
    if (!GivesBoxes(*held->model)) Refuse("there is nothing to track: the bundle gives no boxes");
    if (held->tracker) {
      held->tracker->SetMostMissed(most_missed);
    } else {
      held->tracker.emplace(most_missed);
      if (held->stages != nullptr) held->stages->Follow(&*held->tracker);
    }
  });
}

edgepack_status edgepack_session_results(edgepack_session* session, const char** json,
                                         edgepack_error* error) {
  return Guarded(error, [&] {
    const Held held(session);
    Given(json, "json");
    if (FindsInRuns(*held.operator->())) {
      // What is there may be of the image before.
      if (!held->looked) Refuse("there are no results: no run has ended, or the last one failed");
    } else {
      held->finder.Find(held->session.outputs(), held->geometry, &held->found);
    }
    JsonWriter writer(std::move(held->results));
    WriteFound(held->found, &writer.BeginObject());
    held->results = writer.EndObject().Take();
    *json = held->results.c_str();
  });
}

}  // extern "C"
