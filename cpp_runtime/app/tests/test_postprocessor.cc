#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <edgepack/postprocessor.h>
#include <edgepack/preprocessor.h>

#include "support.h"

namespace edgepack::testing {
namespace {

using Head = PostprocessSpec::Head;

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

/// Outputs of a model, by hand.
struct Outputs {
  std::vector<TensorInfo> infos;
  std::vector<std::vector<float>> data;

  Outputs& Add(Shape shape, std::vector<float> values) {
    infos.push_back(Info(DType::kFloat32, std::move(shape)));
    REQUIRE(infos.back().size() == values.size());
    data.push_back(std::move(values));
    return *this;
  }
  [[nodiscard]] std::vector<TensorView> Views() {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < infos.size(); ++i) views.push_back({&infos[i], data[i].data()});
    return views;
  }
};

PostprocessSpec BoxSpec(Head head, std::size_t outputs) {
  PostprocessSpec spec;
  spec.kind = head == Head::kCenterNet || head == Head::kCenterFace
                  ? PostprocessSpec::Kind::kCenterNet
                  : PostprocessSpec::Kind::kYolo;
  spec.scores = PostprocessSpec::Scores::kRaw;
  spec.outputs.resize(outputs);
  spec.height = 64;
  spec.width = 128;
  spec.score = 0.5;
  spec.iou = 0.5;
  spec.max_boxes = 10;
  spec.head = head;
  spec.bins = 1;
  return spec;
}

std::vector<Box> Boxes(const PostprocessSpec& spec, Outputs outputs,
                       const std::optional<Geometry>& geometry = std::nullopt) {
  return Postprocessor(spec).Run(outputs.Views(), geometry).boxes.value();
}

void CheckBox(const Box& box, std::size_t index, double score, std::vector<double> sides) {
  CHECK(box.found.index == index);
  CHECK(box.found.score == doctest::Approx(score));
  CHECK(box.low.x == doctest::Approx(sides[0]));
  CHECK(box.low.y == doctest::Approx(sides[1]));
  CHECK(box.high.x == doctest::Approx(sides[2]));
  CHECK(box.high.y == doctest::Approx(sides[3]));
}

}  // namespace

TEST_CASE("a box has the pixels where its prototypes' sum is above zero") {
  PostprocessSpec spec = BoxSpec(Head::kEnd2End, 2);
  spec.masks = 2;
  spec.height = spec.width = 4;
  Outputs outputs;
  // From (0, 0) to (3, 4), of class 1; 2 of the first prototype, less 1 of the second.
  outputs.Add({1, 1, 8}, {0, 0, 3, 4, 0.75, 1, 2, -1});
  // By columns: 2 - 1, 2 - 3, 2 - 1, 2 - 1.
  outputs.Add({1, 2, 1, 4}, {1, 1, 1, 1, 1, 3, 1, kNoNumber});
  const std::vector<Box> boxes = Boxes(spec, outputs);
  REQUIRE(boxes.size() == 1);
  CHECK(boxes[0].mask.height == 4);
  CHECK(boxes[0].mask.width == 4);
  // 0 outside, 4 inside, 4 outside, 4 inside (as 0 more than before), 4 outside.
  CHECK(boxes[0].mask.counts == "04400");
  spec.outputs.resize(1);
  outputs.infos.pop_back();
  outputs.data.pop_back();
  CHECK(Boxes(spec, outputs)[0].mask.height == 0);
}

TEST_CASE("prototypes of another number are refused") {
  PostprocessSpec spec = BoxSpec(Head::kEnd2End, 2);
  spec.masks = 2;
  Outputs outputs;
  outputs.Add({1, 1, 8}, {0, 0, 3, 4, 0.75, 1, 2, -1}).Add({1, 1, 1, 2}, {1, 1});
  CHECK_THROWS_AS(Boxes(spec, outputs), ModelInputError);
}

