#include "stages.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string>
#include <system_error>
#include <utility>

#include <edgepack/errors.h>
#include <edgepack/npy.h>
#include <opencv2/core.hpp>

#include "bundle_json.h"
#include "platform/opencv/decode.h"
#include "platform/opencv/to_input.h"

namespace edgepack {
namespace {

using Clock = std::chrono::steady_clock;

/// Of a stage's own golden output.
double ReadTolerance(const std::filesystem::path& folder) {
  const JsonDocument document = ReadBundleJson(folder / "manifest.json");
  JsonObject root = document.Root();
  const double tolerance = root.Number("tolerance");
  if (!(tolerance > 0 && tolerance < 1)) root.Fail("tolerance", "is not between 0 and 1");
  return tolerance;
}

std::optional<Postprocessor> LoadPostprocessor(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  PostprocessSpec spec = LoadPostprocessSpec(path);
  if (spec.instances() || spec.kind == PostprocessSpec::Kind::kSegmentation) {
    throw BundleError(path.string() + ": a stage gives no masks");
  }
  return Postprocessor(std::move(spec));
}

/// Whether two models are of the same files: on a device equal files of a release are one.
bool AreSame(const std::filesystem::path& one, const std::filesystem::path& other) {
  constexpr std::array<const char*, 3> kFiles = {"graph.json", "params.bin", "model.so"};
  return std::all_of(kFiles.begin(), kFiles.end(), [&](const char* name) {
    std::error_code missing;
    return std::filesystem::equivalent(one / name, other / name, missing);
  });
}

/// Where a crop comes from.
struct Crop {
  cv::Mat pixels;
  Point corner;              ///< of an upright one
  std::optional<Warp> warp;  ///< of one that is straightened

