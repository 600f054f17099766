#include "support.h"

#include <array>
#include <sys/utsname.h>
#include <unistd.h>

#include "sha256.h"

namespace edgepack::device::testing {

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
  WriteFile(folder + "/manifest.json", Manifest());
  for (const auto& [path, content] : files) {
    WriteFile(folder + "/" + path, content, path.compare(0, 4, "bin/") == 0);
  }
}

std::string LinkAt(const std::string& path) {
  std::array<char, 256> target = {};
  return readlink(path.c_str(), target.data(), target.size() - 1) < 0 ? "" : target.data();
}

}  // namespace edgepack::device::testing
