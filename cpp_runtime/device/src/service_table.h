#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"

namespace edgepack::device {

/// The `service` table of a manifest: see edgepack/bundle/service.py.
struct ServiceTable {
  std::vector<std::string> args;
  std::string restart;
  std::optional<double> watchdog_s;
  std::optional<std::uint64_t> memory_mb;
  std::optional<std::string> user;
  std::vector<std::string> writable;
};

/// Takes `service` out of `manifest`; nothing if it is null. Throws its error for a key that is
/// missing or unknown, and for what edgepack/bundle/service.py does not allow.
std::optional<ServiceTable> ReadService(JsonObject* manifest);

}  // namespace edgepack::device
