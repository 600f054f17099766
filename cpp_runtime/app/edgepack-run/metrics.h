#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <edgepack/model.h>

namespace edgepack {

class Sight;

/// The content type of all texts here.
inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

/// How long something took, in the buckets that Prometheus counts.
class DurationHistogram {
 public:
  void Add(double seconds);
  /// The series of a histogram `name`, in Prometheus' text format 0.0.4.
  [[nodiscard]] std::string Text(const std::string& name, const std::string& help) const;
  /// The same with these labels, without what comes once for all labels.
  [[nodiscard]] std::string Series(const std::string& name, const std::string& labels) const;

 private:
  static constexpr std::array<double, 13> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                     0.25,  0.5,    1,     2.5,  5,     10};
  std::array<std::int64_t, kBounds.size() + 1> counts_ = {};
  double sum_ = 0;
};

/// What /metrics says, from any thread.
class ServerMetrics {
 public:
  /// Values of this moment.
  struct Gauges {
    std::size_t queue = 0;
    std::size_t queue_most = 0;
    int connections = 0;
    /// Of a model with a plan for a GPU.
    std::optional<Processor> processor = std::nullopt;
    const Sight* sight = nullptr;
  };

  void CountAnswer(int status);
  /// From the whole request to its answer, and the model's part of that.
  void AddInference(double seconds, double model_seconds);
  [[nodiscard]] std::string Text(const Gauges& gauges) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, std::int64_t> answers_;
  DurationHistogram inference_;
  DurationHistogram model_;
};

/// What /metrics says of a live source, from any thread.
class FrameMetrics {
 public:
  /// `sight`, if there is one, outlives it.
  explicit FrameMetrics(const Sight* sight = nullptr) : sight_(sight) {}

  /// A frame from the moment it was whole to the end of its line.
  void Add(double seconds);
  void Count(std::int64_t broken, std::int64_t dropped, std::int64_t lost);
  /// Whether the source is there; each time that it no longer is, is counted.
  void SetSource(bool up);
  /// Of a model with a plan for a GPU.
  void SetProcessor(const std::optional<Processor>& processor);
  /// What `more` returns follows; before anybody asks.
  void Append(std::function<std::string()> more) { more_ = std::move(more); }
  [[nodiscard]] std::string Text() const;

 private:
  const Sight* sight_;
  mutable std::mutex mutex_;
  DurationHistogram frames_;
  std::int64_t broken_ = 0;
  std::int64_t dropped_ = 0;
  std::int64_t lost_ = 0;
  bool source_up_ = true;
  std::int64_t source_losses_ = 0;
  std::optional<Processor> processor_;
  std::function<std::string()> more_;
};

}  // namespace edgepack
