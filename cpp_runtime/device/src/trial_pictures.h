#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

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
/// Removes those of the last trial below `root`.
void RemovePictures(const Folder& root);

}  // namespace edgepack::device
