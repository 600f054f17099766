// For tests of what Python does, too: the readers of preprocess.json and postprocess.json
// (tests/readers.py), and crops that are straightened (tests/integration/test_warp.py).
// On stdin: sizes, each on a line, and as many bytes. A line of JSON for each: what was read, or
// the error. The only argument says which of the three it is.
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <edgepack/postprocess_spec.h>
#include <edgepack/preprocess_spec.h>

#include "app/fuzz/files.h"
#include "bundle_json.h"
#include "common/json.h"
#include "warp.h"

namespace edgepack {
namespace {

void Write(const PreprocessSpec& spec, JsonWriter& json) {
  const std::array<const char*, 3> colors = {"rgb", "bgr", "gray"};
  const std::array<const char*, 3> modes = {"shortest", "exact", "letterbox"};
  const std::array<const char*, 7> filters = {"linear",       "nearest",     "area",       "cubic",
                                              "pil-bilinear", "pil-bicubic", "tf-bilinear"};
  const std::array<const char*, 3> dtypes = {"float32", "uint8", "int8"};
  json.BeginObject().Key("input").String(spec.input);
  json.Key("scaled").Bool(spec.decode == PreprocessSpec::Decode::kScaled);
  json.Key("color").String(colors.at(static_cast<std::size_t>(spec.color)));
  json.Key("resize");
  if (spec.resize) {
    json.BeginObject().Key("mode").String(modes.at(static_cast<std::size_t>(spec.resize->mode)));
    json.Key("size").BeginArray().Int(spec.resize->size.height).Int(spec.resize->size.width);
    json.EndArray().Key("fill").Int(spec.resize->fill).EndObject();
  } else {
    json.Null();
  }
  json.Key("interpolation").String(filters.at(static_cast<std::size_t>(spec.interpolation)));
  json.Key("crop");
  if (spec.crop) {
    const bool floor = spec.crop_centre == PreprocessSpec::Centre::kFloor;
    json.BeginArray().Int(spec.crop->height).Int(spec.crop->width);
    json.String(floor ? "floor" : "torchvision").EndArray();
  } else {
    json.Null();
  }
  json.Key("layout").String(spec.layout == PreprocessSpec::Layout::kNchw ? "NCHW" : "NHWC");
  json.Key("normalise");
  if (spec.normalise()) {
    json.BeginArray().Number(spec.scale);
    for (const auto& values : {spec.mean, spec.std}) {
      for (int c = 0; c < spec.channels(); ++c) json.Number(values.at(static_cast<std::size_t>(c)));
    }
    json.EndArray();
  } else {
    json.Null();
  }
  json.Key("dtype")
      .String(dtypes.at(spec.dtype == DType::kInt8    ? 2
                        : spec.dtype == DType::kUInt8 ? 1
                                                      : 0))
      .Key("quantization");
  if (spec.quantization) {
    json.BeginArray().Number(static_cast<double>(spec.quantization->scale));
    json.Int(spec.quantization->zero_point).EndArray();
  } else {
    json.Null();
  }
  json.Key("accept").BeginArray().Bool(spec.accept.sixteen_bit).Bool(spec.accept.alpha);
  json.Bool(spec.accept.gray).EndArray().Key("max_pixels").Int(spec.max_pixels).EndObject();
}

void Write(const PostprocessSpec& spec, JsonWriter& json) {
  const std::array<const char*, 10> kinds = {"classes", "tensors",   "yolo",         "centernet",
                                             "ssd",     "keypoints", "segmentation", "text-lines",
                                             "ctc",     "embedding"};
  const std::array<const char*, 3> ends = {"first", "last", "none"};
  const std::array<const char*, 3> scores = {"softmax", "sigmoid", "raw"};
  const std::array<const char*, 5> heads = {"v8", "v5", "end2end", "centernet", "centerface"};
  json.BeginObject().Key("kind").String(kinds.at(static_cast<std::size_t>(spec.kind)));
  json.Key("outputs").BeginArray();
  for (const std::string& name : spec.outputs) json.String(name);
  json.EndArray().Key("scores").String(scores.at(static_cast<std::size_t>(spec.scores)));
  json.Key("top").Int(spec.top).Key("least");
  spec.least ? json.Number(*spec.least) : json.Null();
  json.Key("count").Int(spec.count);
  json.Key("size").BeginArray().Int(spec.height).Int(spec.width).EndArray();
  json.Key("boxes").BeginArray().Number(spec.score).Number(spec.iou).Int(spec.max_boxes);
  json.Bool(spec.class_aware).EndArray();
  json.Key("head").String(heads.at(static_cast<std::size_t>(spec.head)));
  json.Key("anchors").BeginArray();
  for (const double side : spec.anchors) json.Number(side);
  json.EndArray().Key("bins").Int(spec.bins).Key("relative").Bool(spec.relative);
  json.Key("points").Int(spec.points).Key("background").Int(spec.background);
  json.Key("lines").BeginArray().Number(spec.threshold).Number(spec.unclip);
  json.Number(spec.least_side).EndArray().Key("characters").BeginArray();
  for (const std::string& one : spec.characters) json.String(one);
  json.EndArray().Key("blank_last").Bool(spec.blank_last);
  json.Key("people").Int(spec.people).Key("vectors").BeginArray();
  for (const double one : spec.vectors) json.Number(one);
  json.EndArray();
  for (const auto& [key, numbers] : {std::pair{"counts", &spec.counts},
                                     {"maps", &spec.maps},
                                     {"strides", &spec.strides},
                                     {"owners", &spec.owners}}) {
    json.Key(key).BeginArray();
    for (const int number : *numbers) json.Int(number);
    json.EndArray();
  }
  json.Key("variances").BeginArray();
  for (const double one : spec.variances) json.Number(one);
  json.EndArray().Key("y_first").Bool(spec.y_first).Key("exp").Bool(spec.exp_sizes);
  json.Key("end").String(ends.at(static_cast<std::size_t>(spec.background_class)));
  json.Key("points_at").BeginArray().Number(spec.shift).Number(spec.centre).EndArray();
  json.Key("channels_last").Bool(spec.channels_last).EndObject();
}

/// A crop of a photo of the `height` and `width`, whose bytes are made up of where they are.
void WriteCrop(const std::filesystem::path& path, JsonWriter& json) {
  const JsonDocument document = ReadBundleJson(path);
  JsonObject object = document.Root();
  const int height = static_cast<int>(object.Int("height", 1, 1000));
  const int width = static_cast<int>(object.Int("width", 1, 1000));
  std::vector<Point> points;
  const std::vector<double> numbers = object.Numbers("points");
  for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) {
    points.push_back({numbers[i], numbers[i + 1]});
  }
  const double padding = object.Number("padding");
  const int side = static_cast<int>(object.Int("side", 0, 1000));
  const Warp warp =
      side > 0 ? WarpByFace(points, side, padding)
               : WarpByCorners(points, padding, object.Number("tall"), object.Bool("turned"));
  std::vector<std::uint8_t> photo(static_cast<std::size_t>(height * width * 3));
  for (std::size_t i = 0; i < photo.size(); ++i) photo[i] = static_cast<std::uint8_t>(i * i % 251);
  std::vector<std::uint8_t> pixels;
  warp.Write(photo.data(), height, width, static_cast<std::size_t>(width) * 3, &pixels);
  json.BeginObject().Key("height").Int(warp.height).Key("width").Int(warp.width);
  json.Key("matrix").BeginArray();
  for (const double one : warp.matrix) json.Number(one);
  json.EndArray().Key("pixels").BeginArray();
  for (const std::uint8_t one : pixels) json.Int(one);
  json.EndArray().EndObject();
}

int Main(const std::string& what) {
  const MemoryFile file;
  std::size_t size = 0;
  while (std::scanf("%zu", &size) == 1 && std::getchar() == '\n') {
    std::string text(size, '\0');
    if (std::fread(text.data(), 1, size, stdin) != size) return kExitUsage;
    file.Write(text);
    JsonWriter json;
    try {
      if (what == "warp") {
        WriteCrop(file.path(), json);
      } else if (what == "postprocess") {
        Write(LoadPostprocessSpec(file.path()), json);
      } else {
        Write(LoadPreprocessSpec(file.path()), json);
      }
    } catch (const Error& error) {
      json.BeginObject().Key("kind").String(error.kind);
      json.Key("message").String(error.message).EndObject();
    }
    std::puts(json.text().c_str());
  }
  return 0;
}

}  // namespace
}  // namespace edgepack

int main(int argc, char** argv) { return edgepack::Main(argc == 2 ? argv[1] : ""); }
