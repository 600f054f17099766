#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <edgepack/npy.h>
#include <edgepack/tensor.h>

namespace edgepack::testing {

/// A folder that goes away with the test.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  TempFolder(TempFolder&&) = delete;
  TempFolder& operator=(TempFolder&&) = delete;

  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void WriteFile(const std::filesystem::path& path, std::string_view content);
std::string ReadFile(const std::filesystem::path& path);

/// `text` with its first `from` replaced by `to`; fails if there is none.
std::string Replace(std::string text, std::string_view from, std::string_view to);

/// y = 2 * (x + w) for a float32 x of shape (1, 4) and w = {10, 20, 30, 40}: graph.json.
const std::string& GraphText();
/// The three files of that model in `folder`; the graph may be another.
void WriteModel(const std::filesystem::path& folder, const std::string& graph = GraphText());
/// A bundle with that model and its golden tensors in `folder`.
void WriteBundle(const std::filesystem::path& folder);

TensorInfo Info(DType dtype, Shape shape);
void WriteFloats(const std::filesystem::path& path, const Shape& shape,
                 const std::vector<float>& values);

/// What `function` throws, or "" if it throws nothing.
template <typename Exception, typename Function>
std::string MessageOf(Function function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

inline bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace edgepack::testing
