#pragma once

#include <map>
#include <string>

#include "error.h"
#include "site.h"

namespace edgepack::device::testing {

/// A folder that goes away with the test.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  TempFolder(TempFolder&&) = delete;
  TempFolder& operator=(TempFolder&&) = delete;

  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A shell script that answers like edgepack-run: all is well.
inline constexpr char kGoodApp[] = R"(#!/bin/sh
echo '{"expected":{"max_abs_error":1e-7,"max_abs_reference":2,"tolerance":1e-4,"ok":true},
"run_ms":2.5,"rss_peak_bytes":3000000,"top":[{"index":1,"label":"dog","score":0.5}]}'
)";

/// A device tool that is older than any.
inline constexpr char kOldTool[] = "#!/bin/sh\necho edgepack-device 0.0.1 protocol 1\n";

/// A small bundle for this very machine.
struct TestBundle {
  std::string release = "000000000001";
  std::string board = "bench";
  std::string version = "0";
  std::string triple;  // by default: this machine's
  std::string hwcaps;
  std::string health = R"({"timeout_s":20,"max_latency_ms":null,"max_memory_mb":null})";
  std::map<std::string, std::string> files = {
      {"bin/edgepack-device", kOldTool}, {"bin/edgepack-run", kGoodApp},
      {"install", "#!/bin/sh\n"},        {"model/graph.json", "{}"},
      {"model/model.so", "kernels"},     {"model/params.bin", "weights"}};

  TestBundle();
  [[nodiscard]] std::string Manifest() const;
  void WriteTo(const std::string& folder) const;
};

void WriteFile(const std::string& path, const std::string& content, bool executable = false);
std::string ReadFile(const std::string& path);
/// The target of a link, or "".
std::string LinkAt(const std::string& path);

/// Nothing is said.
inline void Quiet(const std::string& /*what*/) {}

/// "<kind>: <message>" of the DeviceError that `function` throws, or "".
template <typename Function>
std::string ErrorOf(Function function) {
  try {
    function();
  } catch (const DeviceError& error) {
    return error.kind + ": " + error.message;
  }
  return "";
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace edgepack::device::testing
