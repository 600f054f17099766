#include "stages.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string>
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
            std::vector<std::uint8_t>* pixels) {
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
  warp.Write(photo.data, photo.rows, photo.cols, photo.step, pixels);
  return {cv::Mat(warp.height, warp.width, CV_8UC3, pixels->data()), {}, warp};
}

bool IsFinite(const Box& box) {
  return std::isfinite(box.low.x) && std::isfinite(box.low.y) && std::isfinite(box.high.x) &&
         std::isfinite(box.high.y);
}

}  // namespace

Stages::Stage::Stage(const std::filesystem::path& folder, StageSpec looks_at)
    : spec(std::move(looks_at)),
      bundle(OpenBundle(folder)),
      tolerance(ReadTolerance(folder)),
      preprocessor(LoadPreprocessSpec(bundle.preprocess())),
      postprocessor(LoadPostprocessor(bundle.postprocess())),
      model(bundle.model()) {
  const std::vector<TensorInfo>& inputs = model.inputs();
  if (inputs.size() != 1 || inputs.front().name != preprocessor.spec().input ||
      inputs.front().shape.empty() || inputs.front().shape.front() != 1) {
    throw BundleError(folder.string() + ": the stage's model does not take one image");
  }
}

std::unique_ptr<Stages> Stages::Load(const BundleFolder& bundle, std::optional<int> top) {
  const std::filesystem::path specs = bundle.path / "stages.json";
  if (!std::filesystem::exists(specs)) return nullptr;
  std::vector<std::unique_ptr<Stage>> stages;
  for (StageSpec& spec : LoadStageSpecs(specs)) {
    const std::string number = std::to_string(stages.size() + 1);
    stages.push_back(std::make_unique<Stage>(bundle.path / "stages" / number, std::move(spec)));
    Stage& stage = *stages.back();
    stage.finder.emplace(stage.postprocessor, stage.bundle, top);
  }
  return std::unique_ptr<Stages>(new Stages(std::move(stages)));
}

Session Stages::Begin(Model first, ThreadPool* pool) {
  std::size_t bytes = first.arena_bytes();
  for (const auto& stage : stages_) bytes = std::max(bytes, stage->model.arena_bytes());
  const std::shared_ptr<const MemoryMap> arena = MakeArena(bytes);
  for (const auto& stage : stages_) {
    stage->session.emplace(stage->model, pool, arena);
    stage->input = stage->session->inputs().front();
  }
  // What a state holds stays until the next inference.
  const bool shares = first.states().empty();
  return Session(std::move(first), pool, shares ? arena : nullptr);
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

double Stages::LookAt(const cv::Mat& photo, const std::optional<std::filesystem::path>& crops,
                      const Found& all, Stage* stage, Found::Answer* answer) {
  const Crop crop = CutOut(photo, stage->spec, answer->box, all, &stage->straightened);
  ToInput(Decoded(crop.pixels), stage->preprocessor, stage->input, &stage->buffers);
  if (crops) {
    const std::string name = stage->spec.name + "." + std::to_string(answer->box) + ".npy";
    WriteNpy(*crops / name, stage->input.info->dtype, stage->input.info->shape, stage->input.data);
  }
  const Clock::time_point start = Clock::now();
  stage->session->Run();
  const double run_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  stage->finder->Find(stage->session->outputs(),
                      stage->preprocessor.GeometryOf(crop.pixels.rows, crop.pixels.cols),
                      &answer->found);
  Move(crop, &answer->found);
  return run_ms;
}

double Stages::Look(const cv::Mat& photo, const std::optional<std::filesystem::path>& crops,
                    Found* found) {
  if (!found->boxes) throw BundleError("stages.json: the first model gives no boxes");
  found->stages.resize(stages_.size());
  double all_ms = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = *stages_[i];
    Found::Stage& seen = found->stages[i];
    seen.name = stage.spec.name;
    seen.failed = 0;
    seen.run_ms = 0;
    Choose(stage.spec, *found, &seen);
    for (std::size_t at = 0; at < seen.count; ++at) {
      Found::Answer& answer = seen.answers[at];
      answer.error.clear();
      try {
        seen.run_ms += LookAt(photo, crops, *found, &stage, &answer);
      } catch (const Error& error) {
        if (error.exit_code == kExitBundle || error.kind == "usage") throw;
        answer.error = error.message;
        ++seen.failed;
      }
    }
    all_ms += seen.run_ms;
  }
  return all_ms;
}

}  // namespace edgepack
