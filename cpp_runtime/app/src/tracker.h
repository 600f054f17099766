#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "found.h"

namespace edgepack {

/// Tells which box of a frame is what was seen in the frames before: a plain tracker, of boxes that
/// move evenly and overlap with where they are expected. edgepack/postprocess/tracker.py is its
/// mirror, and says how. In constant memory once as many boxes as there may be have been seen.
class Tracker {
 public:
  /// What is missed in more than `most_missed` frames in a row is forgotten.
  explicit Tracker(int most_missed) : most_missed_(most_missed) {}
  /// From the next frame on.
  void SetMostMissed(int most_missed) { most_missed_ = most_missed; }

  /// Gives each box of the next frame the number of its track, from 1 on; none is given twice. A
  /// box that is too many gets none. Frames of another `opening` of the source continue no track.
  void See(std::int64_t opening, std::vector<Found::LabelledBox>* boxes);

  /// Whether a later frame may give this number again.
  [[nodiscard]] bool Follows(std::int64_t number) const;

  static constexpr std::size_t kMostTracks = 100;
  static constexpr int kMostMissed = 10000;

 private:
  using Sides = std::array<double, 4>;  ///< left, top, right, bottom

  struct Track {
    std::int64_t number = 0;
    std::size_t index = 0;  ///< the class
    Sides box = {};         ///< where it is expected
    Sides seen = {};        ///< where it was seen last
    Sides velocity = {};    ///< in a frame
    int missed = 0;
    bool moves = false;  ///< whether the velocity is known
    bool found = false;  ///< in this frame
  };
  struct Pair {
    double overlap = 0;
    std::size_t track = 0;
    std::size_t box = 0;
  };

  static Sides SidesOf(const Box& box);
  static double Overlap(const Sides& a, const Sides& b);
  void Match(std::vector<Found::LabelledBox>* boxes);
  static void Follow(const Sides& seen, Track* track);

  int most_missed_;
  std::int64_t opening_ = 0;
  std::int64_t last_ = 0;
  std::vector<Track> tracks_;
  std::vector<Pair> pairs_;
};

}  // namespace edgepack
