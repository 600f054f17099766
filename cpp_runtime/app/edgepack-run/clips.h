#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <opencv2/core/mat.hpp>

#include "slot.h"
#include "worker.h"

namespace edgepack {

/// What a rule of sinks.json keeps of the pictures around the moment when it comes true.
struct ClipRule {
  std::string name;
  std::filesystem::path folder;
  double before_s = 0;
  double after_s = 0;
  double frames_per_s = 0;
  std::uint64_t bytes = 0;  ///< of all its clips; the oldest are deleted
};

/// Those of a bundle, none if no rule keeps pictures. Throws Error.
std::vector<ClipRule> ReadClipRules(const std::filesystem::path& bundle);

/// Keeps the last seconds of a live source in memory, as JPEG, and writes them to a folder with the
/// seconds that follow when it is asked to: FOLDER/RULE-TIME/TIME.jpg, times in UTC. A clip that is
/// being written has a dot before its name. Encoding and writing have a thread of their own; what
/// cannot be written costs the rest of that clip, is counted, and nothing else.
class Clips {
 public:
  /// Clips that a power cut left half written keep what they have. `err` outlives it.
  Clips(std::vector<ClipRule> rules, std::ostream& err);
  /// Ends the clips that are being written.
  ~Clips();
  Clips(const Clips&) = delete;
  Clips& operator=(const Clips&) = delete;
  Clips(Clips&&) = delete;
  Clips& operator=(Clips&&) = delete;

  /// Whether it is time for another picture, from any thread.
  [[nodiscard]] bool due() const;
  /// A picture (CV_8UC3), which is copied if one is due.
  void Show(const cv::Mat& image);
  /// The rule of this name has come true. One that is being written goes on for longer.
  void Save(std::string_view rule);
  /// For Prometheus, from any thread.
  [[nodiscard]] std::string Metrics() const;

  /// JPEGs that are kept in memory, at most; two are kept whatever their size.
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20U;
  static constexpr double kMostSeconds = 120;

 private:
  using Clock = std::chrono::steady_clock;
  using Wall = std::chrono::system_clock;
  struct Picture {
    cv::Mat image;
    Clock::time_point seen;
    Wall::time_point time;
  };
  struct Kept {
    std::string jpeg;
    Clock::time_point seen;
    Wall::time_point time;
  };
  struct Clip {
    const ClipRule* rule;
    std::string name;
    Clock::time_point until;
    Clock::time_point most;
    int pictures = 0;
    std::uint64_t bytes = 0;
    bool failed = false;
  };

  void Run();
  void Keep(const Picture& picture);
  void Begin(const ClipRule& rule);
  void Add(const Kept& kept, Clip* clip);
  void End(const Clip& clip);
  static void Prune(const ClipRule& rule);
  void Fail(const ClipRule& rule, const std::string& why);
  [[nodiscard]] static std::filesystem::path Draft(const Clip& clip);

  const std::vector<ClipRule> rules_;
  std::ostream& err_;
  const Clock::duration interval_;
  const Clock::duration before_;
  std::atomic<Clock::rep> next_{0};
  std::mutex mutex_;
  std::vector<const ClipRule*> asked_;
  std::deque<Kept> kept_;
  std::size_t kept_bytes_ = 0;
  std::vector<Clip> clips_;
  std::atomic<std::uint64_t> written_{0};
  std::atomic<std::uint64_t> failures_{0};
  Slot<Picture> shown_{true};
  Worker worker_;
};

}  // namespace edgepack