TEST_CASE("boxes of head v8: overlaps of one class, order, what is no number") {
  // Columns: centre x, y, width, height, two classes.
  Outputs outputs;
  outputs.Add({1, 6, 5}, {20,   22,   22,   90,   kNoNumber,  //
                          30,   30,   30,   30,   30,         //
                          20,   20,   20,   20,   20,         //
                          20,   20,   20,   20,   20,         //
                          0.9F, 0.8F, 0,    0.6F, 0.9F,       //
                          0,    0,    0.7F, 0.4F, kNoNumber});
  PostprocessSpec spec = BoxSpec(Head::kV8, 1);
  std::vector<Box> boxes = Boxes(spec, outputs);
  REQUIRE(boxes.size() == 3);
  CheckBox(boxes[0], 0, 0.9, {10, 20, 30, 40});
  CheckBox(boxes[1], 1, 0.7, {12, 20, 32, 40});
  CheckBox(boxes[2], 0, 0.6, {80, 20, 100, 40});
  spec.class_aware = false;
  CHECK(Boxes(spec, outputs).size() == 2);
  spec.class_aware = true;
  spec.iou = 0.9;  // 18 / 22 is less
  CHECK(Boxes(spec, outputs).size() == 4);
  spec.max_boxes = 1;
  CHECK(Boxes(spec, outputs).size() == 1);
}

TEST_CASE("maps of head v8, with a distribution and without") {
  Outputs outputs;
  // One map of 1 x 2 cells, each of 64 x 64 pixels; sides 0.25, 0.125, 0.25, 0.125, a logit.
  outputs.Add({1, 5, 1, 2}, {9, .25F, 9, .125F, 9, .25F, 9, .125F, -9, 0});
  PostprocessSpec spec = BoxSpec(Head::kV8, 1);
  std::vector<Box> boxes = Boxes(spec, outputs);
  REQUIRE(boxes.size() == 1);
  CheckBox(boxes[0], 0, 0.5, {80, 24, 112, 40});
  Outputs bins;
  // Two bins, of which the second has a weight of 1/2 and of 3/4: distances 0.5 and 0.75.
  const float three = std::log(3.0F);
  bins.Add({1, 9, 1, 1}, {0, 0, 0, three, 0, 0, 0, three, 5});
  spec.bins = 2;
  spec.width = 64;
  boxes = Boxes(spec, bins);
  REQUIRE(boxes.size() == 1);
  CheckBox(boxes[0], 0, 1 / (1 + std::exp(-5.0)), {0, 0, 64, 64});
}

TEST_CASE("boxes and maps of head v5") {
  Outputs rows;
  rows.Add({1, 2, 7}, {0.5F, 0.5F, 0.25F, 0.25F, 0.9F, 0.1F, 0.8F,  //
                       0.5F, 0.5F, 0.25F, 0.25F, 0.6F, 0.8F, 0.1F});
  PostprocessSpec spec = BoxSpec(Head::kV5, 1);
  spec.relative = true;
  std::vector<Box> boxes = Boxes(spec, rows);
  REQUIRE(boxes.size() == 1);
  CheckBox(boxes[0], 1, 0.72, {48, 24, 80, 40});
  // A map of one cell with two anchors; sigmoid(0) = 0.5: the middle, and the anchor's size.
  spec.anchors = {10, 20, 30, 40};
  spec.relative = false;
  Outputs maps;
  maps.Add({1, 12, 1, 1}, {0, 0, 0, 0, -9, 9, 0, 0, 0, 0, 9, 9});
  boxes = Boxes(spec, maps);
  REQUIRE(boxes.size() == 1);
  CheckBox(boxes[0], 0, std::pow(1 + std::exp(-9.0), -2), {49, 12, 79, 52});
  Outputs last;
  last.Add({1, 2, 1, 1, 6}, {0, 0, 0, 0, -9, 9, 0, 0, 0, 0, 9, 9});
  CHECK(Boxes(spec, last).size() == 1);
}

