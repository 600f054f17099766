#include "tracker.h"

#include <algorithm>
#include <cmath>

namespace edgepack {
namespace {

/// Boxes that overlap by less are not of one thing: intersection over union.
constexpr double kLeastOverlap = 0.3;
/// What the last step counts for in a velocity.
constexpr double kNewest = 0.5;

}  // namespace

Tracker::Sides Tracker::SidesOf(const Box& box) {
  return {box.low.x, box.low.y, box.high.x, box.high.y};
}

double Tracker::Overlap(const Sides& a, const Sides& b) {
  const auto area = [](double left, double top, double right, double bottom) {
    return std::max(right - left, 0.0) * std::max(bottom - top, 0.0);
  };
  const double both =
      area(std::max(a[0], b[0]), std::max(a[1], b[1]), std::min(a[2], b[2]), std::min(a[3], b[3]));
  const double all = area(a[0], a[1], a[2], a[3]) + area(b[0], b[1], b[2], b[3]) - both;
  return all > 0 ? both / all : 0;
}

void Tracker::Follow(const Sides& seen, Track* track) {
  const double frames = track->missed + 1;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double step = (seen.at(i) - track->seen.at(i)) / frames;
    double& velocity = track->velocity.at(i);
    velocity = track->moves ? (1 - kNewest) * velocity + kNewest * step : step;
  }
  track->box = track->seen = seen;
  track->missed = 0;
  track->moves = track->found = true;
}

void Tracker::Match(std::vector<Found::LabelledBox>* boxes) {
  pairs_.clear();
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    for (std::size_t j = 0; j < boxes->size(); ++j) {
      const Box& box = (*boxes)[j].box;
      if (box.found.index != tracks_[i].index) continue;
      const double overlap = Overlap(tracks_[i].box, SidesOf(box));
      if (overlap >= kLeastOverlap) pairs_.push_back({overlap, i, j});
    }
  }
  std::sort(pairs_.begin(), pairs_.end(), [](const Pair& a, const Pair& b) {
    if (a.overlap != b.overlap) return a.overlap > b.overlap;
    return a.track != b.track ? a.track < b.track : a.box < b.box;
  });
  for (const Pair& pair : pairs_) {
    Track& track = tracks_[pair.track];
    Found::LabelledBox& box = (*boxes)[pair.box];
    if (track.found || box.track != 0) continue;
    Follow(SidesOf(box.box), &track);
    box.track = track.number;
  }
}

void Tracker::See(std::int64_t opening, std::vector<Found::LabelledBox>* boxes) {
  if (opening != opening_) tracks_.clear();
  opening_ = opening;
  for (Track& track : tracks_) {
    track.found = false;
    for (std::size_t i = 0; i < track.box.size(); ++i) track.box.at(i) += track.velocity.at(i);
  }
  for (Found::LabelledBox& box : *boxes) box.track = 0;
  Match(boxes);
  for (Track& track : tracks_) track.missed += track.found ? 0 : 1;
  tracks_.erase(std::remove_if(tracks_.begin(), tracks_.end(),
                               [&](const Track& track) { return track.missed > most_missed_; }),
                tracks_.end());
  for (Found::LabelledBox& box : *boxes) {
    const Sides sides = SidesOf(box.box);
    const bool is_finite =
        std::all_of(sides.begin(), sides.end(), [](double side) { return std::isfinite(side); });
    if (box.track != 0 || !is_finite || tracks_.size() == kMostTracks) continue;
    Track track;
    track.number = box.track = ++last_;
    track.index = box.box.found.index;
    track.box = track.seen = sides;
    tracks_.push_back(track);
  }
}

bool Tracker::Follows(std::int64_t number) const {
  return std::any_of(tracks_.begin(), tracks_.end(),
                     [=](const Track& track) { return track.number == number; });
}

}  // namespace edgepack
