#include "action.h"

#include <chrono>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "program.h"
#include "sender.h"

namespace edgepack::sinks {
namespace {

/// Tells edgepack-run, at the other end of standard input, to keep the pictures of this moment.
bool AskForClip(const std::string& name) {
  const std::string line = "clip " + name + "\n";
  return send(STDIN_FILENO, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(line.size());
}

}  // namespace

Action::Action(RuleConfig config, const Counter* counter)
    : config_(std::move(config)), rule_(config_, counter) {
  if (!config_.gpio) return;
  gpio_.emplace(*config_.gpio);
  const std::string problem = gpio_->Set(false);
  if (!problem.empty()) Say(config_.name + ": " + problem + "; tried again when it is wanted");
}

void Action::See(double now, std::string_view line, const std::vector<Detection>& detections) {
  if (!rule_.See(now, detections)) return;
  const std::lock_guard<std::mutex> guard(mutex_);
  if (busy_ || wanted_) {
    ++skipped_;
    return;
  }
  wanted_.emplace(line);
  changed_.notify_one();
}

void Action::Stop() {
  const std::lock_guard<std::mutex> guard(mutex_);
  stop_ = true;
  changed_.notify_one();
}

void Action::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || wanted_; });
    if (!wanted_) break;  // the last lines may want it, too
    const std::string line = *std::exchange(wanted_, std::nullopt);
    busy_ = true;
    lock.unlock();
    Do(line);
    lock.lock();
    busy_ = false;
  }
  if (gpio_) gpio_->Set(false);
}

void Action::Fail(const std::string& why) {
  ++failures_;
  Say(config_.name + ": " + why);
}

void Action::Do(const std::string& line) {
  ++runs_;
  const double begun = Monotonic();
  if (gpio_) {
    const std::string problem = gpio_->Set(true);
    if (!problem.empty()) Fail(problem);
  }
  if (config_.clip && !AskForClip(config_.name)) {
    Fail("nobody keeps pictures: edgepack-run does not listen");
  }
  if (!config_.run.empty()) {
    const std::string problem = RunProgram(config_.run, line, config_.time_limit_s);
    if (!problem.empty()) Fail(problem);
  }
  if (!gpio_) return;
  const double rest_s = config_.gpio->pulse_s - (Monotonic() - begun);
  if (rest_s > 0) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(rest_s), [&] { return stop_; });
  }
  gpio_->Set(false);
}

std::string Action::Metrics() const {
  return Metric("edgepack_action_runs_total", "when", config_.name, runs_) +
         Metric("edgepack_action_failures_total", "when", config_.name, failures_) +
         Metric("edgepack_action_skipped_total", "when", config_.name, skipped_);
}

}  // namespace edgepack::sinks
