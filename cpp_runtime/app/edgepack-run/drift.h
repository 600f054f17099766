#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace edgepack {

/// What a window of pictures says, against the photos of the release.
struct DriftVerdict {
  enum class Level { kNone, kNotice, kAlarm };

  double index = 0;  ///< the population stability index
  double noise = 0;
  Level level = Level::kNone;
  double since = 0;  ///< when the level was none for the last time; 0 if it is
};

/// Counts in the same bins, of the photos and of a window; and the verdict on the last full one.
template <std::size_t kBins>
struct DriftCounts {
  std::array<std::int64_t, kBins> photos = {};
  std::array<std::int64_t, kBins> window = {};
  std::optional<DriftVerdict> verdict;
};

/// How far what the model sees is from what it saw in the photos of the release (monitor.json): the
/// population stability index over fixed bins, of one window of pictures after the other. All of it
/// has a fixed size.
///
/// With p and q the shares of a bin among the photos and in the window, the index is the sum of
/// (q - p) ln(q / p). Of two samples of one kind, of N and M pictures in B bins, it is not 0 but
/// spread as (1/N + 1/M) times chi-squared with B - 1 degrees of freedom (B. Yurdakul, "Statistical
/// Properties of Population Stability Index", 2018). What 999 of 1000 such windows stay below is
/// taken as noise, and only what is above it is compared with the thresholds.
class Drift {
 public:
  static constexpr std::size_t kScoreBins = 20;
  static constexpr std::size_t kBrightnessBins = 16;
  static constexpr std::size_t kMostClasses = 20;

  /// What one picture shows; nothing if nothing was found.
  struct Seen {
    double brightness = 0;
    std::optional<double> score;
    std::optional<std::size_t> index;  ///< of the best class
  };

  /// Throws BundleError.
  static Drift Load(const std::filesystem::path& path);

  /// `now` in seconds since 1970.
  void Add(const Seen& seen, double now);
  /// The series, with this label of the release.
  [[nodiscard]] std::string Text(const std::string& labels) const;

  struct Signal {
    const char* name;
    std::optional<DriftVerdict> verdict;
  };
  /// Of each that is compared.
  [[nodiscard]] std::vector<Signal> Signals() const;

 private:
  static constexpr std::size_t kClassBins = kMostClasses + 2;  // others, and nothing found

  template <std::size_t kBins>
  void Judge(DriftCounts<kBins>* counts, double now) const;

  std::int64_t window_ = 0;
  double interval_s_ = 0;
  double notice_ = 0;
  double alarm_ = 0;
  std::int64_t pictures_ = 0;  // in the window
  double last_ = 0;            // when the last one was taken
  DriftCounts<kBrightnessBins> brightness_;
  std::optional<DriftCounts<kScoreBins>> scores_;
  std::optional<DriftCounts<kClassBins>> classes_;
  std::array<std::int64_t, kMostClasses> class_indices_ = {};  // -1: none
};

/// The index of counts in `bins` bins, and its noise; those that are empty on both sides do not
/// count. To each count a half is added, so that an empty bin is not infinitely far.
struct Stability {
  double index = 0;
  double noise = 0;
};
Stability StabilityOf(const std::int64_t* photos, const std::int64_t* window, std::size_t bins);

}  // namespace edgepack
