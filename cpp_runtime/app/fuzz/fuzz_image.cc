// Input: a photo.
#include <edgepack/errors.h>
#include <opencv2/core.hpp>

#include "files.h"
#include "platform/opencv/decode.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  // A picture that is larger takes long and shows no more.
  constexpr std::int64_t kMaxPixels = 1 << 14;
  static const MemoryFile file;
  file.Write(Text(data, size));
  try {
    const Decoded whole = DecodeImage(file.path(), {true, true, true}, kMaxPixels);
    const cv::Mat& image = whole.bgr;
    // The decoder saw what our reader of headers saw.
    EDGEPACK_REQUIRE(image.total() >= 1 && image.total() <= kMaxPixels);
    EDGEPACK_REQUIRE(image.type() == CV_8UC3 && image.size() == whole.size);
    const Decoded some = DecodeImage(file.path(), {true, true, true}, kMaxPixels,
                                     [](int /*height*/, int /*width*/) { return 8; });
    // Of a PNG nothing is left out.
    const bool reduced =
        some.bgr.size() == cv::Size((whole.size.width + 7) / 8, (whole.size.height + 7) / 8);
    EDGEPACK_REQUIRE(reduced || some.bgr.size() == whole.size);
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
