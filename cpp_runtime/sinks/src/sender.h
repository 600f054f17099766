#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/fd.h"
#include "config.h"
#include "detections.h"
#include "spool.h"

namespace edgepack::sinks {

/// A moment of a clock that nobody sets, in seconds.
double Monotonic();

/// Writes a line on standard error, which a service's log keeps.
void Say(const std::string& text);

/// A line for Prometheus.
std::string Metric(const char* name, const char* label, const std::string& whose,
                   std::uint64_t value);

/// Brings lines to where they go, from a thread of its own.
class Sender {
 public:
  explicit Sender(SinkConfig config);
  virtual ~Sender() = default;
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  Sender(Sender&&) = delete;
  Sender& operator=(Sender&&) = delete;

  /// Until Stop(), after which what has not arrived within a second or two is in files.
  virtual void Run() = 0;
  void Push(std::string_view line, const std::vector<Detection>& detections);
  void Stop();
  void Save() { spool_.Save(); }
  /// Nothing is lost if the program ends now.
  void Spill() {
    spool_.Spill();
    spool_.Save();
  }
  [[nodiscard]] std::string Metrics() const;

 protected:
  virtual void See(const std::vector<Detection>& detections) = 0;

  [[nodiscard]] const SinkConfig& config() const { return config_; }
  Spool& spool() { return spool_; }
  [[nodiscard]] bool stopping() const { return stop_; }
  /// Some seconds after Stop(): there is no more time to find the other side.
  [[nodiscard]] bool late() const { return stop_ && Monotonic() > stopped_; }
  [[nodiscard]] int wake() const { return wake_.get(); }
  /// Takes back what woke it.
  void Hear() const;
  /// Until something wakes it, or `seconds` have gone by; with what is for `fd` as for poll().
  short Wait(double seconds, int fd = -1, short events = 0) const;
  /// Before another try: longer each time, up to a minute. Nothing wakes it but Stop().
  void Pause();
  void Fail(const std::string& why);
  void Succeed();
  void CountSent() { ++sent_; }
  void CountRefused() { ++refused_; }
  void Wake() const;

 private:
  SinkConfig config_;
  Spool spool_;
  Fd wake_;
  std::atomic<bool> stop_{false};
  std::atomic<double> stopped_{0};
  std::atomic<bool> up_{false};
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::string said_;
  double pause_s_ = 0;
};

}  // namespace edgepack::sinks
