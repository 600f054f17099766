#pragma once

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

#include "common/fd.h"
#include "common/fuzz/fuzz.h"

namespace edgepack {

/// A file in memory, for readers that want a path.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("input", MFD_CLOEXEC)) { EDGEPACK_REQUIRE(fd_); }

  void Write(std::string_view content) const {
    const auto size = static_cast<ssize_t>(content.size());
    EDGEPACK_REQUIRE(pwrite(fd_.get(), content.data(), content.size(), 0) == size);
    EDGEPACK_REQUIRE(ftruncate(fd_.get(), size) == 0);
  }
  [[nodiscard]] std::filesystem::path path() const {
    return "/proc/self/fd/" + std::to_string(fd_.get());
  }

 private:
  Fd fd_;
};

/// A folder whose files are some of those in memory; removed at the end of the process.
class LinkFolder {
 public:
  LinkFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "edgepack-fuzz.XXXXXX").string();
    EDGEPACK_REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~LinkFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  LinkFolder(const LinkFolder&) = delete;
  LinkFolder& operator=(const LinkFolder&) = delete;
  LinkFolder(LinkFolder&&) = delete;
  LinkFolder& operator=(LinkFolder&&) = delete;

  void Link(const char* name, const std::filesystem::path& to) const {
    std::filesystem::create_symlink(to, path_ / name);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace edgepack
