#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/error.h"

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

/// A new file, in place of one that may be there; its folders are made.
void WriteFile(const std::filesystem::path& path, std::string_view content,
               bool executable = false);
/// What a file holds; "" if there is none.
std::string ReadFile(const std::filesystem::path& path);

/// `text` with its first `from` replaced by `to`; fails if there is none.
std::string Replace(std::string text, std::string_view from, std::string_view to);

inline bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// What `function` throws, or "" if it throws nothing.
template <typename Exception = Error, typename Function>
std::string MessageOf(Function function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

/// "<kind>: <message>" of the Error that `function` throws, or "".
template <typename Function>
std::string ErrorOf(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.kind + ": " + error.message;
  }
  return "";
}

}  // namespace edgepack::testing