TEST_CASE("rows of head end2end are as they are") {
  Outputs outputs;
  outputs.Add({1, 3, 9}, {10, 10, 20, 20, 0.6F, 7,  12, 14, 1,  //
                          10, 10, 20, 20, 0.7F, 7,  13, 15, 1,  //
                          10, 10, 20, 20, 0.9F, -1, 0,  0,  0});
  PostprocessSpec spec = BoxSpec(Head::kEnd2End, 1);
  spec.points = 1;
  const std::vector<Box> boxes = Boxes(spec, outputs);
  REQUIRE(boxes.size() == 2);
  CheckBox(boxes[0], 7, 0.7, {10, 10, 20, 20});
  CHECK(boxes[0].points.at(0).y == 15);
  CHECK(boxes[1].found.score == doctest::Approx(0.6));
}

TEST_CASE("objects as points") {
  Outputs outputs;
  // 2 x 4 cells of 32 x 32 pixels. The neighbour of a centre is none, whatever its score.
  outputs.Add({1, 1, 2, 4}, {0, 0.9F, 0.8F, 0, 0, 0, 0, 0.7F});
  outputs.Add({1, 2, 2, 4}, {1, 1, 1, 1, 1, 1, 1, 1, .5F, .5F, .5F, .5F, .5F, .5F, .5F, .5F});
  outputs.Add({1, 2, 2, 4}, {0, .5F, 0, 0, 0, 0, 0, 0, 0, .5F, 0, 0, 0, 0, 0, 0});
  PostprocessSpec spec = BoxSpec(Head::kCenterNet, 3);
  const std::vector<Box> boxes = Boxes(spec, outputs);
  REQUIRE(boxes.size() == 1);
  CheckBox(boxes[0], 0, 0.9, {32, 8, 64, 24});
}

TEST_CASE("faces") {
  Outputs outputs;
  // 1 x 2 cells of 64 x 64 pixels. Sizes are logarithms of height and width in cells.
  outputs.Add({1, 1, 1, 2}, {0, 0.9F});
  outputs.Add({1, 2, 1, 2}, {0, std::log(0.5F), 0, std::log(0.25F)});
  outputs.Add({1, 2, 1, 2}, {0, 0, 0, 0.125F});
  outputs.Add({1, 2, 1, 2}, {0, 0.75F, 0, 0.5F});
  const std::vector<Box> boxes = Boxes(BoxSpec(Head::kCenterFace, 4), outputs);
  REQUIRE(boxes.size() == 1);
  CheckBox(boxes[0], 0, 0.9, {96, 16, 112, 48});
  CHECK(boxes[0].points.at(0).x == doctest::Approx(104));
  CHECK(boxes[0].points.at(0).y == doctest::Approx(40));
}

TEST_CASE("boxes as differences from anchors") {
  Outputs outputs;
  // A map of 1 x 2 cells, one anchor of 32 x 16 in each; a box of half its width to the right.
  outputs.Add({1, 2, 4}, {9, 9, 9, 9, 5, 0, 0, std::log(2.0F) / 0.2F});
  outputs.Add({1, 2, 3}, {9, 0, 0, 0, std::log(2.0F), -9});
  outputs.Add({1, 2, 2}, {0, 0, 2.5F, 5});
  PostprocessSpec spec = BoxSpec(Head::kV8, 3);
  spec.kind = PostprocessSpec::Kind::kSsd;
  spec.scores = PostprocessSpec::Scores::kSoftmax;
  spec.background_class = PostprocessSpec::End::kFirst;
  spec.anchors = {0.25, 0.25};
  spec.relative = true;
  spec.counts = {1};
  spec.maps = {1, 2};
  spec.variances = {0.1, 0.2};
  std::vector<Box> boxes = Boxes(spec, outputs);
  REQUIRE(boxes.size() == 1);
  CheckBox(boxes[0], 1, 2 / (3 + std::exp(-9.0)), {96, 16, 128, 48});
  CHECK(boxes[0].points.at(0).x == doctest::Approx(104));
  CHECK(boxes[0].points.at(0).y == doctest::Approx(40));
  spec.maps = {1, 1};
  CHECK_THROWS_AS(Boxes(spec, outputs), ModelInputError);
  spec.maps.clear();
  spec.strides = {64};
  CHECK(Boxes(spec, outputs).size() == 1);
  spec.exp_sizes = false;
  spec.variances = {0.1, 1};
  CHECK(Boxes(spec, outputs).empty());  // it has no width
  // Without anchors: corners.
  Outputs corners;
  corners.Add({1, 1, 4}, {0.25F, 0.125F, 0.5F, 0.25F});
  corners.Add({1, 1, 2}, {0.5F, 0.75F});
  spec.anchors.clear();
  spec.counts.clear();
  spec.strides.clear();
  spec.y_first = true;
  spec.outputs.resize(2);
  spec.scores = PostprocessSpec::Scores::kRaw;
  spec.background_class = PostprocessSpec::End::kLast;
  boxes = Boxes(spec, corners);
  REQUIRE(boxes.size() == 1);
  CheckBox(boxes[0], 0, 0.5, {16, 16, 32, 32});
}

