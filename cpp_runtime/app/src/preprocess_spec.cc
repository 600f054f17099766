#include <algorithm>
#include <string>
#include <vector>

#include <edgepack/preprocess_spec.h>

#include "bundle_json.h"
#include "words.h"

namespace edgepack {
namespace {

constexpr std::int64_t kMaxSide = 16384;

int ReadSide(const char* key, JsonObject* object) {
  return static_cast<int>(object->Int(key, 1, kMaxSide));
}

PreprocessSpec::Size ReadSize(JsonObject* object) {
  return {ReadSide("height", object), ReadSide("width", object)};
}

PreprocessSpec::Resize ReadResize(JsonObject object) {
  using Mode = PreprocessSpec::Resize::Mode;
  PreprocessSpec::Resize resize;
  resize.mode = ReadChoice<Mode>(
      "mode",
      {{"shortest", Mode::kShortest}, {"exact", Mode::kExact}, {"letterbox", Mode::kLetterbox}},
      &object);
  if (resize.mode == Mode::kShortest) {
    resize.size.height = resize.size.width = ReadSide("size", &object);
  } else {
    resize.size = ReadSize(&object);
    if (resize.mode == Mode::kLetterbox) resize.fill = static_cast<int>(object.Int("fill", 0, 255));
  }
  object.Finish();
  return resize;
}

void ReadCrop(JsonObject object, PreprocessSpec* spec) {
  using Centre = PreprocessSpec::Centre;
  spec->crop = ReadSize(&object);
  // Bundles made before there was a choice have none.
  if (object.Has("centre")) {
    spec->crop_centre = ReadChoice<Centre>(
        "centre", {{"floor", Centre::kFloor}, {"torchvision", Centre::kTorchvision}}, &object);
  }
  object.Finish();
}

std::array<double, 3> ReadChannels(const char* key, int channels, JsonObject* object) {
  const std::vector<double> numbers = object->Numbers(key);
  if (numbers.size() != static_cast<std::size_t>(channels)) {
    object->Fail(key, "needs " + std::to_string(channels) + " values");
  }
  std::array<double, 3> values = {};
  std::copy(numbers.begin(), numbers.end(), values.begin());
  return values;
}

PreprocessSpec::Quantization ReadQuantization(JsonObject object, DType dtype) {
  PreprocessSpec::Quantization quantization;
  const double scale = object.Number("scale");
  if (!(scale >= 1e-30 && scale <= 1e30)) object.Fail("scale", "is not from 1e-30 to 1e30");
  quantization.scale = static_cast<float>(scale);
  const bool is_signed = dtype == DType::kInt8;
  quantization.zero_point =
      static_cast<int>(object.Int("zero_point", is_signed ? -128 : 0, is_signed ? 127 : 255));
  object.Finish();
  return quantization;
}

PreprocessSpec::Accept ReadAccept(JsonObject* object) {
  PreprocessSpec::Accept accept;
  const Words<bool*> words = {
      {"gray", &accept.gray}, {"alpha", &accept.alpha}, {"16bit", &accept.sixteen_bit}};
  for (const std::string& text : object->Strings("accept")) {
    *Choice<bool*>(text, words, "accept", *object) = true;
  }
  return accept;
}

}  // namespace

int CropStart(int size, int crop, PreprocessSpec::Centre centre) {
  const int over = size - crop;
  const int half = over / 2;
  const bool up = centre == PreprocessSpec::Centre::kTorchvision && over % 2 == 1 && half % 2 == 1;
  return up ? half + 1 : half;
}

PreprocessSpec LoadPreprocessSpec(const std::filesystem::path& path) {
  using Color = PreprocessSpec::Color;
  using Decode = PreprocessSpec::Decode;
  using Interpolation = PreprocessSpec::Interpolation;
  using Layout = PreprocessSpec::Layout;
  const JsonDocument document = ReadBundleJson(path);
  JsonObject root = document.Root();
  CheckFormat("edgepack-preprocess", &root);
  PreprocessSpec spec;
  spec.input = root.String("input");
  spec.color = ReadChoice<Color>(
      "color", {{"rgb", Color::kRgb}, {"bgr", Color::kBgr}, {"gray", Color::kGray}}, &root);
  if (root.HasValue("resize")) spec.resize = ReadResize(root.Object("resize"));
  spec.interpolation = ReadChoice<Interpolation>("interpolation",
                                                 {{"linear", Interpolation::kLinear},
                                                  {"nearest", Interpolation::kNearest},
                                                  {"area", Interpolation::kArea},
                                                  {"cubic", Interpolation::kCubic},
                                                  {"pil-bilinear", Interpolation::kPilBilinear},
                                                  {"pil-bicubic", Interpolation::kPilBicubic},
                                                  {"tf-bilinear", Interpolation::kTfBilinear}},
                                                 &root);
  if (root.HasValue("crop")) {
    ReadCrop(root.Object("crop"), &spec);
    if (spec.resize && (spec.crop->height > spec.resize->size.height ||
                        spec.crop->width > spec.resize->size.width)) {
      root.Fail("crop", "is larger than the resized image");
    }
  }
  // Bundles made before there was a choice have none.
  if (root.Has("decode")) {
    spec.decode =
        ReadChoice<Decode>("decode", {{"full", Decode::kFull}, {"scaled", Decode::kScaled}}, &root);
    if (spec.decode == Decode::kScaled && !spec.resize) root.Fail("decode", "needs a resize");
  }
  root.Skip("resize");
  root.Skip("crop");
  spec.layout =
      ReadChoice<Layout>("layout", {{"NCHW", Layout::kNchw}, {"NHWC", Layout::kNhwc}}, &root);
  spec.dtype = ReadChoice<DType>(
      "dtype", {{"float32", DType::kFloat32}, {"uint8", DType::kUInt8}, {"int8", DType::kInt8}},
      &root);
  if (root.HasValue("quantization")) {
    if (spec.dtype == DType::kFloat32) root.Fail("quantization", "cannot be used with float32");
    spec.quantization = ReadQuantization(root.Object("quantization"), spec.dtype);
  } else if (spec.dtype == DType::kInt8) {
    root.Fail("quantization", "missing: int8 needs it");
  }
  if (root.Has("quantization")) root.Skip("quantization");
  if (spec.normalise()) {
    spec.scale = root.Number("scale");
    if (spec.scale == 0) root.Fail("scale", "is 0");
    spec.mean = ReadChannels("mean", spec.channels(), &root);
    spec.std = ReadChannels("std", spec.channels(), &root);
    for (int i = 0; i < spec.channels(); ++i) {
      if (spec.std.at(static_cast<std::size_t>(i)) <= 0) root.Fail("std", "is not above 0");
    }
  } else if (root.Has("scale") || root.Has("mean") || root.Has("std")) {
    root.Fail("dtype", "uint8 takes the pixels as they are, without scale, mean and std");
  }
  spec.accept = ReadAccept(&root);
  // The first specs had none.
  if (root.HasValue("max_pixels")) {
    spec.max_pixels = root.Int("max_pixels", 1, PreprocessSpec::kMostPixels);
  } else if (root.Has("max_pixels")) {
    root.Skip("max_pixels");
  }
  root.Finish();
  // A gray photo is what a gray model wants.
  if (spec.color == Color::kGray) spec.accept.gray = true;
  return spec;
}

}  // namespace edgepack
