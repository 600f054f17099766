#pragma once

#include <filesystem>

#include <edgepack/preprocess_spec.h>
#include <opencv2/core/mat.hpp>

namespace edgepack {

/// The image of a JPEG or PNG file as CV_8UC3 in BGR, EXIF orientation applied. Throws ImageError:
/// no such file, no such image, damaged, or of a kind that is not accepted (one message each).
cv::Mat DecodeImage(const std::filesystem::path& path, const PreprocessSpec::Accept& accept);

}  // namespace edgepack
