#include "found.h"

#include <utility>

#include "json_lists.h"
#include "postprocess/boxes.h"

namespace edgepack {
namespace {

constexpr int kDefaultTop = 5;

std::optional<std::string_view> LabelOf(const std::vector<std::string>& labels, std::size_t index) {
  if (index >= labels.size()) return std::nullopt;
  return labels[index];
}

void WriteTop(const Found::Labelled& top, JsonWriter* json) {
  WriteCount("index", top.score.index, &json->BeginObject());
  if (top.label) json->Key("label").String(*top.label);
  json->Key("score").Number(top.score.score).EndObject();
}

void WritePoint(Point point, JsonWriter* json) {
  json->BeginArray().Number(point.x).Number(point.y).EndArray();
}

/// What stages say of box number `index`.
void WriteAnswers(std::size_t index, const std::vector<Found::Stage>& stages, JsonWriter* json) {
  bool any = false;
  for (const Found::Stage& stage : stages) {
    for (std::size_t i = 0; i < stage.count; ++i) {
      const Found::Answer& answer = stage.answers[i];
      if (answer.box != index) continue;
      if (!any) json->Key("answers").BeginObject();
      any = true;
      json->Key(stage.name).BeginObject();
      if (answer.error.empty()) {
        WriteFound(answer.found, json);
      } else {
        json->Key("error").String(answer.error);
      }
      json->EndObject();
    }
  }
  if (any) json->EndObject();
}

void WriteStage(const Found::Stage& stage, JsonWriter* json) {
  json->BeginObject().Key("stage").String(stage.name);
  WriteCount("boxes", stage.count, json);
  WriteCount("dropped", stage.dropped, json);
  WriteCount("failed", stage.failed, json);
  json->Key("run_ms").Number(stage.run_ms).EndObject();
}

void WriteBox(const Found::LabelledBox& labelled, std::size_t index,
              const std::vector<Found::Stage>& stages, JsonWriter* json) {
  const Box& box = labelled.box;
  WriteCount("index", box.found.index, &json->BeginObject());
  if (labelled.label) json->Key("label").String(*labelled.label);
  json->Key("score").Number(box.found.score).Key("box").BeginArray();
  json->Number(box.low.x).Number(box.low.y).Number(box.high.x).Number(box.high.y).EndArray();
  if (labelled.track != 0) json->Key("track").Int(labelled.track);
  if (!box.points.empty()) {
    WriteList("points", box.points, json, [&](Point point) { WritePoint(point, json); });
  }
  if (box.mask.height != 0) {
    json->Key("mask").BeginObject().Key("size").BeginArray();
    json->Int(box.mask.height).Int(box.mask.width).EndArray();
    json->Key("counts").String(box.mask.counts).EndObject();
  }
  WriteAnswers(index, stages, json);
  json->EndObject();
}

void WriteMark(const Found::LabelledMark& labelled, JsonWriter* json) {
  WriteCount("index", labelled.mark.found.index, &json->BeginObject());
  if (labelled.label) json->Key("label").String(*labelled.label);
  json->Key("score").Number(labelled.mark.found.score).Key("point");
  WritePoint(labelled.mark.point, json);
  json->EndObject();
}

void WriteTensor(const Values& tensor, JsonWriter* json) {
  json->BeginObject().Key("name").String(tensor.name);
  WriteList("values", tensor.values, json, [&](double value) { json->Number(value); });
  json->EndObject();
}

void WriteArea(std::size_t index, const Area& area, const std::vector<std::string>& labels,
               JsonWriter* json) {
  WriteCount("index", index, &json->BeginObject());
  if (index < labels.size()) json->Key("label").String(labels[index]);
  json->Key("pixels").Int(area.pixels);
  WriteList("runs", area.runs, json, [&](std::int64_t run) { json->Int(run); });
  json->EndObject();
}

/// Boxes are swapped: those that were named before are memory for the next results.
void NameBoxes(const std::vector<std::string>& labels, std::vector<Box>* boxes,
               std::vector<Found::LabelledBox>* named) {
  const std::size_t count = boxes->size();
  for (std::size_t i = 0; i < count; ++i) {
    Box& box = (*boxes)[i];
    if (i == named->size()) named->emplace_back();
    (*named)[i].label = LabelOf(labels, box.found.index);
    (*named)[i].track = 0;
    std::swap((*named)[i].box, box);
  }
  while (named->size() > count) {
    boxes->push_back(std::move(named->back().box));
    named->pop_back();
  }
}

}  // namespace

void Name(const std::vector<std::string>& labels, Results* results, Found* found) {
  found->top.clear();
  for (const Score& score : results->top) {
    found->top.push_back({score, LabelOf(labels, score.index)});
  }
  if (results->boxes) {
    if (!found->boxes) found->boxes.emplace();
    NameBoxes(labels, &*results->boxes, &*found->boxes);
  }
  if (results->keypoints) {
    if (!found->keypoints) found->keypoints.emplace();
    found->keypoints->clear();
    for (const Mark& mark : *results->keypoints) {
      found->keypoints->push_back({mark, LabelOf(labels, mark.found.index)});
    }
  }
  found->tensors.swap(results->tensors);
  found->mask.swap(results->mask);
  if (found->mask) found->labels = labels;
  found->text.swap(results->text);
}

Finder::Finder(const std::optional<Postprocessor>& postprocessor, const BundleFolder& bundle,
               std::optional<int> top)
    : postprocessor_(postprocessor),
      bundle_(bundle),
      top_(top),
      buffers_(std::make_unique<PostprocessBuffers>()) {}

Finder::~Finder() = default;

void Finder::Find(const std::vector<TensorView>& outputs, const std::optional<Geometry>& geometry,
                  Found* found) {
  if (postprocessor_) {
    postprocessor_->Choose(outputs, &chosen_);
    postprocessor_->Run(chosen_, geometry, buffers_.get(), &results_);
  } else {
    const TensorView& output = outputs.front();
    const int count = top_.value_or(IsVector(output.info->shape) ? kDefaultTop : 0);
    FindTopScores(
        output, static_cast<std::size_t>(count),
        bundle_.softmax ? PostprocessSpec::Scores::kSoftmax : PostprocessSpec::Scores::kRaw,
        &results_.top);
  }
  Name(bundle_.labels, &results_, found);
}

void WriteFound(const Found& found, JsonWriter* json) {
  if (!found.top.empty()) {
    WriteList("top", found.top, json, [&](const auto& top) { WriteTop(top, json); });
  }
  if (found.boxes) {
    std::size_t index = 0;
    WriteList("boxes", *found.boxes, json,
              [&](const auto& box) { WriteBox(box, index++, found.stages, json); });
  }
  if (found.keypoints) {
    WriteList("keypoints", *found.keypoints, json,
              [&](const auto& mark) { WriteMark(mark, json); });
  }
  if (!found.tensors.empty()) {
    WriteList("tensors", found.tensors, json,
              [&](const Values& tensor) { WriteTensor(tensor, json); });
  }
  if (found.mask) {
    WriteList("areas", found.mask->areas, json,
              [&](const auto& area) { WriteArea(area.first, area.second, found.labels, json); });
  }
  if (found.text) {
    json->Key("text").BeginArray().BeginObject().Key("text").String(found.text->text);
    json->Key("score").Number(found.text->score).EndObject().EndArray();
  }
  if (!found.stages.empty()) {
    WriteList("stages", found.stages, json,
              [&](const Found::Stage& stage) { WriteStage(stage, json); });
  }
}

}  // namespace edgepack
