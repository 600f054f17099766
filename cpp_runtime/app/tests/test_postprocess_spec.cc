#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <edgepack/postprocess_spec.h>

#include "support.h"

namespace edgepack::testing {
namespace {

const char* const kYoloText = R"({
  "format": "edgepack-postprocess", "version": 1, "kind": "yolo", "outputs": ["a", "b"],
  "size": [480, 640], "score": 0.5, "iou": 0.25, "max_boxes": 7, "class_aware": false,
  "head": "v5", "anchors": [1, 2, 3, 4.5], "bins": 16, "units": "relative", "points": 0,
  "point_size": 3, "masks": 0, "rotated": false})";

PostprocessSpec LoadPost(const std::string& text) {
  const TempFolder folder;
  WriteFile(folder / "postprocess.json", text);
  return LoadPostprocessSpec(folder / "postprocess.json");
}

std::string PostError(std::string_view from, std::string_view to) {
  return MessageOf([&] { LoadPost(Replace(kYoloText, from, to)); });
}

}  // namespace

TEST_CASE("postprocess.json is read") {
  const PostprocessSpec spec = LoadPost(kYoloText);
  CHECK(spec.kind == PostprocessSpec::Kind::kYolo);
  CHECK(spec.outputs == std::vector<std::string>{"a", "b"});
  CHECK(spec.height == 480);
  CHECK(spec.width == 640);
  CHECK(spec.score == 0.5);
  CHECK(spec.iou == 0.25);
  CHECK(spec.max_boxes == 7);
  CHECK_FALSE(spec.class_aware);
  CHECK(spec.head == PostprocessSpec::Head::kV5);
  CHECK(spec.anchors.at(3) == 4.5);
  CHECK(spec.relative);
  const PostprocessSpec classes = LoadPost(R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "classes", "outputs": ["y"],
    "scores": "sigmoid", "top": 3, "score": null})");
  CHECK(classes.scores == PostprocessSpec::Scores::kSigmoid);
  CHECK(classes.top == 3);
  CHECK_FALSE(classes.least);
  const PostprocessSpec text = LoadPost(R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "ctc", "outputs": ["y"],
    "characters": ["a", " "], "blank": "last", "scores": "raw"})");
  CHECK(text.characters == std::vector<std::string>{"a", " "});
  CHECK(text.blank_last);
  const PostprocessSpec who = LoadPost(R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "embedding", "outputs": ["y"],
    "score": 0.75, "made_by": "", "people": ["a", "b"], "owners": [1], "vectors": [0.6, 0.8]})");
  CHECK(who.people == 2);
  CHECK(who.owners == std::vector<int>{1});
  CHECK(who.vectors.at(1) == 0.8);
  const PostprocessSpec ssd = LoadPost(R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "ssd", "outputs": ["b", "s"],
    "size": [8, 9], "score": 0.25, "iou": 0.5, "max_boxes": 4, "class_aware": true,
    "anchors": [0.5, 0.25, 1, 1], "counts": [1, 1], "maps": [2, 3, 1, 1], "strides": [],
    "units": "relative", "variances": [0.1, 0.2], "order": "yxhw", "sizes": "exp",
    "scores": "sigmoid", "background": "last"})");
  CHECK(ssd.maps == std::vector<int>{2, 3, 1, 1});
  CHECK(ssd.y_first);
  CHECK(ssd.background_class == PostprocessSpec::End::kLast);
  const PostprocessSpec lines = LoadPost(R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "text-lines", "outputs": ["y"],
    "size": [8, 9], "threshold": 0.25, "score": 0.5, "unclip": 1.5, "least": 3, "max_boxes": 4})");
  CHECK(lines.width == 9);
  CHECK(lines.unclip == 1.5);
  CHECK(lines.least_side == 3);
}

TEST_CASE("mistakes in postprocess.json") {
  CHECK(Contains(PostError("edgepack-post", "other-"), "format: is not edgepack-postprocess"));
  CHECK(Contains(PostError("\"yolo\"", "\"yola\""), "kind: 'yola' is none of classes, tensors"));
  CHECK(Contains(PostError("\"b\"]", "\"a\"]"), "outputs: is empty, names one twice"));
  CHECK(Contains(PostError("[480, 640]", "[480]"), "size: is no height and width"));
  CHECK(Contains(PostError("[480, 640]", "[480, 0]"), "size: is no height and width"));
  CHECK(Contains(PostError("0.25", "1.25"), "iou: is not from 0 to 1"));
  CHECK(Contains(PostError(": 7", ": 0"), "max_boxes: 0 is not between 1"));
  CHECK(Contains(PostError("4.5]", "4.5, 6]"), "anchors: are no widths"));
  CHECK(Contains(PostError("4.5]", "-4.5]"), "anchors: are no widths"));
  CHECK(Contains(PostError("\"v5\"", "\"v8\""), "anchors: cannot be used"));
  CHECK(Contains(PostError("\"points\": 0", "\"points\": 1"), "points: cannot be used"));
  CHECK(Contains(PostError("\"masks\": 0", "\"masks\": 1"), "points: cannot be used"));
  CHECK(Contains(PostError("\"rotated\": false", "\"rotated\": true"), "points: cannot be used"));
  CHECK(Contains(PostError("\"point_size\": 3", "\"point_size\": 4"), "point_size: 4 is not"));
  CHECK(Contains(PostError("\"bins\"", "\"bin\""), "bins: missing"));
  CHECK(Contains(PostError("\"bins\"", "\"more\": 1, \"bins\""), "more: unknown key"));
}

}  // namespace edgepack::testing
