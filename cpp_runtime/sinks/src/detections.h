#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"

namespace edgepack::sinks {

/// Something that a line of results names.
struct Detection {
  std::string label;
  double score = 0;
  std::int64_t track = 0;                    ///< of its box, if boxes are tracked
  std::optional<std::array<double, 4>> box;  ///< left, top, right, bottom
};

/// Reads what lines of edgepack-run name: boxes, points and classes, and what later models say of
/// boxes. Of what has no label the number is one. Its memory stays: a line like the one before
/// takes none.
class DetectionReader {
 public:
  /// What a line names, until the next call; null if the line is none of edgepack-run's.
  const std::vector<Detection>* Read(std::string_view line);

 private:
  /// The box that lists are of, if any.
  struct Whose {
    std::int64_t track = 0;
    std::optional<std::array<double, 4>> box;
  };

  static std::optional<Whose> ReadWhose(const JsonValue& object);
  bool ReadLists(bool answers, const Whose& whole, const JsonValue& from);
  bool ReadObject(bool answers, const Whose& whole, const JsonValue& object);
  Detection* Add();

  JsonLineReader reader_;
  std::vector<Detection> found_;
  std::vector<Detection> spare_;  ///< their strings are memory for those of the next lines
};

}  // namespace edgepack::sinks
