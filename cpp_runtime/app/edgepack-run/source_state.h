#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>

#include "metrics.h"

namespace edgepack {

/// Whether a live source is there and gives what can be used. Each change is said, once, and told
/// to /metrics. From any thread; what it is said to is written to by nothing else meanwhile.
class SourceState {
 public:
  /// `name` is the source's in messages: "--camera: /dev/video0".
  SourceState(std::string name, FrameMetrics* metrics, std::ostream& err);

  /// It is gone, or gives nothing; `why` continues "--camera: /dev/video0 ".
  void Lose(const std::string& why);
  /// It is there again.
  void Find();
  /// Something that is worth knowing; changes nothing.
  void Note(const std::string& text);
  /// What came was used: ends all complaints.
  void Use();
  /// What came could not be used, and why. kMostUnusable in a row are said.
  void Reject(const std::string& why);

  /// How many came in all that could not be used, and why the last could not.
  [[nodiscard]] std::int64_t rejected() const;
  [[nodiscard]] std::string last_reason() const;

  static constexpr int kMostUnusable = 10;

 private:
  using Clock = std::chrono::steady_clock;

  void Say(const std::string& text);
  void Tell();

  const std::string name_;
  FrameMetrics* metrics_;
  std::ostream& err_;
  mutable std::mutex mutex_;
  std::optional<Clock::time_point> lost_;
  bool useless_ = false;
  int in_a_row_ = 0;
  std::int64_t rejected_ = 0;
  std::string last_reason_;
};

/// After how long a silence says something: twice as long each time that nothing was wrong.
class Silence {
 public:
  explicit Silence(std::chrono::milliseconds first) : limit_(first) {}

  /// Something came.
  void Reset();
  /// Whether it is said now: once in each silence.
  [[nodiscard]] bool Ends();
  [[nodiscard]] std::chrono::milliseconds length() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::milliseconds limit_;
  Clock::time_point since_ = Clock::now();
  bool said_ = false;
};

}  // namespace edgepack
