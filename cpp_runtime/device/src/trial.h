#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/json.h"
#include "site.h"

namespace edgepack::device {

/// When a trial ends, and what it takes to become the current release.
struct TrialRules {
  /// Of running time: what passes while nobody runs it does not count.
  double seconds = 7200;
  /// Of the current release's pictures that are handed over, if the candidate keeps up.
  double share = 0.1;
  /// Of all pictures that the candidate answers in the current release's place, at most `share`.
  double split = 0;
  /// Mean over the compared pictures.
  double min_agreement = 0.98;
  /// The candidate's time for its golden input over the current release's.
  double max_latency = 1.2;
  /// Of fewer compared pictures nothing can be said.
  std::int64_t min_pictures = 20;
  /// Small pictures about which the two disagree, that stay on the device.
  std::int64_t keep_disagreements = 0;

  /// Throws Error "usage" for numbers out of range.
  void Check() const;
  void Write(JsonWriter* json) const;
  static TrialRules Read(JsonObject* object);
};

/// state/trial.json: a release, the candidate, that answers the current release's pictures beside
/// it. Sums over all compared pictures, so that its size does not depend on their number.
struct Trial {
  std::string release;
  /// What was current when it began.
  std::string before;
  std::string by;
  std::string began_at;
  std::string ended_at;  // empty: it has not ended
  /// "running", "activating", "activated", "dropped" or "stopped".
  std::string phase = "running";
  /// Why it ended.
  std::string reason;
  TrialRules rules;
  double elapsed_s = 0;
  std::int64_t pictures = 0;
  double agreed = 0;
  std::int64_t differing = 0;
  std::int64_t incomparable = 0;
  /// Pictures that the candidate answered in the current release's place.
  std::int64_t answered = 0;
  /// Pictures in trial/pictures.
  std::int64_t kept = 0;
  std::int64_t crashes = 0;
  /// Of scores of what both found.
  std::int64_t scored = 0;
  double difference = 0;
  double largest_difference = 0;
  double current_ms = 0;
  double candidate_ms = 0;
  std::optional<double> latency_ratio;
  std::uint64_t peak_bytes = 0;

  [[nodiscard]] bool IsOver() const { return phase != "running" && phase != "activating"; }
  [[nodiscard]] std::optional<double> Agreement() const;
  /// As an object for programs, which `Read` reads again.
  void Write(JsonWriter* json) const;
  static Trial Read(JsonObject* object);
};

/// The last trial of a root folder; nothing if there was none, or its file is damaged.
std::optional<Trial> FindTrial(const Folder& root);
void SaveTrial(const Folder& root, const Trial& trial);

/// The right to run the trial of a root folder; it ends with the process.
class TrialLock {
 public:
  /// Nothing if somebody else has it.
  static std::optional<TrialLock> Take(const Folder& root);

 private:
  explicit TrialLock(File file) : file_(std::move(file)) {}
  File file_;
};

/// Verifies and tests `release`, notes its trial, and starts the process that runs it, which goes
/// on by itself. Whoever calls holds the lock. Throws Error "no-release", "usage" if it is current
/// or another trial runs, and what `CheckHealth` throws.
Health StartTrial(const Site& site, const Progress& progress, const std::string& release,
                  const TrialRules& rules, const std::string& by);
/// Starts the process of a trial that a reboot interrupted. Throws Error "no-trial".
void ResumeTrial(const Site& site);
/// Has the trial end without a decision, and waits for that. Whoever calls does not hold the lock.
/// Throws Error "no-trial" if none has begun, or it is over.
Trial StopTrial(const Site& site);

/// What `trial status` says. Throws Error "no-trial".
std::string TrialText(const Site& site);
std::string TrialJson(const Site& site);

/// Names below trial/.
inline constexpr char kTrial[] = "trial";
inline constexpr char kTrialSocket[] = "frames";
inline constexpr char kTrialStop[] = "stop";

}  // namespace edgepack::device
