#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "metrics.h"
#include "report.h"

namespace edgepack {

/// The longest line of a candidate that can be an answer.
inline constexpr std::size_t kMostLineBytes = std::size_t{64} << 10U;

/// Whether a candidate's answer can stand for one of this kind: classes, boxes, key points or text.
bool CanSplit(const Report& ours);

/// An answer of the candidate of a trial. It does not move: the labels of `report` lie in it.
struct CandidateAnswer {
  Report report;
  std::deque<std::string> labels;

  CandidateAnswer() = default;
  ~CandidateAnswer() = default;
  CandidateAnswer(const CandidateAnswer&) = delete;
  CandidateAnswer& operator=(const CandidateAnswer&) = delete;
  CandidateAnswer(CandidateAnswer&&) = delete;
  CandidateAnswer& operator=(CandidateAnswer&&) = delete;

  /// Reads the candidate's line, with what `ours` says of the picture: its name or number. The
  /// candidate may be anybody's: what is not known is left out, and numbers have bounds. Throws
  /// Error for what is no answer of the kind that `ours` is.
  void Read(std::string_view line, const Report& ours);
};

/// What a report says that it took: decoding, preprocessing and the model.
double TookMs(const Report& report);

/// Which of the two releases answered, as /metrics says it: from any thread.
class SplitCounts {
 public:
  /// Why the current release answered what was the candidate's.
  enum class Missed { kLate, kBusy, kFailed, kInvalid, kUnfit };

  /// From now on it is about this candidate; nothing if it was before.
  void Begin(const std::string& candidate);
  void AddOwn(double seconds);
  void AddCandidate(double seconds);
  void Add(Missed why);
  /// The last one; empty if there never was any.
  [[nodiscard]] std::string candidate() const;
  /// Nothing if there never was a candidate. Both are labels, as they stand in a series.
  [[nodiscard]] std::string Text(const std::string& model, const std::string& own) const;

 private:
  static constexpr std::array<const char*, 5> kKinds = {"late", "busy", "failed", "invalid",
                                                        "unfit"};

  mutable std::mutex mutex_;
  std::string candidate_;
  DurationHistogram own_;
  DurationHistogram theirs_;
  std::array<std::int64_t, kKinds.size()> missed_ = {};
};

}  // namespace edgepack
