#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <edgepack/postprocess_spec.h>

#include "bundle_json.h"
#include "words.h"

namespace edgepack {
namespace {

using Spec = PostprocessSpec;

// edgepack/postprocess has the same bounds.
constexpr std::int64_t kMostElements = 1000000;
constexpr std::int64_t kMostBoxes = 10000;
constexpr std::int64_t kMostBins = 64;
constexpr std::int64_t kMostPoints = 1000;
constexpr std::int64_t kMostMasks = 1024;
constexpr std::int64_t kMostInputSide = std::int64_t{1} << 20;
constexpr std::size_t kMostOutputs = 64;
constexpr std::size_t kMostAnchors = 1024;
constexpr double kMostAnchorSide = 1e6;
constexpr std::int64_t kMostBackground = 65535;
constexpr std::size_t kMostMaps = 64;
constexpr std::int64_t kMostCells = 65535;
constexpr std::int64_t kMostMapAnchors = 1024;
constexpr double kMostVariance = 1e3;
constexpr double kMostRatio = 10;
constexpr std::size_t kMostCharacters = 65535;
constexpr std::size_t kMostCharacterBytes = 64;
constexpr std::size_t kMostPeople = 10000;
constexpr std::size_t kMostVectors = 10000;
constexpr std::size_t kMostNameBytes = 64;
constexpr double kLengthError = 1e-3;

int ReadCount(const char* key, std::int64_t low, std::int64_t high, JsonObject* object) {
  return static_cast<int>(object->Int(key, low, high));
}

double ReadFraction(const char* key, JsonObject* object) {
  const double value = object->Number(key);
  if (!(value >= 0 && value <= 1)) object->Fail(key, "is not from 0 to 1");
  return value;
}

void ReadOutputs(JsonObject* root, Spec* spec) {
  spec->outputs = root->Strings("outputs");
  const std::set<std::string> names(spec->outputs.begin(), spec->outputs.end());
  if (names.empty() || names.size() != spec->outputs.size() || names.size() > kMostOutputs) {
    root->Fail("outputs", "is empty, names one twice, or too many");
  }
}

void ReadInputSize(JsonObject* root, Spec* spec) {
  const std::vector<std::int64_t> size = root->Ints("size");
  if (size.size() != 2) root->Fail("size", "is no height and width");
  for (const std::int64_t side : size) {
    if (side < 1 || side > kMostInputSide) root->Fail("size", "is no height and width");
  }
  spec->height = static_cast<int>(size[0]);
  spec->width = static_cast<int>(size[1]);
}

void ReadBoxes(JsonObject* root, Spec* spec) {
  spec->score = ReadFraction("score", root);
  spec->iou = ReadFraction("iou", root);
  spec->max_boxes = ReadCount("max_boxes", 1, kMostBoxes, root);
  spec->class_aware = root->Bool("class_aware");
}

void ReadAnchors(JsonObject* root, Spec* spec) {
  spec->anchors = root->Numbers("anchors");
  if (spec->anchors.size() % 2 != 0 || spec->anchors.size() > kMostAnchors) {
    root->Fail("anchors", "are no widths and heights");
  }
  for (const double side : spec->anchors) {
    if (!(side > 0 && side < kMostAnchorSide)) root->Fail("anchors", "are no widths and heights");
  }
}

void ReadYolo(JsonObject* root, Spec* spec) {
  spec->head = ReadChoice<Spec::Head>(
      "head", {{"v8", Spec::Head::kV8}, {"v5", Spec::Head::kV5}, {"end2end", Spec::Head::kEnd2End}},
      root);
  ReadAnchors(root, spec);
  if (!spec->anchors.empty() && spec->head != Spec::Head::kV5) {
    root->Fail("anchors", "cannot be used with this head");
  }
  spec->bins = ReadCount("bins", 1, kMostBins, root);
  spec->relative = ReadChoice<bool>("units", {{"pixels", false}, {"relative", true}}, root);
  spec->points = ReadCount("points", 0, kMostPoints, root);
  spec->point_size = ReadCount("point_size", 2, 3, root);
  spec->masks = ReadCount("masks", 0, kMostMasks, root);
  spec->rotated = root->Bool("rotated");
  const int kinds =
      (spec->points != 0 ? 1 : 0) + (spec->masks != 0 ? 1 : 0) + (spec->rotated ? 1 : 0);
  if (kinds > (spec->head == Spec::Head::kV5 ? 0 : 1)) {
    root->Fail("points", "cannot be used with masks, rotated or this head");
  }
}

/// As many whole numbers as there are, from 1 to `largest`.
std::vector<int> ReadWhole(const char* key, std::size_t most, std::int64_t largest,
                           JsonObject* root) {
  const std::vector<std::int64_t> numbers = root->Ints(key);
  if (numbers.size() > most) root->Fail(key, "are too many");
  std::vector<int> read;
  for (const std::int64_t number : numbers) {
    if (number < 1 || number > largest) root->Fail(key, "holds a number that cannot be");
    read.push_back(static_cast<int>(number));
  }
  return read;
}

void ReadSsd(JsonObject* root, Spec* spec) {
  spec->maps = ReadWhole("maps", 2 * kMostMaps, kMostCells, root);
  spec->strides = ReadWhole("strides", kMostMaps, kMostCells, root);
  if (spec->maps.size() % 2 != 0) root->Fail("maps", "are no heights and widths");
  if (!spec->maps.empty() && !spec->strides.empty()) {
    root->Fail("strides", "cannot be used with maps");
  }
  ReadAnchors(root, spec);
  spec->counts = ReadWhole("counts", kMostMaps, kMostMapAnchors, root);
  const auto anchors = std::accumulate(spec->counts.begin(), spec->counts.end(), std::size_t{0});
  if (2 * anchors != spec->anchors.size() ||
      spec->counts.size() != spec->maps.size() / 2 + spec->strides.size()) {
    root->Fail("counts", "do not give all anchors to the maps");
  }
  spec->relative = ReadChoice<bool>("units", {{"relative", true}, {"pixels", false}}, root);
  spec->variances = root->Numbers("variances");
  if (spec->variances.size() != 2) root->Fail("variances", "are not two numbers above 0");
  for (const double one : spec->variances) {
    if (!(one > 0 && one <= kMostVariance)) root->Fail("variances", "are not two numbers above 0");
  }
  spec->y_first = ReadChoice<bool>("order", {{"xywh", false}, {"yxhw", true}}, root);
  spec->exp_sizes = ReadChoice<bool>("sizes", {{"exp", true}, {"linear", false}}, root);
  spec->scores = ReadChoice<Spec::Scores>("scores",
                                          {{"softmax", Spec::Scores::kSoftmax},
                                           {"sigmoid", Spec::Scores::kSigmoid},
                                           {"raw", Spec::Scores::kRaw}},
                                          root);
  spec->background_class = ReadChoice<Spec::End>(
      "background",
      {{"first", Spec::End::kFirst}, {"last", Spec::End::kLast}, {"none", Spec::End::kNone}}, root);
}

void ReadLayout(JsonObject* root, Spec* spec) {
  spec->channels_last = ReadChoice<bool>("layout", {{"NCHW", false}, {"NHWC", true}}, root);
}

void ReadKeypoints(JsonObject* root, Spec* spec) {
  ReadLayout(root, spec);
  spec->scores = ReadChoice<Spec::Scores>(
      "scores", {{"raw", Spec::Scores::kRaw}, {"sigmoid", Spec::Scores::kSigmoid}}, root);
  spec->score = ReadFraction("score", root);
  spec->shift = ReadFraction("shift", root);
  spec->centre = ReadFraction("centre", root);
}

void ReadSegmentation(JsonObject* root, Spec* spec) {
  ReadLayout(root, spec);
  spec->scores = ReadChoice<Spec::Scores>(
      "scores", {{"raw", Spec::Scores::kRaw}, {"sigmoid", Spec::Scores::kSigmoid}}, root);
  spec->score = ReadFraction("score", root);
  spec->background = ReadCount("background", -1, kMostBackground, root);
}

double ReadRatio(const char* key, JsonObject* root) {
  const double value = root->Number(key);
  if (!(value >= 0 && value <= kMostRatio)) root->Fail(key, "is not from 0 to 10");
  return value;
}

void ReadTextLines(JsonObject* root, Spec* spec) {
  spec->threshold = ReadFraction("threshold", root);
  spec->score = ReadFraction("score", root);
  spec->unclip = ReadRatio("unclip", root);
  spec->least_side = ReadRatio("least", root);
  spec->max_boxes = ReadCount("max_boxes", 1, kMostBoxes, root);
}

void ReadCtc(JsonObject* root, Spec* spec) {
  spec->characters = root->Strings("characters");
  bool fit = !spec->characters.empty() && spec->characters.size() <= kMostCharacters;
  for (const std::string& one : spec->characters) {
    fit = fit && !one.empty() && one.size() <= kMostCharacterBytes;
  }
  if (!fit) root->Fail("characters", "are none, too many, or one is empty or long");
  spec->blank_last = ReadChoice<bool>("blank", {{"first", false}, {"last", true}}, root);
  spec->scores = ReadChoice<Spec::Scores>(
      "scores", {{"raw", Spec::Scores::kRaw}, {"softmax", Spec::Scores::kSoftmax}}, root);
}

bool IsOfLength1(const double* vector, std::size_t size) {
  double squares = 0;
  for (std::size_t i = 0; i < size; ++i) squares += vector[i] * vector[i];
  return std::abs(std::sqrt(squares) - 1) <= kLengthError;
}

void ReadEmbedding(JsonObject* root, Spec* spec) {
  spec->score = root->Number("score");
  if (!(spec->score > 0 && spec->score <= 1)) root->Fail("score", "is not above 0 and at most 1");
  if (root->String("made_by").size() > kMostNameBytes) root->Fail("made_by", "is too long");
  const std::vector<std::string> people = root->Strings("people");
  const std::set<std::string> names(people.begin(), people.end());
  bool fit = people.size() <= kMostPeople && names.size() == people.size();
  for (const std::string& one : people) fit = fit && !one.empty() && one.size() <= kMostNameBytes;
  if (!fit) root->Fail("people", "are too many, or one is there twice, empty or long");
  spec->people = static_cast<int>(people.size());
  const std::vector<std::int64_t> owners = root->Ints("owners");
  fit = owners.size() <= kMostVectors;
  for (const std::int64_t one : owners) {
    fit = fit && one >= 0 && one < static_cast<std::int64_t>(people.size());
    spec->owners.push_back(static_cast<int>(fit ? one : 0));
  }
  if (!fit) root->Fail("owners", "are too many, or hold what is no person");
  spec->vectors = root->Numbers("vectors");
  const std::size_t count = owners.size();
  const std::size_t size = count == 0 ? 0 : spec->vectors.size() / count;
  if (spec->vectors.size() > static_cast<std::size_t>(kMostElements) ||
      size * count != spec->vectors.size()) {
    root->Fail("vectors", "are not one for each of the owners, or too many");
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (!IsOfLength1(spec->vectors.data() + i * size, size)) {
      root->Fail("vectors", "hold one that is not of length 1");
    }
  }
}

}  // namespace

PostprocessSpec LoadPostprocessSpec(const std::filesystem::path& path) {
  const JsonDocument document = ReadBundleJson(path);
  JsonObject root = document.Root();
  CheckFormat("edgepack-postprocess", &root);
  Spec spec;
  spec.kind = ReadChoice<Spec::Kind>("kind",
                                     {{"classes", Spec::Kind::kClasses},
                                      {"tensors", Spec::Kind::kTensors},
                                      {"yolo", Spec::Kind::kYolo},
                                      {"centernet", Spec::Kind::kCenterNet},
                                      {"ssd", Spec::Kind::kSsd},
                                      {"keypoints", Spec::Kind::kKeypoints},
                                      {"segmentation", Spec::Kind::kSegmentation},
                                      {"text-lines", Spec::Kind::kTextLines},
                                      {"ctc", Spec::Kind::kCtc},
                                      {"embedding", Spec::Kind::kEmbedding}},
                                     &root);
  ReadOutputs(&root, &spec);
  if (spec.in_pixels()) ReadInputSize(&root, &spec);
  if (spec.boxes()) ReadBoxes(&root, &spec);
  switch (spec.kind) {
    case Spec::Kind::kClasses:
      spec.scores = ReadChoice<Spec::Scores>("scores",
                                             {{"softmax", Spec::Scores::kSoftmax},
                                              {"sigmoid", Spec::Scores::kSigmoid},
                                              {"raw", Spec::Scores::kRaw}},
                                             &root);
      spec.top = ReadCount("top", 1, kMostElements, &root);
      spec.least = root.OptionalNumber("score");
      break;
    case Spec::Kind::kTensors:
      spec.count = ReadCount("count", 1, kMostElements, &root);
      break;
    case Spec::Kind::kYolo:
      ReadYolo(&root, &spec);
      break;
    case Spec::Kind::kCenterNet:
      spec.head = ReadChoice<Spec::Head>(
          "head", {{"centernet", Spec::Head::kCenterNet}, {"centerface", Spec::Head::kCenterFace}},
          &root);
      spec.scores = ReadChoice<Spec::Scores>(
          "scores", {{"raw", Spec::Scores::kRaw}, {"sigmoid", Spec::Scores::kSigmoid}}, &root);
      break;
    case Spec::Kind::kSsd:
      ReadSsd(&root, &spec);
      break;
    case Spec::Kind::kKeypoints:
      ReadKeypoints(&root, &spec);
      break;
    case Spec::Kind::kSegmentation:
      ReadSegmentation(&root, &spec);
      break;
    case Spec::Kind::kTextLines:
      ReadTextLines(&root, &spec);
      break;
    case Spec::Kind::kCtc:
      ReadCtc(&root, &spec);
      break;
    case Spec::Kind::kEmbedding:
      ReadEmbedding(&root, &spec);
      break;
  }
  root.Finish();
  return spec;
}

}  // namespace edgepack
