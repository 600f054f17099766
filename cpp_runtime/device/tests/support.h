#pragma once

#include <map>
#include <string>

#include "common/tests/support.h"
#include "site.h"

namespace edgepack::device::testing {

using namespace edgepack::testing;  // NOLINT(google-build-using-namespace)

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

/// The target of a link, or "".
std::string LinkAt(const std::string& path);

/// Nothing is said.
inline void Quiet(const std::string& /*what*/) {}

}  // namespace edgepack::device::testing
