// Input: preprocess.json. What is read is tried on a small picture.
#include <cmath>
#include <vector>

#include <edgepack/preprocessor.h>
#include <opencv2/core.hpp>

#include "files.h"
#include "platform/opencv/decode.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  static const MemoryFile file;
  file.Write(Text(data, size));
  try {
    PreprocessSpec spec = LoadPreprocessSpec(file.path());
    EDGEPACK_REQUIRE(spec.max_pixels >= 1 && spec.max_pixels <= PreprocessSpec::kMostPixels);
    EDGEPACK_REQUIRE(spec.scale != 0 && std::isfinite(spec.scale));
    for (std::size_t c = 0; spec.normalise() && c < static_cast<std::size_t>(spec.channels());
         ++c) {
      EDGEPACK_REQUIRE(spec.std.at(c) > 0 && std::isfinite(spec.mean.at(c)));
    }
    if (spec.resize && spec.crop) {
      EDGEPACK_REQUIRE(spec.crop->height <= spec.resize->size.height);
      EDGEPACK_REQUIRE(spec.crop->width <= spec.resize->size.width);
    }
    // A large picture takes long and shows no more.
    if (spec.resize && spec.resize->size.height * spec.resize->size.width > (1 << 16)) return 0;
    const Preprocessor preprocessor(spec);
    static const cv::Mat picture(9, 7, CV_8UC3, cv::Scalar(1, 2, 3));
    const cv::Mat resized = preprocessor.Resized(picture);
    const TensorInfo info = preprocessor.InfoOf(resized);
    std::vector<char> tensor(info.bytes);
    preprocessor.ToTensor(resized, tensor.data());
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
