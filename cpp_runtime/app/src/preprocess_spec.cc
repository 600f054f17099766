#include <string_view>
#include <utility>
#include <vector>

#include <edgepack/preprocess_spec.h>

#include "platform/tvm_ffi/json.h"

namespace edgepack {
namespace {

constexpr std::int64_t kMaxSide = 16384;

/// The value that belongs to one of `words`.
template <typename T>
T Choice(const JsonNode& node, const std::vector<std::pair<std::string_view, T>>& words) {
  const std::string text = node.String();
  std::string known;
  for (const auto& [word, value] : words) {
    if (word == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  node.Fail("'" + text + "' is none of " + known);
}

int Side(const JsonNode& node) { return static_cast<int>(node.Int(1, kMaxSide)); }

PreprocessSpec::Resize ReadResize(const JsonNode& node) {
  using Mode = PreprocessSpec::Resize::Mode;
  PreprocessSpec::Resize resize;
  resize.mode = Choice<Mode>(
      node["mode"],
      {{"shortest", Mode::kShortest}, {"exact", Mode::kExact}, {"letterbox", Mode::kLetterbox}});
  if (resize.mode == Mode::kShortest) {
    node.CheckKeys({"mode", "size"});
    resize.size.height = resize.size.width = Side(node["size"]);
    return resize;
  }
  resize.size = {Side(node["height"]), Side(node["width"])};
  if (resize.mode == Mode::kLetterbox) {
    node.CheckKeys({"mode", "height", "width", "fill"});
    resize.fill = static_cast<int>(node["fill"].Int(0, 255));
  } else {
    node.CheckKeys({"mode", "height", "width"});
  }
  return resize;
}

PreprocessSpec::Size ReadCrop(const JsonNode& node) {
  node.CheckKeys({"height", "width"});
  return {Side(node["height"]), Side(node["width"])};
}

std::array<double, 3> ReadChannels(const JsonNode& node, int channels) {
  const std::vector<JsonNode> elements = node.Elements();
  if (elements.size() != static_cast<std::size_t>(channels)) {
    node.Fail("needs " + std::to_string(channels) + " values");
  }
  std::array<double, 3> values = {};
  for (std::size_t i = 0; i < elements.size(); ++i) values.at(i) = elements[i].Number();
  return values;
}

PreprocessSpec::Accept ReadAccept(const JsonNode& node) {
  PreprocessSpec::Accept accept;
  for (const JsonNode& element : node.Elements()) {
    *Choice<bool*>(
        element,
        {{"gray", &accept.gray}, {"alpha", &accept.alpha}, {"16bit", &accept.sixteen_bit}}) = true;
  }
  return accept;
}

}  // namespace

PreprocessSpec LoadPreprocessSpec(const std::filesystem::path& path) {
  using Color = PreprocessSpec::Color;
  using Interpolation = PreprocessSpec::Interpolation;
  using Layout = PreprocessSpec::Layout;
  const JsonNode root = JsonNode::File(path);
  if (!root.Has("format") || root["format"].String() != "edgepack-preprocess") {
    root.Fail("is not an edgepack preprocessing");
  }
  if (root["version"].Int() != 1) root["version"].Fail("this edgepack-run reads version 1");
  root.CheckKeys({"format", "version", "input", "color", "resize", "interpolation", "crop", "scale",
                  "mean", "std", "layout", "dtype", "accept"});
  PreprocessSpec spec;
  spec.input = root["input"].String();
  spec.color = Choice<Color>(root["color"],
                             {{"rgb", Color::kRgb}, {"bgr", Color::kBgr}, {"gray", Color::kGray}});
  if (!root["resize"].IsNull()) spec.resize = ReadResize(root["resize"]);
  spec.interpolation =
      Choice<Interpolation>(root["interpolation"], {{"linear", Interpolation::kLinear},
                                                    {"nearest", Interpolation::kNearest},
                                                    {"area", Interpolation::kArea},
                                                    {"cubic", Interpolation::kCubic},
                                                    {"pil-bilinear", Interpolation::kPilBilinear},
                                                    {"pil-bicubic", Interpolation::kPilBicubic}});
  if (!root["crop"].IsNull()) spec.crop = ReadCrop(root["crop"]);
  spec.layout = Choice<Layout>(root["layout"], {{"NCHW", Layout::kNchw}, {"NHWC", Layout::kNhwc}});
  spec.normalise = Choice<bool>(root["dtype"], {{"float32", true}, {"uint8", false}});
  if (spec.normalise) {
    spec.scale = root["scale"].Number();
    spec.mean = ReadChannels(root["mean"], spec.channels());
    spec.std = ReadChannels(root["std"], spec.channels());
    for (int i = 0; i < spec.channels(); ++i) {
      if (spec.std.at(static_cast<std::size_t>(i)) <= 0) root["std"].Fail("is not above 0");
    }
  } else if (root.Has("scale") || root.Has("mean") || root.Has("std")) {
    root["dtype"].Fail("uint8 takes the pixels as they are, without scale, mean and std");
  }
  spec.accept = ReadAccept(root["accept"]);
  // A gray photo is what a gray model wants.
  if (spec.color == Color::kGray) spec.accept.gray = true;
  return spec;
}

}  // namespace edgepack
