#include "sender.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace edgepack::sinks {
namespace {

constexpr double kFirstPauseS = 0.5;
constexpr double kMostPauseS = 60;
constexpr double kFindS = 2.5;

}  // namespace

double Monotonic() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void Say(const std::string& text) {
  const std::string line = "edgepack-sinks: " + text + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

std::string Metric(const char* name, const char* label, const std::string& whose,
                   std::uint64_t value) {
  std::string quoted;
  for (const char letter : whose) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += letter == '\n' ? ' ' : letter;
  }
  return std::string(name) + "{" + label + "=\"" + quoted + "\"} " + std::to_string(value) + "\n";
}

Sender::Sender(SinkConfig config)
    : config_(std::move(config)),
      spool_(config_.buffer + "/" + config_.name, config_.buffer_bytes),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Sender::Push(std::string_view line, const std::vector<Detection>& detections) {
  spool_.Push(line);
  See(detections);
  Wake();
}

void Sender::Stop() {
  stopped_ = Monotonic() + kFindS;
  stop_ = true;
  Wake();
}

void Sender::Wake() const {
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) < 0) return;
}

void Sender::Hear() const {
  std::uint64_t count = 0;
  if (read(wake_.get(), &count, sizeof(count)) < 0) return;
}

short Sender::Wait(double seconds, int fd, short events) const {
  std::array<pollfd, 2> fds = {{{wake_.get(), POLLIN, 0}, {fd, events, 0}}};
  const int wait_ms = static_cast<int>(std::max(0.0, seconds) * 1e3);
  if (poll(fds.data(), fds.size(), wait_ms) <= 0) return 0;
  if ((fds[0].revents & POLLIN) != 0) Hear();
  return fds[1].revents;
}

void Sender::Pause() {
  pause_s_ = std::clamp(pause_s_ * 2, kFirstPauseS, kMostPauseS);
  const double until = Monotonic() + pause_s_;
  while (!stop_ && Monotonic() < until) {
    Wait(until - Monotonic());
    spool_.Spill();  // what comes meanwhile
  }
}

void Sender::Fail(const std::string& why) {
  ++failures_;
  up_ = false;
  if (why == said_) return;
  said_ = why;
  Say(config_.name + ": " + config_.host + ":" + std::to_string(config_.port) + ": " + why +
      "; lines wait in " + config_.buffer);
}

void Sender::Succeed() {
  pause_s_ = 0;
  if (up_.exchange(true)) return;
  said_.clear();
  Say(config_.name + ": " + config_.host + ":" + std::to_string(config_.port) + " takes lines");
}

std::string Sender::Metrics() const {
  const Spool::Counts counts = spool_.counts();
  return Metric("edgepack_sink_up", "sink", config_.name, up_ ? 1 : 0) +
         Metric("edgepack_sink_sent_total", "sink", config_.name, sent_) +
         Metric("edgepack_sink_dropped_total", "sink", config_.name, counts.dropped) +
         Metric("edgepack_sink_refused_total", "sink", config_.name, refused_) +
         Metric("edgepack_sink_failures_total", "sink", config_.name, failures_) +
         Metric("edgepack_sink_waiting_bytes", "sink", config_.name, counts.waiting_bytes);
}

}  // namespace edgepack::sinks