  [[nodiscard]] Point Source(Point point) const {
    return warp ? warp->Source(point) : Point{point.x + corner.x, point.y + corner.y};
  }
};

/// The box around a box of the crop.
void MoveBox(const Crop& crop, Box* box) {
  const std::array<Point, 4> corners = {
      crop.Source(box->low), crop.Source({box->high.x, box->low.y}), crop.Source(box->high),
      crop.Source({box->low.x, box->high.y})};
  box->low = box->high = corners[0];
  for (const Point& corner : corners) {
    box->low = {std::min(box->low.x, corner.x), std::min(box->low.y, corner.y)};
    box->high = {std::max(box->high.x, corner.x), std::max(box->high.y, corner.y)};
  }
  for (Point& point : box->points) point = crop.Source(point);
}

/// From the pixels of a crop to those of the photo.
void Move(const Crop& crop, Found* found) {
  if (found->boxes) {
    for (Found::LabelledBox& one : *found->boxes) MoveBox(crop, &one.box);
  }
  if (found->keypoints) {
    for (Found::LabelledMark& one : *found->keypoints) {
      one.mark.point = crop.Source(one.mark.point);
    }
  }
}

/// Whether the stage that decides it says that the box stands upside down.
bool IsTurned(const StageSpec::Turn& turn, std::size_t box, const Found& all) {
  const Found::Stage& seen = all.stages[turn.stage];
  for (std::size_t i = 0; i < seen.count; ++i) {
    const Found::Answer& answer = seen.answers[i];
    if (answer.box != box || !answer.error.empty() || answer.found.top.empty()) continue;
    const Score& best = answer.found.top.front().score;
    return best.index == turn.index && best.score >= turn.score;
  }
  return false;
}

Crop CutOut(const cv::Mat& photo, const StageSpec& spec, std::size_t number, const Found& all,
            Straightened* straightened) {
  const Box& box = (*all.boxes)[number].box;
  if (spec.align == StageSpec::Align::kBox) {
    const PixelBox crop = CropOf(box.low, box.high, spec.padding, photo.rows, photo.cols);
    return {photo(cv::Rect(crop.left, crop.top, crop.width, crop.height)),
            {static_cast<double>(crop.left), static_cast<double>(crop.top)},
            std::nullopt};
  }
  const Warp warp = spec.align == StageSpec::Align::kFace
                        ? WarpByFace(box.points, spec.side, spec.padding)
                        : WarpByCorners(box.points, spec.padding, spec.tall,
                                        spec.turn && IsTurned(*spec.turn, number, all));
  if (!straightened->warp || !(*straightened->warp == warp)) {
    straightened->warp.reset();
    warp.Write(photo.data, photo.rows, photo.cols, photo.step, &straightened->pixels);
    straightened->warp = warp;
  }
  return {cv::Mat(warp.height, warp.width, CV_8UC3, straightened->pixels.data()), {}, warp};
}

bool IsFinite(const Box& box) {
  return std::isfinite(box.low.x) && std::isfinite(box.low.y) && std::isfinite(box.high.x) &&
         std::isfinite(box.high.y);
}

}  // namespace

Stages::Stage::Stage(BundleFolder folder, StageSpec looks_at, Model shared)
    : spec(std::move(looks_at)),
      bundle(std::move(folder)),
      tolerance(ReadTolerance(bundle.path)),
      preprocessor(LoadPreprocessSpec(bundle.preprocess())),
      postprocessor(LoadPostprocessor(bundle.postprocess())),
      model(std::move(shared)) {
  const std::vector<std::size_t> given = InputsBesides(model.states(), model.inputs().size());
  const TensorInfo* const image = given.size() == 1 ? &model.inputs()[given.front()] : nullptr;
  if (image == nullptr || image->name != preprocessor.spec().input || image->shape.empty() ||
      image->shape.front() != 1) {
    throw BundleError(bundle.path.string() + ": the stage's model does not take one image");
  }
  input = given.front();
}

std::unique_ptr<Stages> Stages::Load(const BundleFolder& bundle, std::optional<int> top) {
  const std::filesystem::path specs = bundle.path / "stages.json";
  if (!std::filesystem::exists(specs)) return nullptr;
  std::vector<std::unique_ptr<Stage>> stages;
  std::size_t params_bytes = 0;
  for (StageSpec& spec : LoadStageSpecs(specs)) {
    BundleFolder own = OpenBundle(bundle.path / "stages" / std::to_string(stages.size() + 1));
    const auto same = std::find_if(stages.begin(), stages.end(), [&](const auto& stage) {
      return AreSame(stage->bundle.model(), own.model());
    });
    Model model = same != stages.end() ? (*same)->model : Model(own.model());
    if (same == stages.end()) params_bytes += model.params_bytes();
    stages.push_back(std::make_unique<Stage>(std::move(own), std::move(spec), std::move(model)));
    Stage& stage = *stages.back();
    stage.finder.emplace(stage.postprocessor, stage.bundle, top);
  }
  return std::unique_ptr<Stages>(new Stages(std::move(stages), params_bytes));
}

Session Stages::Begin(Model first, ThreadPool* pool) {
  std::size_t theirs = 0;
  for (const auto& stage : stages_) theirs = std::max(theirs, stage->model.arena_bytes());
  arena_ = MakeArena(std::max(theirs, first.arena_bytes()));
  for (const auto& stage : stages_) {
    stage->session.emplace(stage->model, pool, arena_);
  }
  // What a state holds stays until the next inference; those of stages are brought to each box.
  const bool shares = first.states().empty();
  // A GPU's driver may have pinned the pages of an arena: those stay.
  const bool on_cpu = !first.processor() &&
                      std::all_of(stages_.begin(), stages_.end(),
                                  [](const auto& stage) { return !stage->model.processor(); });
  spare_offset_ = theirs;
  if (shares && on_cpu) {
    // As much as makes the whole no larger while stages look than while the first model runs.
    const std::size_t more = params_bytes_ - std::min(params_bytes_, first.params_bytes());
    spare_bytes_ = std::min(arena_->size() - theirs, more);
  }
  first_ = first;
  return Session(std::move(first), pool, shares ? arena_ : nullptr);
}

void Stages::MakeRoom() const {
  if (!first_) return;
  first_->DropParams();
  arena_->Drop(spare_offset_, spare_bytes_);
}

void Stages::LeaveRoom() const {
  for (const auto& stage : stages_) stage->model.DropParams();
}

void Stages::Choose(const StageSpec& spec, const Found& found, Found::Stage* stage) {
  const std::vector<Found::LabelledBox>& boxes = *found.boxes;
  chosen_.clear();
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const std::size_t index = boxes[i].box.found.index;
    const bool is_wanted =
        spec.classes.empty() ||
        std::find(spec.classes.begin(), spec.classes.end(), index) != spec.classes.end();
    if (is_wanted && IsFinite(boxes[i].box)) chosen_.push_back(i);
  }
  const std::size_t count = std::min(chosen_.size(), spec.most);
  stage->dropped = chosen_.size() - count;
  // Equal ones by their order.
  std::sort(chosen_.begin(), chosen_.end(), [&](std::size_t a, std::size_t b) {
    const double first = boxes[a].box.found.score;
    const double second = boxes[b].box.found.score;
    return first != second ? first > second : a < b;
  });
  chosen_.resize(count);
  std::sort(chosen_.begin(), chosen_.end());
  if (stage->answers.size() < count) stage->answers.resize(count);
  for (std::size_t i = 0; i < count; ++i) stage->answers[i].box = chosen_[i];
  stage->count = count;
}

