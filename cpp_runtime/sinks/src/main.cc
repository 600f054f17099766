// edgepack-sinks SINKS.JSON [METRICS]: lines of results from standard input go to brokers, webhooks
// and actions until its end. METRICS is the number of an open file that is shared with the reader:
// lines for Prometheus, after their length.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mosquitto.h>
#include <poll.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "action.h"
#include "common/error.h"
#include "config.h"
#include "counter.h"
#include "detections.h"
#include "mqtt.h"
#include "webhook.h"

namespace edgepack::sinks {
namespace {

constexpr std::size_t kMostLine = 1U << 20U;
constexpr std::size_t kMetricsBytes = 32U << 10U;
constexpr double kTickS = 1;
/// Less than the app waits for it.
constexpr double kEndS = 5;

/// Threads that end by themselves, or not at all.
class Crew {
 public:
  template <typename Work>
  void Start(Work work) {
    ++running_;
    std::thread([this, work] {
      work();
      --running_;
    }).detach();
  }
  [[nodiscard]] bool IsIdle() const { return running_ == 0; }

 private:
  std::atomic<int> running_{0};
};

class Distributor {
 public:
  Distributor(const Config& config, int metrics_fd) {
    for (const CounterConfig& counter : config.counters) {
      counters_.push_back(std::make_unique<Counter>(counter));
    }
    for (const SinkConfig& sink : config.sinks) {
      if (sink.scheme == "mqtt") {
        std::vector<const Counter*> counters;
        for (const std::string& name : sink.counters) counters.push_back(Find(name));
        senders_.push_back(std::make_unique<MqttSender>(sink, config.name, std::move(counters)));
      } else {
        senders_.push_back(std::make_unique<WebhookSender>(sink));
      }
    }
    for (const RuleConfig& rule : config.rules) {
      const Counter* const counter = rule.crossing ? Find(rule.crossing->counter) : nullptr;
      actions_.push_back(std::make_unique<Action>(rule, counter));
    }
    if (metrics_fd >= 0) {
      void* const memory =
          mmap(nullptr, kMetricsBytes, PROT_READ | PROT_WRITE, MAP_SHARED, metrics_fd, 0);
      if (memory != MAP_FAILED) metrics_ = static_cast<char*>(memory);
    }
  }

  void Run() {
    for (const auto& sender : senders_) crew_.Start([&sender] { sender->Run(); });
    for (const auto& action : actions_) crew_.Start([&action] { action->Run(); });
    double saved = Monotonic();
    for (bool more = true; more;) {
      pollfd input = {STDIN_FILENO, POLLIN, 0};
      if (poll(&input, 1, static_cast<int>(kTickS * 1e3)) > 0) more = Read();
      if (Monotonic() - saved < kTickS) continue;
      saved = Monotonic();
      for (const auto& counter : counters_) counter->Tick(saved);
      for (const auto& sender : senders_) sender->Save();
      Tell();
    }
    for (const auto& sender : senders_) sender->Stop();
    for (const auto& action : actions_) action->Stop();
    const double until = Monotonic() + kEndS;
    while (!crew_.IsIdle() && Monotonic() < until) usleep(10000);
    // One that still asks a name server, say, has nothing in memory afterwards.
    for (const auto& sender : senders_) sender->Spill();
    Tell();
  }

 private:
  /// Of a configuration that was checked.
  [[nodiscard]] const Counter* Find(const std::string& name) const {
    const auto found = std::find_if(counters_.begin(), counters_.end(), [&](const auto& counter) {
      return counter->config().name == name;
    });
    return found->get();
  }

  /// False at the end of standard input.
  bool Read() {
    const ssize_t size = Retry([&] { return read(STDIN_FILENO, block_.data(), block_.size()); });
    if (size <= 0) return false;
    std::string_view rest(block_.data(), static_cast<std::size_t>(size));
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      if (line_.size() + rest.size() <= kMostLine)
        line_.append(rest.substr(0, end));
      else
        too_long_ = true;
      if (end == std::string_view::npos) return true;
      if (too_long_)
        ++odd_;
      else
        Take(line_);
      line_.clear();
      too_long_ = false;
      rest.remove_prefix(end + 1);
    }
    return true;
  }

  void Take(const std::string& line) {
    const std::vector<Detection>* const detections = reader_.Read(line);
    if (detections == nullptr) {
      ++odd_;
      return;
    }
    const double now = Monotonic();
    for (const auto& counter : counters_) counter->See(now, *detections);
    for (const auto& sender : senders_) sender->Push(line, *detections);
    for (const auto& action : actions_) action->See(now, line, *detections);
  }

  /// For /metrics of the app.
  void Tell() {
    if (metrics_ == nullptr) return;
    std::string text = "edgepack_sink_odd_lines_total " + std::to_string(odd_) + "\n";
    for (const auto& sender : senders_) text += sender->Metrics();
    for (const auto& action : actions_) text += action->Metrics();
    for (const auto& counter : counters_) text += counter->Metrics();
    text.resize(std::min(text.size(), kMetricsBytes - sizeof(std::uint32_t)));
    auto* const length = reinterpret_cast<std::atomic<std::uint32_t>*>(metrics_);
    // While it is nought there is nothing to read.
    length->store(0);
    std::memcpy(metrics_ + sizeof(std::uint32_t), text.data(), text.size());
    length->store(static_cast<std::uint32_t>(text.size()));
  }

  std::vector<std::unique_ptr<Counter>> counters_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<std::unique_ptr<Action>> actions_;
  Crew crew_;
  DetectionReader reader_;
  std::array<char, 64U << 10U> block_ = {};
  std::string line_;
  bool too_long_ = false;
  std::uint64_t odd_ = 0;
  char* metrics_ = nullptr;
};

int Main(const std::vector<std::string>& words) {
  if (words.size() == 1 && words[0] == "--version") {
    const std::string text = "edgepack-sinks " EDGEPACK_VERSION "\n";
    return write(STDOUT_FILENO, text.data(), text.size()) < 0 ? kExitBug : kExitOk;
  }
  if (words.empty() || words.size() > 2) {
    throw UsageError("edgepack-sinks SINKS.JSON [METRICS]");
  }
  // It ends when its standard input does: until then what the app has to say comes.
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) (void)signal(number, SIG_IGN);
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  mosquitto_lib_init();
  const int metrics = words.size() == 2 ? std::atoi(words[1].c_str()) : -1;
  // Never freed: threads may still look at it when the program ends.
  auto* const distributor = new Distributor(LoadConfig(words[0]), metrics);
  distributor->Run();
  return kExitOk;
}

}  // namespace
}  // namespace edgepack::sinks

int main(int argc, char** argv) {
  int code = edgepack::kExitOk;
  try {
    code = edgepack::sinks::Main({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const edgepack::Error& error) {
    edgepack::sinks::Say("error: " + error.message +
                         (error.hint.empty() ? "" : "\n\nhint: " + error.hint));
    code = error.exit_code;
  }
  _exit(code);
}
