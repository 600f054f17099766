// edgepack's library for C++17: edgepack.h with owners and exceptions. All of it is in this header
// and compiled with the program, so that it fits every C++ library.
//
//     const edgepack::Model model("/opt/flowers");
//     edgepack::Session session(model);
//     session.SetImageFile("tulip.jpg");
//     session.Run();
//     std::cout << session.Results() << "\n";
#ifndef EDGEPACK_EDGEPACK_HPP
#define EDGEPACK_EDGEPACK_HPP

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <edgepack/edgepack.h>

namespace edgepack {
// Of its own: the library has types of these names.
inline namespace api1 {

/// What a call was refused for; what() is a sentence.
class Error : public std::runtime_error {
 public:
  explicit Error(const edgepack_error& error)
      : std::runtime_error(error.message), status_(error.status), hint_(error.hint) {}

  [[nodiscard]] edgepack_status status() const noexcept { return status_; }
  /// What to do next, or empty.
  [[nodiscard]] const std::string& hint() const noexcept { return hint_; }

 private:
  edgepack_status status_;
  std::string hint_;
};

namespace detail {

/// Calls a function of the C API, whose last argument is the error. Throws Error.
template <typename Function, typename... Arguments>
void Call(Function function, Arguments... arguments) {
  edgepack_error error;
  if (function(arguments..., &error) != EDGEPACK_OK) throw Error(error);
}

template <typename Element>
struct DTypeOf;
#define EDGEPACK_DTYPE(type, dtype)                 \
  template <>                                       \
  struct DTypeOf<type> {                            \
    static constexpr edgepack_dtype kValue = dtype; \
  };
EDGEPACK_DTYPE(bool, EDGEPACK_BOOL)
EDGEPACK_DTYPE(std::int8_t, EDGEPACK_INT8)
EDGEPACK_DTYPE(std::uint8_t, EDGEPACK_UINT8)
EDGEPACK_DTYPE(std::int16_t, EDGEPACK_INT16)
EDGEPACK_DTYPE(std::uint16_t, EDGEPACK_UINT16)
EDGEPACK_DTYPE(std::int32_t, EDGEPACK_INT32)
EDGEPACK_DTYPE(std::uint32_t, EDGEPACK_UINT32)
EDGEPACK_DTYPE(std::int64_t, EDGEPACK_INT64)
EDGEPACK_DTYPE(std::uint64_t, EDGEPACK_UINT64)
EDGEPACK_DTYPE(float, EDGEPACK_FLOAT32)
EDGEPACK_DTYPE(double, EDGEPACK_FLOAT64)
#undef EDGEPACK_DTYPE

}  // namespace detail

/// An input or output. Name and shape are copies; the data is the session's, and lives as long.
class Tensor {
 public:
  explicit Tensor(const edgepack_tensor& tensor)
      : name_(tensor.name),
        shape_(tensor.shape, tensor.shape + tensor.rank),
        dtype_(tensor.dtype),
        bytes_(static_cast<std::size_t>(tensor.bytes)),
        data_(tensor.data) {
    if (tensor.bound != nullptr) bound_.assign(tensor.bound, tensor.bound + tensor.rank);
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const noexcept { return shape_; }
  /// The largest shape of an output whose shape depends on the data, else empty.
  [[nodiscard]] const std::vector<std::int64_t>& bound() const noexcept { return bound_; }
  [[nodiscard]] edgepack_dtype dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// nullptr if it was asked of a model.
  [[nodiscard]] void* data() const noexcept { return data_; }
  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_ / edgepack_dtype_size(dtype_); }

  /// The elements in place. Throws std::invalid_argument if they are of another type.
  template <typename Element>
  [[nodiscard]] Element* As() const {
    if (dtype_ != detail::DTypeOf<Element>::kValue) {
      throw std::invalid_argument("tensor '" + name_ + "' is " + edgepack_dtype_name(dtype_));
    }
    return static_cast<Element*>(data_);
  }

 private:
  std::string name_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> bound_;
  edgepack_dtype dtype_;
  std::size_t bytes_;
  void* data_;
};

/// A bundle's model. Sessions share its weights, and may outlive it.
class Model {
 public:
  /// Opens the bundle in a folder. Throws Error.
  explicit Model(const std::string& bundle) {
    detail::Call(edgepack_model_open, bundle.c_str(), &handle_);
  }
  ~Model() {
    if (handle_ != nullptr) (void)edgepack_model_close(handle_, nullptr);
  }
  Model(Model&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Model& operator=(Model&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] edgepack_model* handle() const noexcept { return handle_; }

  [[nodiscard]] edgepack_model_info info() const {
    edgepack_model_info info;
    detail::Call(edgepack_model_get_info, handle_, &info);
    return info;
  }
  [[nodiscard]] Tensor input(std::int32_t index = 0) const {
    edgepack_tensor tensor;
    detail::Call(edgepack_model_input, handle_, index, &tensor);
    return Tensor(tensor);
  }
  [[nodiscard]] Tensor output(std::int32_t index = 0) const {
    edgepack_tensor tensor;
    detail::Call(edgepack_model_output, handle_, index, &tensor);
    return Tensor(tensor);
  }
  [[nodiscard]] std::string label(std::int32_t index) const {
    const char* label = nullptr;
    detail::Call(edgepack_model_label, handle_, index, &label);
    return label;
  }

 private:
  edgepack_model* handle_ = nullptr;
};

/// Runs a model, on one thread at a time. What each function does, edgepack.h says; all of them
/// throw Error.
class Session {
 public:
  explicit Session(const Model& model, std::int32_t threads = 1) {
    detail::Call(edgepack_session_open, model.handle(), threads, &handle_);
  }
  ~Session() {
    if (handle_ != nullptr) (void)edgepack_session_close(handle_, nullptr);
  }
  Session(Session&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Session& operator=(Session&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] edgepack_session* handle() const noexcept { return handle_; }

  [[nodiscard]] Tensor input(std::int32_t index = 0) const {
    edgepack_tensor tensor;
    detail::Call(edgepack_session_input, handle_, index, &tensor);
    return Tensor(tensor);
  }
  [[nodiscard]] Tensor output(std::int32_t index = 0) const {
    edgepack_tensor tensor;
    detail::Call(edgepack_session_output, handle_, index, &tensor);
    return Tensor(tensor);
  }

  void SetInput(std::int32_t index, const void* data, std::size_t bytes) {
    detail::Call(edgepack_session_set_input, handle_, index, data, std::uint64_t{bytes});
  }
  void SetImageFile(const std::string& path) {
    detail::Call(edgepack_session_set_image_file, handle_, path.c_str());
  }
  void SetImage(const void* data, std::size_t bytes) {
    detail::Call(edgepack_session_set_image, handle_, data, std::uint64_t{bytes});
  }
  void SetPixels(const void* pixels, std::int32_t height, std::int32_t width,
                 edgepack_pixels format, std::size_t stride = 0) {
    detail::Call(edgepack_session_set_pixels, handle_, pixels, height, width, std::uint64_t{stride},
                 format);
  }

  void Run() { detail::Call(edgepack_session_run, handle_); }
  /// Boxes get numbers that stay with an object until it is missed in more runs than that.
  void Track(std::int32_t most_missed) {
    detail::Call(edgepack_session_track, handle_, most_missed);
  }
  /// All states are what they were at first, and tracks end.
  void Reset() { detail::Call(edgepack_session_reset, handle_); }

  /// JSON.
  [[nodiscard]] std::string Results() const {
    const char* json = nullptr;
    detail::Call(edgepack_session_results, handle_, &json);
    return json;
  }

 private:
  edgepack_session* handle_ = nullptr;
};

}  // namespace api1
}  // namespace edgepack

#endif  // EDGEPACK_EDGEPACK_HPP
