#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "config.h"
#include "detections.h"

namespace edgepack::sinks {

/// Counts tracks of a class: those that are in view, all that were, and, if it has a line, those
/// that crossed it either way. In bounded memory: tracks that are gone are forgotten.
class Counter {
 public:
  struct Counts {
    std::int64_t in_view = 0;
    std::int64_t seen = 0;
    std::int64_t in = 0;
    std::int64_t out = 0;
  };

  explicit Counter(CounterConfig config) : config_(std::move(config)) {}

  /// What a line has, in seconds.
  void See(double now, const std::vector<Detection>& detections);
  /// Between lines: a source that says nothing any more has nothing in view.
  void Tick(double now);

  [[nodiscard]] const CounterConfig& config() const { return config_; }
  /// From any thread.
  [[nodiscard]] Counts counts() const;
  /// As JSON, in the memory of a text that is not needed any more.
  [[nodiscard]] std::string Text(std::string memory) const;
  [[nodiscard]] std::string Metrics() const;
  /// How many crossed by the last line, for the thread that calls See().
  [[nodiscard]] std::int64_t crossed(Direction direction) const {
    return direction == Direction::kIn ? crossed_in_ : crossed_out_;
  }

  static constexpr std::size_t kMostTracks = 1000;

 private:
  using Point = std::array<double, 2>;

  struct Seen {
    std::int64_t track = 0;
    double since = 0;
    double last = 0;
    bool counted = false;
    bool placed = false;  ///< whether `place` is known
    Point place = {};     ///< where it last was clearly on a side of the line
  };

  Seen* Find(double now, std::int64_t track);
  void Place(const Detection& one, Seen* seen);
  void Forget(double now);

  CounterConfig config_;
  std::vector<Seen> tracks_;
  double before_ = 0;
  std::int64_t crossed_in_ = 0;
  std::int64_t crossed_out_ = 0;
  mutable std::mutex mutex_;
  Counts counts_;
};

}  // namespace edgepack::sinks
