#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <edgepack/preprocess_spec.h>

#include "support.h"

namespace edgepack::testing {
namespace {

const char* const kText = R"({
  "format": "edgepack-preprocess", "version": 1, "input": "input", "color": "rgb",
  "resize": {"mode": "shortest", "size": 256}, "interpolation": "pil-bilinear",
  "crop": {"height": 224, "width": 192}, "scale": 0.5, "mean": [1, 2, 3], "std": [4, 5, 6.5],
  "layout": "NHWC", "dtype": "float32", "accept": ["gray"]})";

PreprocessSpec Load(const std::string& text) {
  const TempFolder folder;
  WriteFile(folder / "preprocess.json", text);
  return LoadPreprocessSpec(folder / "preprocess.json");
}

std::string SpecError(std::string_view from, std::string_view to) {
  return MessageOf([&] { Load(Replace(kText, from, to)); });
}

}  // namespace

TEST_CASE("a spec is read") {
  const PreprocessSpec spec = Load(kText);
  CHECK(spec.input == "input");
  CHECK(spec.color == PreprocessSpec::Color::kRgb);
  REQUIRE(spec.resize);
  CHECK(spec.resize->mode == PreprocessSpec::Resize::Mode::kShortest);
  CHECK(spec.resize->size.height == 256);
  CHECK(spec.interpolation == PreprocessSpec::Interpolation::kPilBilinear);
  REQUIRE(spec.crop);
  CHECK(spec.crop->width == 192);
  CHECK(spec.crop_centre == PreprocessSpec::Centre::kFloor);
  CHECK(spec.scale == 0.5);
  CHECK(spec.std[2] == 6.5);
  CHECK(spec.layout == PreprocessSpec::Layout::kNhwc);
  CHECK(spec.accept.gray);
  CHECK_FALSE(spec.accept.alpha);
  // The first specs had no such key.
  CHECK(spec.max_pixels == PreprocessSpec::kMostPixels);
  CHECK(Load(Replace(kText, "\"accept\"", "\"max_pixels\": 7, \"accept\"")).max_pixels == 7);
}

TEST_CASE("the centre of a crop") {
  using Centre = PreprocessSpec::Centre;
  const std::string text = Replace(kText, "192}", R"(192, "centre": "torchvision"})");
  CHECK(Load(text).crop_centre == Centre::kTorchvision);
  CHECK(Contains(SpecError("192}", R"(192, "centre": "torch"})"), "crop.centre: 'torch' is none"));
  // int(round(over / 2.0)) in Python: half to even.
  for (const auto& [over, start] : std::vector<std::pair<int, int>>{
           {0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 2}, {6, 3}, {7, 4}, {9, 4}, {11, 6}}) {
    CHECK(CropStart(224 + over, 224, Centre::kTorchvision) == start);
    CHECK(CropStart(224 + over, 224, Centre::kFloor) == over / 2);
  }
}

TEST_CASE("how photos are decoded") {
  using Decode = PreprocessSpec::Decode;
  CHECK(Load(kText).decode == Decode::kFull);
  const std::string text = Replace(kText, "\"accept\"", R"("decode": "scaled", "accept")");
  CHECK(Load(text).decode == Decode::kScaled);
  CHECK(Contains(SpecError("\"accept\"", R"("decode": "half", "accept")"),
                 "decode: 'half' is none of full, scaled"));
  const std::string plain = Replace(text, R"({"mode": "shortest", "size": 256})", "null");
  CHECK(Contains(MessageOf([&] { Load(plain); }), "decode: needs a resize"));
}

TEST_CASE("uint8 and gray") {
  const PreprocessSpec spec = Load(R"({
    "format": "edgepack-preprocess", "version": 1, "input": "x", "color": "gray", "resize": null,
    "interpolation": "linear", "crop": null, "layout": "NCHW", "dtype": "uint8", "accept": []})");
  CHECK_FALSE(spec.normalise());
  CHECK_FALSE(spec.resize);
  CHECK_FALSE(spec.crop);
  CHECK(spec.channels() == 1);
  CHECK(spec.accept.gray);
}

TEST_CASE("mistakes") {
  CHECK(Contains(SpecError("edgepack-preprocess", "other"), "format: is not edgepack-preprocess"));
  CHECK(Contains(SpecError("\"version\": 1", "\"version\": 2"), "reads version 1"));
  CHECK(Contains(SpecError("\"rgb\"", "\"rbg\""), "color: 'rbg' is none of rgb, bgr, gray"));
  CHECK(Contains(SpecError("256", "0"), "resize.size: 0 is not between 1"));
  CHECK(Contains(SpecError("256", "99999"), "resize.size: 99999"));
  CHECK(Contains(SpecError(", \"size\": 256", ""), "resize.size: missing"));
  CHECK(Contains(SpecError("\"shortest\"", "\"exact\""), "resize.height: missing"));
  CHECK(Contains(SpecError("[1, 2, 3]", "[1, 2]"), "mean: needs 3 values"));
  CHECK(Contains(SpecError("6.5", "0"), "std: is not above 0"));
  CHECK(Contains(SpecError("\"scale\": 0.5", "\"scale\": 0.0"), "scale: is 0"));
  CHECK(Contains(SpecError("192", "257"), "crop: is larger than the resized image"));
  CHECK(Contains(SpecError("6.5", "NaN"), "preprocess.json: not JSON"));
  CHECK(Contains(SpecError("\"float32\"", "\"uint8\""), "takes the pixels as they are"));
  CHECK(Contains(SpecError("\"accept\": [\"gray\"]", "\"accept\": [\"grey\"]"),
                 "accept: 'grey' is none of"));
  CHECK(Contains(SpecError("\"crop\"", "\"max_pixels\": 0, \"crop\""), "max_pixels: 0 is not"));
  CHECK(Contains(SpecError("\"crop\"", "\"crops\": 1, \"crop\""), "crops: unknown key"));
}

}  // namespace edgepack::testing
