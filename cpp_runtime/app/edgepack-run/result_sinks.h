#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <sys/types.h>

#include "clips.h"
#include "common/fd.h"

namespace edgepack {

/// --sinks: lines go to edgepack-sinks, the bundle's other program, which has its own time for slow
/// brokers. One that ends is started again, a second later; one that takes nothing for a second
/// costs lines, which are counted. The program may ask to have the last pictures saved.
class ResultSinks {
 public:
  /// Throws BundleError if the bundle has no sinks.
  ResultSinks(const std::filesystem::path& bundle, std::ostream& err);
  /// Lets it end, which may take some seconds: what waits goes into its files.
  ~ResultSinks();
  ResultSinks(const ResultSinks&) = delete;
  ResultSinks& operator=(const ResultSinks&) = delete;
  ResultSinks(ResultSinks&&) = delete;
  ResultSinks& operator=(ResultSinks&&) = delete;

  /// One line with its end.
  void Write(std::string_view line);
  /// Hears what the program asks for, which Write() does, too.
  void Listen();
  /// What keeps pictures for its actions; null if none does.
  [[nodiscard]] Clips* clips() { return clips_ ? &*clips_ : nullptr; }
  /// What it has to say for Prometheus, from any thread.
  [[nodiscard]] std::string Metrics() const;

 private:
  bool Start();
  void Reap();

  std::string program_;
  std::string config_;
  Fd shared_;
  const char* memory_ = nullptr;
  Fd socket_;
  std::string asked_;  // up to half a line
  pid_t child_ = -1;
  std::optional<std::chrono::steady_clock::time_point> started_;
  mutable std::mutex mutex_;
  std::int64_t lost_ = 0;
  std::int64_t restarts_ = -1;
  std::optional<Clips> clips_;
};

}  // namespace edgepack
