#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config.h"
#include "gpio.h"
#include "rule.h"

namespace edgepack::sinks {

/// Does what a rule says, from a thread of its own; while it does, the rule's next times are
/// counted and no more.
class Action {
 public:
  Action(RuleConfig config, const Counter* counter);

  void Run();
  void See(double now, std::string_view line, const std::vector<Detection>& detections);
  void Stop();
  [[nodiscard]] std::string Metrics() const;

 private:
  void Do(const std::string& line);
  void Fail(const std::string& why);

  RuleConfig config_;
  Rule rule_;
  std::optional<GpioLine> gpio_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> wanted_;  // the line that asks for it
  bool busy_ = false;
  bool stop_ = false;
  std::atomic<std::uint64_t> runs_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<std::uint64_t> skipped_{0};
};

}  // namespace edgepack::sinks
