#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <edgepack/model.h>
#include <edgepack/postprocessor.h>
#include <edgepack/preprocessor.h>
#include <edgepack/session.h>
#include <edgepack/thread_pool.h>

#include "bundle.h"
#include "found.h"
#include "platform/opencv/preprocess_buffers.h"
#include "stage_spec.h"
#include "tracker.h"
#include "warp.h"

namespace edgepack {

/// The pixels of the last crop that was not upright, which the next stage may want, too.
struct Straightened {
  std::optional<Warp> warp;  ///< none: not those of this photo
  std::vector<std::uint8_t> pixels;
};

/// The models of a bundle that look at the boxes of its first one: each lies in a folder of its
/// own, stages/1, stages/2 ..., which is laid out as a bundle. They run after each other, in one
/// arena with the first model; those whose files are the same ones are one model.
class Stages {
 public:
  /// What the states of a stage's model were after the last box of a track.
  struct TrackStates {
    std::int64_t track = 0;
    std::vector<std::vector<char>> states;
  };

  struct Stage {
    Stage(BundleFolder folder, StageSpec looks_at, Model shared);

    StageSpec spec;
    BundleFolder bundle;
    double tolerance = 0;  ///< of its golden output
    Preprocessor preprocessor;
    std::optional<Postprocessor> postprocessor;
    Model model;
    std::optional<Session> session;
    std::size_t input = 0;  ///< which of the model's is the image
    PreprocessBuffers buffers;
    std::optional<Finder> finder;
    std::vector<TrackStates> kept;  ///< of tracks, at most as many as a tracker follows
  };

  /// Those of a bundle; null if it has none. Throws BundleError.
  static std::unique_ptr<Stages> Load(const BundleFolder& bundle, std::optional<int> top);

  /// A session of the bundle's first model, and one for each stage, whose loops `pool` runs. To be
  /// called once, before what follows.
  Session Begin(Model first, ThreadPool* pool = &ThreadPool::Global());

  [[nodiscard]] const std::vector<std::unique_ptr<Stage>>& all() const { return stages_; }

  /// Has models with states keep them for each track of `tracker`, which outlives them. Without
  /// one, and for a box without a track, they are at each box what they are before the first run.
  void Follow(const Tracker* tracker) { tracker_ = tracker; }

  /// Has stages look at boxes of `found`, at each box one after the other. The outputs that it
  /// comes from were read before: the memory is shared. `photo` is all pixels of the picture
  /// (CV_8UC3). Of a crop that a stage does not take the answer is the error. The tensors of crops
  /// are written to `crops`, if that is a folder. Returns the milliseconds of all runs.
  double Look(const cv::Mat& photo, const std::optional<std::filesystem::path>& crops,
              Found* found);

 private:
  explicit Stages(std::vector<std::unique_ptr<Stage>> stages, std::size_t params_bytes)
      : stages_(std::move(stages)), params_bytes_(params_bytes) {}
  static void BringStates(std::int64_t track, Stage* stage);
  void KeepStates(std::int64_t track, Stage* stage) const;
  void Choose(const StageSpec& spec, const Found& found, Found::Stage* stage);
  /// Has a stage look at the box of an answer.
  void LookAt(const cv::Mat& photo, const std::optional<std::filesystem::path>& crops,
              const Found& all, Stage* stage, Found::Answer* answer, Found::Stage* seen);

  /// Makes room for the stages' parameters, and gives their memory back.
  void MakeRoom() const;
  void LeaveRoom() const;

  std::vector<std::unique_ptr<Stage>> stages_;
  std::size_t params_bytes_;  ///< of all models of stages
  std::optional<Model> first_;
  std::shared_ptr<const MemoryMap> arena_;
  std::size_t spare_offset_ = 0;  ///< of memory in the arena that is the first model's alone, of
  std::size_t spare_bytes_ = 0;   ///< which so much is given back while stages look
  const Tracker* tracker_ = nullptr;
  std::vector<std::size_t> chosen_;
  std::vector<std::size_t> next_;  ///< of each stage, the answer that is to be found next
  Straightened straightened_;
};

}  // namespace edgepack
