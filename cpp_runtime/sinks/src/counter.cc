#include "counter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/json.h"

namespace edgepack::sinks {
namespace {

/// What is missed for so long is not in view.
constexpr double kViewS = 2;
/// A track that is missed for so long has ended, whatever --track says.
constexpr double kForgetS = 60;
/// A source that says nothing for so long is off.
constexpr double kSilentS = 10;
/// Boxes tremble: within this share of a box's shorter side from the line it is on neither side.
constexpr double kMargin = 0.05;

using Point = std::array<double, 2>;

/// Twice the area of a triangle: positive if `point` is to the right of the way from `from` to
/// `to`, as one sees it in a picture, where y grows downwards.
double Turn(const Point& from, const Point& to, const Point& point) {
  return (to[0] - from[0]) * (point[1] - from[1]) - (to[1] - from[1]) * (point[0] - from[0]);
}

}  // namespace

Counter::Seen* Counter::Find(double now, std::int64_t track) {
  const auto known = std::find_if(tracks_.begin(), tracks_.end(),
                                  [&](const Seen& seen) { return seen.track == track; });
  if (known != tracks_.end()) return &*known;
  Seen seen;
  seen.track = track;
  seen.since = now;
  if (tracks_.size() < kMostTracks) return &tracks_.emplace_back(seen);
  auto oldest = std::min_element(tracks_.begin(), tracks_.end(),
                                 [](const Seen& a, const Seen& b) { return a.last < b.last; });
  *oldest = seen;
  return &*oldest;
}

void Counter::Place(const Detection& one, Seen* seen) {
  const auto& [left, top, right, bottom] = *one.box;
  const Point point = {(left + right) / 2, config_.is_foot ? bottom : (top + bottom) / 2};
  const auto& [ax, ay, bx, by] = *config_.line;
  const Point a = {ax, ay};
  const Point b = {bx, by};
  const double side = Turn(a, b, point);
  const double margin = kMargin * std::min(right - left, bottom - top);
  if (!(std::abs(side) > margin * std::hypot(bx - ax, by - ay))) return;
  const Point was = std::exchange(seen->place, point);
  if (!std::exchange(seen->placed, true)) return;
  const double side_before = Turn(a, b, was);
  if ((side > 0) == (side_before > 0)) return;
  // The line's ends are on both sides of the way that it went.
  if ((Turn(was, point, a) > 0) == (Turn(was, point, b) > 0)) return;
  ++(side > 0 ? crossed_in_ : crossed_out_);
}

void Counter::Forget(double now) {
  tracks_.erase(std::remove_if(tracks_.begin(), tracks_.end(),
                               [&](const Seen& seen) { return now - seen.last > kForgetS; }),
                tracks_.end());
}

void Counter::See(double now, const std::vector<Detection>& detections) {
  before_ = now;
  crossed_in_ = crossed_out_ = 0;
  std::int64_t fresh = 0;
  Forget(now);
  for (const Detection& one : detections) {
    if (one.track == 0 || one.label != config_.seen || !(one.score > config_.score)) continue;
    Seen* const seen = Find(now, one.track);
    seen->last = now;
    if (!seen->counted && now - seen->since >= config_.for_s) {
      seen->counted = true;
      ++fresh;
    }
    if (config_.line && one.box) Place(one, seen);
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  counts_.seen += fresh;
  counts_.in += crossed_in_;
  counts_.out += crossed_out_;
  counts_.in_view = std::count_if(tracks_.begin(), tracks_.end(), [&](const Seen& seen) {
    return seen.counted && now - seen.last <= kViewS;
  });
}

void Counter::Tick(double now) {
  if (now - before_ <= kSilentS) return;
  const std::lock_guard<std::mutex> guard(mutex_);
  counts_.in_view = 0;
}

Counter::Counts Counter::counts() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return counts_;
}

std::string Counter::Text(std::string memory) const {
  const Counts now = counts();
  JsonWriter json(std::move(memory));
  json.BeginObject().Key("in_view").Int(now.in_view).Key("seen").Int(now.seen);
  if (config_.line) json.Key("in").Int(now.in).Key("out").Int(now.out);
  return json.EndObject().Take();
}

std::string Counter::Metrics() const {
  const Counts now = counts();
  // A name has nothing to be quoted.
  const std::string label = "{counter=\"" + config_.name + "\"";
  std::string text = "edgepack_counter_in_view" + label + "} " + std::to_string(now.in_view) +
                     "\nedgepack_counter_seen_total" + label + "} " + std::to_string(now.seen) +
                     "\n";
  if (!config_.line) return text;
  for (const auto& [direction, count] : {std::pair("in", now.in), std::pair("out", now.out)}) {
    text += "edgepack_counter_crossings_total" + label + ",direction=\"" + direction + "\"} " +
            std::to_string(count) + "\n";
  }
  return text;
}

}  // namespace edgepack::sinks
