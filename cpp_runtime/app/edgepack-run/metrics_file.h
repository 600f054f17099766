#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "worker.h"

namespace edgepack {

/// --metrics: a file with what /metrics says, written anew every few seconds and at the end.
/// Whoever reads it sees an old one or a new one, whole.
class MetricsFile {
 public:
  /// `text` is called on a thread of its own, and outlives this. Throws UsageError if the file
  /// cannot be written; if that is so later, an old one stays, as its time of modification shows.
  MetricsFile(std::filesystem::path path, std::function<std::string()> text);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  MetricsFile(MetricsFile&&) = delete;
  MetricsFile& operator=(MetricsFile&&) = delete;

 private:
  /// 0, or errno.
  [[nodiscard]] int Write() const;
  void Run();

  std::filesystem::path path_;
  std::function<std::string()> text_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::optional<Worker> worker_;
};

}  // namespace edgepack