void Stages::BringStates(std::int64_t track, Stage* stage) {
  const std::vector<ModelState>& states = stage->model.states();
  if (states.empty()) return;
  const auto known = std::find_if(stage->kept.begin(), stage->kept.end(), [=](const auto& kept) {
    return track != 0 && kept.track == track;
  });
  if (known == stage->kept.end()) {
    stage->session->Reset();
    return;
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    const TensorView& state = stage->session->inputs()[states[i].input];
    std::copy(known->states[i].begin(), known->states[i].end(), static_cast<char*>(state.data));
  }
}

void Stages::KeepStates(std::int64_t track, Stage* stage) const {
  const std::vector<ModelState>& states = stage->model.states();
  if (states.empty() || track == 0 || tracker_ == nullptr) return;
  std::vector<TrackStates>& all = stage->kept;
  auto kept = std::find_if(all.begin(), all.end(),
                           [=](const TrackStates& one) { return one.track == track; });
  if (kept == all.end()) {  // in the memory of one that ended
    kept = std::find_if(all.begin(), all.end(),
                        [&](const TrackStates& one) { return !tracker_->Follows(one.track); });
  }
  if (kept == all.end()) kept = all.insert(kept, TrackStates());
  kept->track = track;
  kept->states.resize(states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    const TensorView& state = stage->session->inputs()[states[i].input];
    const char* const data = static_cast<const char*>(state.data);
    kept->states[i].assign(data, data + state.info->bytes);
  }
}

void Stages::LookAt(const cv::Mat& photo, const std::optional<std::filesystem::path>& crops,
                    const Found& all, Stage* stage, Found::Answer* answer, Found::Stage* seen) {
  answer->error.clear();
  try {
    const Crop crop = CutOut(photo, stage->spec, answer->box, all, &straightened_);
    const TensorView& input = stage->session->inputs()[stage->input];
    ToInput(Decoded(crop.pixels), stage->preprocessor, input, &stage->buffers);
    if (crops) {
      const std::string name = stage->spec.name + "." + std::to_string(answer->box) + ".npy";
      WriteNpy(*crops / name, input.info->dtype, input.info->shape, input.data);
    }
    const std::int64_t track = (*all.boxes)[answer->box].track;
    BringStates(track, stage);
    const Clock::time_point start = Clock::now();
    stage->session->Run();
    seen->run_ms += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    stage->finder->Find(stage->session->outputs(),
                        stage->preprocessor.GeometryOf(crop.pixels.rows, crop.pixels.cols),
                        &answer->found);
    KeepStates(track, stage);
    Move(crop, &answer->found);
  } catch (const Error& error) {
    if (error.exit_code == kExitBundle || error.kind == "usage") throw;
    answer->error = error.message;
    ++seen->failed;
  }
}

double Stages::Look(const cv::Mat& photo, const std::optional<std::filesystem::path>& crops,
                    Found* found) {
  if (!found->boxes) throw BundleError("stages.json: the first model gives no boxes");
  found->stages.resize(stages_.size());
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Found::Stage& seen = found->stages[i];
    seen.name = stages_[i]->spec.name;
    seen.failed = 0;
    seen.run_ms = 0;
    Choose(stages_[i]->spec, *found, &seen);
  }
  next_.assign(stages_.size(), 0);
  straightened_.warp.reset();
  const bool looks = std::any_of(found->stages.begin(), found->stages.end(),
                                 [](const Found::Stage& seen) { return seen.count > 0; });
  if (looks) MakeRoom();
  // Box by box: stages that straighten one alike share its pixels.
  for (std::size_t box = 0; box < found->boxes->size(); ++box) {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      Found::Stage& seen = found->stages[i];
      if (next_[i] == seen.count || seen.answers[next_[i]].box != box) continue;
      LookAt(photo, crops, *found, stages_[i].get(), &seen.answers[next_[i]++], &seen);
    }
  }
  if (looks) LeaveRoom();
  double all_ms = 0;
  for (const Found::Stage& seen : found->stages) all_ms += seen.run_ms;
  return all_ms;
}

}  // namespace edgepack
