#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <edgepack/preprocess_spec.h>
#include <opencv2/core/mat.hpp>

namespace edgepack {

/// A photo as CV_8UC3 in BGR, and its size, turned as it is: more than that of the pixels here if
/// it was reduced.
struct Decoded {
  // Not explicit: pixels from elsewhere are a whole picture.
  Decoded(cv::Mat all) : bgr(std::move(all)), size(bgr.size()) {}  // NOLINT(*-explicit-*)
  Decoded(cv::Mat some, cv::Size of) : bgr(std::move(some)), size(of) {}

  cv::Mat bgr;
  cv::Size size;
};

/// By what a JPEG of `height` x `width` pixels is to be divided: 1, 2, 4 or 8.
using Reduction = std::function<int(int height, int width)>;

/// The image of a JPEG or PNG file, EXIF orientation applied; a JPEG reduced, if asked for, by
/// libjpeg as it decodes. Throws ImageError: no such file, no such image, damaged, an animation, of
/// a kind that is not accepted, or of more than `max_pixels` pixels by its header, of which none is
/// decoded then (one message each).
Decoded DecodeImage(const std::filesystem::path& path, const PreprocessSpec::Accept& accept,
                    std::int64_t max_pixels = PreprocessSpec::kMostPixels,
                    const Reduction& reduction = nullptr);

/// The same of a file's bytes; `name` is for messages. It is written to `memory`, if that is given
/// and has the size.
Decoded DecodeImage(std::string_view file, const std::string& name,
                    const PreprocessSpec::Accept& accept, std::int64_t max_pixels,
                    const Reduction& reduction = nullptr, cv::Mat* memory = nullptr);

}  // namespace edgepack