TEST_CASE("key points") {
  PostprocessSpec spec;
  spec.kind = PostprocessSpec::Kind::kKeypoints;
  spec.scores = PostprocessSpec::Scores::kRaw;
  spec.outputs.resize(1);
  spec.height = 4;
  spec.width = 8;
  spec.score = 0.5;
  spec.shift = 0.25;
  spec.centre = 0.5;
  Outputs outputs;
  outputs.Add({1, 3, 2, 4}, {0,         .25F, .75F, .5F,  0, 0, 0, 0,  //
                             0,         0,    0,    .25F, 0, 0, 0, 0,  //
                             kNoNumber, 0,    0,    0,    0, 0, 0, 1});
  const std::vector<Mark> marks =
      Postprocessor(spec).Run(outputs.Views(), std::nullopt).keypoints.value();
  REQUIRE(marks.size() == 2);
  CHECK(marks[0].found.score == 0.75);
  CHECK(marks[0].point.x == 5.5);
  CHECK(marks[0].point.y == 1);
  CHECK(marks[1].found.index == 2);
  CHECK(marks[1].point.x == 7);
  CHECK(marks[1].point.y == 3);
}

TEST_CASE("boxes are mapped back into the photo") {
  PreprocessSpec pre;
  pre.resize = PreprocessSpec::Resize{PreprocessSpec::Resize::Mode::kLetterbox, {64, 128}, 114};
  // 300 x 200 becomes 96 x 64, 16 pixels from the left.
  const Geometry geometry = Preprocessor(pre).GeometryOf(200, 300);
  Outputs outputs;
  outputs.Add({1, 2, 6}, {16, 0, 64, 32, 0.9F, 0,   //
                          0, 0, 16, 64, 0.8F, 0});  // in the border: not in the photo
  const std::vector<Box> boxes = Boxes(BoxSpec(Head::kEnd2End, 1), outputs, geometry);
  REQUIRE(boxes.size() == 1);
  CheckBox(boxes[0], 0, 0.9, {0, 0, 150, 100});
  pre.resize = PreprocessSpec::Resize{PreprocessSpec::Resize::Mode::kShortest, {100, 100}, 0};
  pre.crop = PreprocessSpec::Size{64, 128};
  // 150 x 100, cut by 11 and 18.
  const Point point = Preprocessor(pre).GeometryOf(200, 300).Source({0, 0});
  CHECK(point.x == 22);
  CHECK(point.y == 36);
}

