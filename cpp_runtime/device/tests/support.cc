#include "support.h"

#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "folder.h"
#include "sha256.h"

namespace edgepack::device::testing {

TempFolder::TempFolder() {
  const char* const parent = std::getenv("TMPDIR");
  path_ = std::string(parent == nullptr ? "/tmp" : parent) + "/device-XXXXXX";
  REQUIRE(mkdtemp(path_.data()) != nullptr);
}

TempFolder::~TempFolder() {
  const std::size_t slash = path_.rfind('/');
  Folder::Open(path_.substr(0, slash)).RemoveTree(path_.substr(slash + 1));
}

TestBundle::TestBundle() {
  struct utsname system = {};
  uname(&system);
  const std::string machine = static_cast<const char*>(system.machine);
  triple = machine.substr(0, 3) == "arm" ? "arm-linux-gnueabihf" : machine + "-linux-gnu";
}

std::string TestBundle::Manifest() const {
  std::string table;
  for (const auto& [path, content] : files) {
    table += (table.empty() ? "\"" : ",\"") + path + R"(":{"sha256":")" + Sha256Hex(content) +
             R"(","size":)" + std::to_string(content.size()) + R"(,"mode":")" +
             (path.compare(0, 4, "bin/") == 0 ? "0755" : "0644") + "\"}";
  }
  return R"({"schema":2,"name":"tiny","board":")" + board + R"(","release":")" + release +
         R"(","version":)" + version + R"(,"compatible":{"triple":")" + triple +
         R"(","cpu":"generic","hwcaps":[)" + hwcaps + R"(],"glibc":"2.31"},)" +
         R"("model":{"file":"tiny.onnx","sha256":")" + std::string(64, 'a') +
         R"(","inputs":[],"outputs":[],"arena_bytes":1,"params_bytes":7},"tolerance":1e-4,)" +
         R"("scores":"raw","versions":{"edgepack":"1","tvm":"1","opencv":"1","toolchain":"1"},)" +
         R"("health":)" + health + R"(,"service":null,"files":{)" + table + "}}";
}

void TestBundle::WriteTo(const std::string& folder) const {
  mkdir(folder.c_str(), 0755);
  WriteFile(folder + "/manifest.json", Manifest());
  for (const auto& [path, content] : files) {
    const std::size_t slash = path.find('/');
    if (slash != std::string::npos) mkdir((folder + "/" + path.substr(0, slash)).c_str(), 0755);
    WriteFile(folder + "/" + path, content, path.compare(0, 4, "bin/") == 0);
  }
}

void WriteFile(const std::string& path, const std::string& content, bool executable) {
  unlink(path.c_str());
  const File file(Fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, executable ? 0755 : 0644)),
                  path);
  REQUIRE(file.fd() >= 0);
  file.WriteAt(0, content.data(), content.size());
}

std::string ReadFile(const std::string& path) {
  const File file(Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC)), path);
  return file.fd() < 0 ? "" : file.ReadAll(std::size_t{1} << 24U);
}

std::string LinkAt(const std::string& path) {
  std::array<char, 256> target = {};
  return readlink(path.c_str(), target.data(), target.size() - 1) < 0 ? "" : target.data();
}

}  // namespace edgepack::device::testing
