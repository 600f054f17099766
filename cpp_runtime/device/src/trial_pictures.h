#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "site.h"

namespace edgepack::device {

/// Of one trial.
inline constexpr std::int64_t kMostPictures = 100;
/// Of one picture, by which all of a trial are bounded.
inline constexpr std::size_t kMaxThumbnail = std::size_t{64} << 10U;
/// The longer side of one, which the app is asked for.
inline constexpr int kThumbnailSide = 320;

/// A picture about which the two releases disagree, with what they said.
struct Disagreement {
  std::string jpeg;
  std::string current;
  std::string candidate;
  double agreement = 0;
};

/// Writes trial/pictures/NUMBER.jpg, and the answers to NUMBER.json, for their owner alone; false
/// if the disk takes nothing, or that is no JPEG of at most `kMaxThumbnail` bytes. An answer that
/// is too long is left out.
bool KeepPicture(const Folder& trial, std::int64_t number, const Disagreement& what);
/// Of all pictures about which the two disagree those that stay: the worst, and of equally bad ones
/// each with the same chance.
class KeptPictures {
 public:
  /// `kept` of them are there already, from before an interruption; `most` may be.
  KeptPictures(const Folder& trial, std::int64_t kept, std::int64_t most, std::uint32_t seed);

  void Keep(const Disagreement& what);
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  /// Its agreement, and what chance gave it: the smallest stay.
  using Rank = std::pair<double, std::uint32_t>;

  Rank Draw(double agreement);

  Folder trial_;
  std::int64_t most_;
  std::uint32_t random_;
  std::int64_t count_;
  std::array<Rank, kMostPictures> ranks_ = {};
};

/// Removes those of the last trial below `root`.
void RemovePictures(const Folder& root);

}  // namespace edgepack::device