TEST_CASE("a mask is as large as the photo") {
  PostprocessSpec spec;
  spec.kind = PostprocessSpec::Kind::kSegmentation;
  spec.outputs.resize(1);
  spec.height = 2;
  spec.width = 4;
  spec.background = 0;
  Outputs outputs;
  // 1 x 2 cells of three classes: 2, and the background.
  outputs.Add({1, 3, 1, 2}, {0, 9, 1, 1, 2, 1});
  // A photo of 4 x 8 pixels, of which two columns on the left are cut off.
  const Mask mask =
      Postprocessor(spec).Run(outputs.Views(), Geometry{4, 12, 2, 6, 0, 2}).mask.value();
  CHECK(mask.height == 4);
  CHECK(mask.width == 12);
  REQUIRE(mask.areas.size() == 1);
  CHECK(mask.areas.at(2).pixels == 16);
  CHECK(mask.areas.at(2).runs == std::vector<std::int64_t>{4, 4, 16, 4, 28, 4, 40, 4});
}

TEST_CASE("lines of text") {
  PostprocessSpec spec;
  spec.kind = PostprocessSpec::Kind::kTextLines;
  spec.outputs.resize(1);
  spec.height = spec.width = 8;
  spec.threshold = 0.25;
  spec.score = 0.5;
  spec.least_side = 1;
  spec.unclip = 1;
  spec.max_boxes = 9;
  Outputs outputs;
  std::vector<float> map(64, 0);
  for (const int at : {18, 19, 20, 21, 22, 26, 27, 28, 29, 30})
    map[static_cast<std::size_t>(at)] = 0.75F;
  map[0] = 1;  // too small
  outputs.Add({1, 1, 8, 8}, map);
  const std::vector<Box> lines =
      Postprocessor(spec).Run(outputs.Views(), std::nullopt).boxes.value();
  REQUIRE(lines.size() == 1);
  // Centres from (2.5, 2.5) to (6.5, 3.5): 4 x 1, and 4 / 10 on each side.
  CheckBox(lines[0], 0, 0.75, {2.1, 2.1, 6.9, 3.9});
  REQUIRE(lines[0].points.size() == 4);
  CHECK(lines[0].points[1].x == doctest::Approx(6.9));
  CHECK(lines[0].points[1].y == doctest::Approx(2.1));
}

TEST_CASE("a line of text within the bounds of another, and one that is far from filling its own") {
  constexpr int kSide = 64;
  PostprocessSpec spec;
  spec.kind = PostprocessSpec::Kind::kTextLines;
  spec.outputs.resize(1);
  spec.height = spec.width = kSide;
  spec.threshold = 0.25;
  spec.score = 0.25;
  spec.least_side = 0.5;
  spec.unclip = 0;
  spec.max_boxes = 9;
  std::vector<float> map(std::size_t{kSide} * kSide, 0);
  const auto set = [&](int x, int y, float score) {
    map[static_cast<std::size_t>(y * kSide + x)] = score;
  };
  for (int i = 0; i < kSide - 1; ++i) {  // two pixels in each row, from corner to corner
    set(i, i, 0.5F);
    set(i + 1, i, 0.75F);
  }
  for (int y = 10; y < 14; ++y) {
    for (int x = 40; x < 60; ++x) set(x, y, 1);
  }
  Outputs outputs;
  outputs.Add({1, 1, kSide, kSide}, map);
  const std::vector<Box> lines =
      Postprocessor(spec).Run(outputs.Views(), std::nullopt).boxes.value();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].found.score == doctest::Approx(0.625));
  CheckBox(lines[1], 0, 1, {40.5, 10.5, 59.5, 13.5});
}

TEST_CASE("text of more classes than are compared at once") {
  PostprocessSpec spec;
  spec.kind = PostprocessSpec::Kind::kCtc;
  spec.outputs.resize(1);
  spec.scores = PostprocessSpec::Scores::kRaw;
  constexpr std::size_t kClasses = 21;
  for (std::size_t i = 1; i < kClasses; ++i) {
    spec.characters.emplace_back(1, static_cast<char>('a' + i - 1));
  }

  std::vector<float> steps(6 * kClasses, -1);
  const auto at = [&](std::size_t step, std::size_t index) -> float& {
    return steps[step * kClasses + index];
  };
  at(0, 20) = 0.5F;            // behind the last eight
  at(1, 9) = at(1, 3) = 0.5F;  // the first of equal ones
  at(2, 0) = 0.5F;             // blank
  at(3, 4) = kNoNumber, at(3, 12) = 0.25F;
  for (std::size_t i = 0; i < kClasses; ++i) at(4, i) = kNoNumber;  // none, which is blank
  at(5, 1) = 0.75F;
  Outputs outputs;
  outputs.Add({1, 6, kClasses}, steps);
  const TextLine line = Postprocessor(spec).Run(outputs.Views(), std::nullopt).text.value();
  CHECK(line.text == "tcla");
  CHECK(line.score == doctest::Approx(0.5));
}

