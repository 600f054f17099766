#include "common/tests/support.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

#include <doctest/doctest.h>

namespace edgepack::testing {

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "edgepack-test-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TempFolder::~TempFolder() {
  // qemu-user cannot list a folder of ext4 for a 32-bit program; ctest's clean-up gets the rest.
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void WriteFile(const std::filesystem::path& path, std::string_view content, bool executable) {
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::remove(path);
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  REQUIRE(file.good());
  std::filesystem::permissions(path, std::filesystem::perms(executable ? 0755 : 0644));
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Replace(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace edgepack::testing
