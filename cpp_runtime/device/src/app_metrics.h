#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "site.h"

namespace edgepack::device {

/// What the app says of how far its input is from the release's photos.
struct DriftSignal {
  std::string name;
  int level = 0;           ///< 1: it differs, 2: much
  std::int64_t since = 0;  ///< seconds since 1970
};

/// An app whose file is older has stopped, or hangs. It is written every 10 s.
constexpr std::int64_t kFreshS = 60;

/// The file that edgepack-run --metrics writes. Its account need not be the releases' owner's: it
/// is read as anybody's, with bounds.
struct AppMetrics {
  std::int64_t written_at = 0;  ///< seconds since 1970
  std::string text;             ///< series of the app, and nothing else; each with the model's name
  std::vector<DriftSignal> drift;  ///< of the release that was asked for
  std::optional<bool> on_gpu;      ///< of that release, if its model has a plan for a GPU
};

/// What the arguments of a release's service give as --metrics; nothing if they do not.
std::optional<std::string> MetricsFileOf(const Site& site);

/// Nothing if there is no such file, or it is none of the app's: larger than 256 KB, a link, a line
/// that is no series, or a series of another program or of the device tool. `model` is added to
/// series that do not tell it.
std::optional<AppMetrics> ReadAppMetrics(const std::string& path, const std::string& model,
                                         const std::string& release);

}  // namespace edgepack::device
