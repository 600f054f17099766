#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <edgepack/errors.h>
#include <edgepack/tensor.h>

#include "bundle.h"
#include "common/metrics_text.h"
#include "drift.h"
#include "found.h"
#include "platform/opencv/decode.h"

namespace edgepack {

class SplitCounts;
struct Report;

/// Of a picture: its pixels, and how bright it is, from 0 to 1.
struct Light {
  std::int64_t pixels = 0;
  double brightness = 0;
};

/// The mean luma (BT.601) of 32 x 32 pixels spread evenly over a picture: of any size it costs the
/// same. edgepack/flow/monitor.py has the same sum.
Light LightOf(const Decoded& picture);

/// What the model of one release is given and says, as /metrics counts it: from any thread, in
/// constant memory. Of classes the first kMostClasses have series of their own, the rest is
/// "other". What the candidate of an A/B test answers is counted apart, of the last one.
class Sight {
 public:
  /// Reads the release in the bundle's manifest, and monitor.json if there is one. Throws
  /// BundleError.
  explicit Sight(const BundleFolder& bundle);

  /// A run of the model.
  void AddRun(double seconds);
  /// The tensors that somebody gave it.
  void AddTensors(const std::vector<TensorView>& inputs);
  /// A picture that this release answered, and what was found in it.
  void AddPicture(const Light& light, const Found& found);
  /// A picture, what this release found in it, and what was answered: maybe by a candidate, which
  /// `answer` names. Drift is about what this release finds.
  void AddPicture(const Light& light, const Found& own, const Report& answer);
  /// What could not be done, by the error's kind.
  void AddError(const Error& error);

  /// Who answered is told, too, from the moment that there is a candidate; `split` outlives it.
  void Follow(const SplitCounts* split) { split_ = split; }

  [[nodiscard]] std::string Text() const;

  static constexpr std::size_t kMostClasses = 20;

 private:
  static constexpr std::array<double, 13> kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                      0.25,  0.5,    1,     2.5,  5,     10};
  static constexpr std::array<double, 7> kMegapixels = {0.1, 0.3, 1, 2, 4, 8, 16};

  struct ClassCount {
    std::size_t index = 0;
    std::string label;
    std::int64_t count = 0;
  };

  struct StageCount {
    std::string name;
    std::int64_t boxes = 0;
    std::int64_t dropped = 0;
    std::int64_t failed = 0;
  };

  /// What a release answered, and about which pictures.
  struct Answers {
    std::int64_t pictures = 0;
    std::int64_t empty = 0;
    std::vector<ClassCount> classes;
    std::int64_t other_classes = 0;
    UnitHistogram<Drift::kScoreBins> scores;
    UnitHistogram<Drift::kBrightnessBins> brightness;
    std::array<std::int64_t, kMegapixels.size() + 1> sizes = {};
    double megapixels = 0;

    void Add(const Light& light, const Found& found);
    void CountClass(std::size_t index, const std::optional<std::string_view>& label);
  };

  void AddOwn(const Light& light, const Found& own);
  [[nodiscard]] std::string AnswersText() const;

  std::string info_;  // labels of the release
  std::string model_;
  std::string release_;
  std::string labels_;  // both: the model's name and the release's id
  const SplitCounts* split_ = nullptr;
  std::int64_t restarts_ = 0;
  double started_ = 0;
  mutable std::mutex mutex_;  // of what follows
  std::array<std::int64_t, kSeconds.size() + 1> runs_ = {};
  double run_seconds_ = 0;
  std::array<std::int64_t, 5> errors_ = {};
  std::int64_t not_finite_ = 0;
  std::vector<StageCount> stages_;
  Answers own_;
  std::string candidate_;  // whose are
  Answers theirs_;
  std::optional<Drift> drift_;
};

}  // namespace edgepack
