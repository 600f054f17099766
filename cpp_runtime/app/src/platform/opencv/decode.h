#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <edgepack/preprocess_spec.h>
#include <opencv2/core/mat.hpp>

namespace edgepack {

/// The image of a JPEG or PNG file as CV_8UC3 in BGR, EXIF orientation applied. Throws ImageError:
/// no such file, no such image, damaged, an animation, of a kind that is not accepted, or of more
/// than `max_pixels` pixels by its header, of which none is decoded then (one message each).
cv::Mat DecodeImage(const std::filesystem::path& path, const PreprocessSpec::Accept& accept,
                    std::int64_t max_pixels = PreprocessSpec::kMostPixels);

/// The same of a file's bytes; `name` is for messages.
cv::Mat DecodeImage(std::string_view file, const std::string& name,
                    const PreprocessSpec::Accept& accept, std::int64_t max_pixels);

}  // namespace edgepack
