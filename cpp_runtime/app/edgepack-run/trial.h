#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "common/fd.h"
#include "options.h"
#include "split.h"

namespace cv {
class Mat;
}  // namespace cv

namespace edgepack {

/// A picture as it came, in memory that another process can be given.
struct SharedPicture {
  Fd memory;
  std::size_t bytes = 0;
  FrameFormat format = FrameFormat::kMjpeg;
  std::optional<ImageSize> size;
  std::string thumbnail;  ///< a small JPEG of it, if one is asked for
  bool split = false;     ///< the candidate is to answer it
};

/// The current release's side of a trial: hands over a share of its pictures, with its own answers,
/// to `edgepack-device trial run`, which has another release answer them, too.
///
/// A picture is handed over only if the other side has asked for one. Without a trial it looks once
/// a second, when a picture comes, whether one has begun. It never waits, but for the pictures of
/// an A/B test, which the candidate is to answer: a few times as long as the own answer took.
class TrialTap {
 public:
  /// Of the release in this folder; one that lies in no folder of releases has no trials. With
  /// `may_split` the candidate can be the one who answers.
  explicit TrialTap(const std::filesystem::path& release, bool may_split = false);

  /// For each picture, by the thread that answers them.
  void Look();
  /// Whether this picture is to be handed over. By the thread that has its bytes, which then calls
  /// `Share`, or `GiveUp` if it is of no use.
  [[nodiscard]] bool Picks();
  void GiveUp();
  /// A copy of the picture; nothing if there is no memory, or it is of a kind that cannot be handed
  /// over: of photos, JPEG alone.
  [[nodiscard]] std::optional<SharedPicture> Share(std::string_view bytes, FrameFormat format,
                                                   const std::optional<ImageSize>& size);
  [[nodiscard]] std::optional<SharedPicture> SharePhotoAt(const std::filesystem::path& path);
  [[nodiscard]] std::optional<SharedPicture> SharePhoto(std::string_view bytes);
  /// Whether the trial keeps small pictures; by whoever calls `Picks`, after it.
  [[nodiscard]] bool wants_thumbnail() const { return side_ > 0; }
  /// A small one of these pixels (CV_8UC3 in BGR), if that is asked for.
  void AddThumbnail(const cv::Mat& pixels, SharedPicture* picture) const;
  /// By the thread that answers: hands it over with the line that it got.
  void Give(const SharedPicture& picture, std::string_view line);
  /// For each picture, by the thread that answers: hands over `picture`, if there is one. Returns
  /// who is to be believed: `ours`, or the candidate, whose line replaces `line`; until the next.
  const Report& Answer(const std::optional<SharedPicture>& picture, const Report& ours,
                       std::string* line);
  /// Who answered, for /metrics.
  [[nodiscard]] const SplitCounts& counts() const { return counts_; }

 private:
  using Clock = std::chrono::steady_clock;

  void Connect();
  void HangUp();
  /// A request: the share of pictures that is wanted, the side of small ones, the share of all
  /// that the candidate answers, and its release; the last three may be left out.
  void ReadRequest(const char* text);
  /// Whether the candidate's line came into `reply_`, within `limit`.
  bool WaitForReply(std::chrono::milliseconds limit);

  std::string folder_;
  bool may_split_;
  Fd socket_;
  std::optional<Clock::time_point> looked_;
  std::atomic<bool> wanted_{false};
  double share_ = 0;          ///< of pictures; written before `wanted_` becomes true
  std::atomic<int> side_{0};  ///< of thumbnails; 0: there are none
  std::atomic<float> split_{0};
  bool for_split_ = false;  ///< the picture that was picked last
  bool used_ = false;       ///< the candidate answered the last one that was its own
  std::string release_;     ///< the candidate's
  std::string reply_;
  CandidateAnswer candidate_;
  SplitCounts counts_;
  std::minstd_rand random_;
};

}  // namespace edgepack