TEST_CASE("text") {
  PostprocessSpec spec;
  spec.kind = PostprocessSpec::Kind::kCtc;
  spec.outputs.resize(1);
  spec.characters = {"a", "b"};
  spec.scores = PostprocessSpec::Scores::kRaw;
  Outputs outputs;
  outputs.Add({1, 5, 3}, {0, 0.5F, 0, 0, 0.75F, 0, 1, 0, 0, 0, 0.25F, 0, 0, 0, 0.75F});
  const TextLine line = Postprocessor(spec).Run(outputs.Views(), std::nullopt).text.value();
  CHECK(line.text == "aab");
  CHECK(line.score == doctest::Approx(0.5));
  spec.characters.emplace_back("c");
  CHECK_THROWS_AS((void)Postprocessor(spec).Run(outputs.Views(), std::nullopt), ModelInputError);
}

TEST_CASE("who it is") {
  PostprocessSpec spec;
  spec.kind = PostprocessSpec::Kind::kEmbedding;
  spec.outputs.resize(1);
  spec.score = 0.9;
  const auto find = [&](std::vector<float> vector) {
    Outputs outputs;
    outputs.Add({1, static_cast<std::int64_t>(vector.size())}, std::move(vector));
    const std::vector<Score> top = Postprocessor(spec).Run(outputs.Views(), std::nullopt).top;
    REQUIRE(top.size() == 1);
    return top.front();
  };
  CHECK(find({1, 2}).index == 0);  // nobody is known
  CHECK(find({1, 2}).score == 0);
  spec.people = 2;
  spec.owners = {1, 0, 1};
  spec.vectors = {1, 0, 0, 1, 0.6, 0.8};
  CHECK(find({0, 5}).index == 0);
  CHECK(find({0, 5}).score == 1);
  CHECK(find({3, 4}).index == 1);
  CHECK(find({-1, 0}).index == 2);
  CHECK(find({-1, 0}).score == 0);  // of (0, 1)
  CHECK(find({1, 1}).score == doctest::Approx(1.4 / std::sqrt(2.0)));
  CHECK(find({0, 0}).index == 2);
  CHECK(find({NAN, 1}).score == 0);
  CHECK(find({1e30F, 1e30F}).index == 1);
  CHECK_THROWS_AS(find({1, 2, 3}), ModelInputError);
}

TEST_CASE("tensors of other shapes are refused") {
  Outputs outputs;
  outputs.Add({1, 4, 2}, std::vector<float>(8));
  CHECK_THROWS_AS(Boxes(BoxSpec(Head::kV8, 1), outputs), ModelInputError);
  CHECK_THROWS_AS(Boxes(BoxSpec(Head::kV8, 2), outputs), ModelInputError);
  CHECK_THROWS_AS(Boxes(BoxSpec(Head::kEnd2End, 1), outputs), ModelInputError);
  CHECK_THROWS_AS(Boxes(BoxSpec(Head::kCenterFace, 1), outputs), ModelInputError);
  Outputs maps;
  maps.Add({1, 12, 0, 1}, {});
  PostprocessSpec spec = BoxSpec(Head::kV5, 1);
  CHECK_THROWS_AS(Boxes(spec, maps), ModelInputError);
  spec.anchors = {1, 1};
  CHECK_THROWS_AS(Boxes(spec, maps), ModelInputError);
}

}  // namespace edgepack::testing
