#include "health.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "clock.h"
#include "common/json.h"
#include "compatible.h"
#include "error.h"
#include "faults.h"
#include "layout.h"
#include "process.h"

namespace edgepack::device {
namespace {

constexpr std::size_t kMaxExpectedBytes = std::size_t{64} << 10U;
// With a limit of latency, the median of these counts, not the first run on cold caches.
constexpr const char* kRuns = "5";

std::string Number(double value) {
  std::array<char, 32> text;  // NOLINT(*-member-init): filled by the call
  return {text.data(),
          static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.3g", value))};
}

/// So that the same number is read again.
std::string Exactly(double value) {
  std::array<char, 32> text;  // NOLINT(*-member-init): filled by the call
  return {text.data(),
          static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.17g", value))};
}

Error Failed(std::string message, std::string hint = {}) {
  return {kExitMismatch, "health-failed", std::move(message), std::move(hint)};
}

/// edgepack-run's JSON, which may follow other words, on one line.
std::string OneLine(const std::string& out) {
  std::string text = out.substr(std::min(out.find('{'), out.size()));
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string LastLines(const std::string& text) {
  std::string end = text.substr(text.size() - std::min<std::size_t>(text.size(), 400));
  while (!end.empty() && end.back() == '\n') end.pop_back();
  return end;
}

/// What edgepack-run itself says is wrong, or the end of its words.
std::string Complaint(const Ended& ended) {
  try {
    const JsonDocument answer(OneLine(ended.out), "edgepack-run's answer", "health-failed");
    return answer.Root().Object("error").String("message");
  } catch (const Error&) {
    return LastLines(ended.err.empty() ? ended.out : ended.err);
  }
}

/// A run of edgepack-run that ended well, as its JSON; or that says that outputs differ.
class Runner {
 public:
  Runner(std::string folder, double timeout_s)
      : folder_(std::move(folder)), deadline_(Monotonic() + timeout_s), timeout_s_(timeout_s) {}

  std::string Run(const std::vector<std::string>& words) {
    std::vector<std::string> all = {folder_ + "/" + kApp};
    all.insert(all.end(), words.begin(), words.end());
    all.emplace_back("--json");
    const Ended ended = RunProgram(all, std::max(0.0, deadline_ - Monotonic()));
    if (ended.timed_out) {
      throw Error(kExitTimeLimit, "health-timeout",
                  "the health check took more than " + Number(timeout_s_) + " s",
                  "raise health.timeout_s, if the model is that slow on this board");
    }
    if (ended.signal != 0) {
      throw Error(kExitMismatch, "health-crashed",
                  std::string("edgepack-run crashed: ") + strsignal(ended.signal),
                  ended.signal == SIGKILL ? "probably for want of memory (free -m)" : "");
    }
    if (ended.exit_code == 127) {
      throw Error(kExitMismatch, "health-crashed", "edgepack-run " + Complaint(ended),
                  "is its file system mounted noexec? is its loader there?");
    }
    if (ended.exit_code != 0 && ended.exit_code != kExitMismatch) {
      throw Failed("edgepack-run failed with exit code " + std::to_string(ended.exit_code) + ": " +
                   Complaint(ended));
    }
    max_rss_bytes_ = std::max(max_rss_bytes_, ended.max_rss_bytes);
    return OneLine(ended.out);
  }
  /// As the kernel counted.
  [[nodiscard]] std::uint64_t max_rss_bytes() const { return max_rss_bytes_; }

 private:
  std::string folder_;
  double deadline_;
  double timeout_s_;
  std::uint64_t max_rss_bytes_ = 0;
};

JsonDocument Parse(const std::string& answer) {
  return {answer, "edgepack-run's answer", "health-failed"};
}

void CheckGolden(const std::string& answer, Health* health) {
  const JsonDocument document = Parse(answer);
  JsonObject root = document.Root();
  JsonObject expected = root.Object("expected");
  const std::optional<double> error = expected.OptionalNumber("max_abs_error");
  health->max_abs_reference = expected.Number("max_abs_reference");
  health->tolerance = expected.Number("tolerance");
  health->latency_ms = root.Number("run_ms");
  if (!error) throw Failed("the outputs are no numbers, or not as many as they should be");
  health->max_abs_error = *error;
  if (!(*error <= health->tolerance * health->max_abs_reference)) {
    throw Failed("outputs differ by " + Number(*error) + ", allowed are " +
                 Number(health->tolerance) + " of " + Number(health->max_abs_reference));
  }
}

void CheckPhoto(const std::string& answer, const Folder& release, Health* health) {
  const JsonDocument document = Parse(answer);
  JsonObject root = document.Root();
  JsonWriter top;
  top.BeginArray();
  std::optional<std::int64_t> best;
  if (root.HasValue("top")) {
    for (JsonObject& one : root.Objects("top")) {
      const std::int64_t index = one.Int("index");
      if (!best) best = index;
      top.BeginObject().Key("index").Int(index);
      if (one.HasValue("label")) top.Key("label").String(one.String("label"));
      top.Key("score").Number(one.OptionalNumber("score").value_or(0)).EndObject();
    }
  }
  health->top = top.EndArray().text();
  const std::optional<File> file = release.Find(kExpected);
  if (!file) return;
  const JsonDocument expected_document(file->ReadAll(kMaxExpectedBytes), kExpected, "damaged");
  JsonObject expected = expected_document.Root();
  const std::int64_t index = expected.Int("index");
  if (best != index) {
    throw Failed("the golden photo is taken for class " +
                 (best ? std::to_string(*best) : std::string("none")) + " instead of " +
                 std::to_string(index) + " (" + expected.String("label") + ")");
  }
}

/// The most memory that the app says it had; the kernel's figure counts an emulator, too.
std::uint64_t RssOf(const std::string& answer) {
  const JsonDocument document = Parse(answer);
  JsonObject root = document.Root();
  return root.HasValue("rss_peak_bytes") ? root.Size("rss_peak_bytes") : 0;
}

void CheckBudgets(const Manifest& manifest, const Health& health) {
  if (manifest.max_latency_ms && health.latency_ms > *manifest.max_latency_ms) {
    throw Error(kExitMismatch, "over-latency",
                "one run takes " + Number(health.latency_ms) + " ms, allowed are " +
                    Number(*manifest.max_latency_ms) + " ms",
                "health.max_latency_ms is the limit");
  }
  if (manifest.max_memory_mb && health.max_rss_mb > *manifest.max_memory_mb) {
    throw Error(kExitMismatch, "over-memory",
                "it takes " + Number(health.max_rss_mb) + " MB of memory, allowed are " +
                    Number(*manifest.max_memory_mb) + " MB",
                "health.max_memory_mb is the limit");
  }
}

std::string PhotoOf(const Manifest& manifest) {
  for (const FileEntry& entry : manifest.files) {
    if (entry.path == "golden/image.png" || entry.path == "golden/image.jpg") return entry.path;
  }
  return "";
}

}  // namespace

Health CheckHealth(const Releases& releases, const std::string& release, const std::string& now) {
  const Manifest manifest = releases.Load(release).manifest;
  Health health;
  health.at = now;
  health.system = SystemName();
  Runner runner(releases.PathOf(release), manifest.timeout_s);
  // As exact as the model itself is, by the manifest: others than the app's default.
  std::vector<std::string> golden = {"--golden", "--tolerance", Exactly(manifest.tolerance)};
  if (manifest.max_latency_ms) golden.insert(golden.end(), {"--warmup", "1", "--bench", kRuns});
  Step("health.golden");
  health.golden = runner.Run(golden);
  CheckGolden(health.golden, &health);
  std::uint64_t rss_bytes = RssOf(health.golden);
  if (const std::string photo = PhotoOf(manifest); !photo.empty()) {
    Step("health.photo");
    health.photo = runner.Run({"--image", releases.PathOf(release) + "/" + photo});
    CheckPhoto(health.photo, releases.Open(release), &health);
    rss_bytes = std::max(rss_bytes, RssOf(health.photo));
  }
  if (rss_bytes == 0) rss_bytes = runner.max_rss_bytes();
  health.max_rss_mb = static_cast<double>(rss_bytes) / 1e6;
  Step("health.limits");
  CheckBudgets(manifest, health);
  return health;
}

}  // namespace edgepack::device
