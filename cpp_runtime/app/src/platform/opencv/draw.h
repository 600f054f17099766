#pragma once

#include <filesystem>
#include <string>

#include <opencv2/core/mat.hpp>

#include "found.h"

namespace edgepack {

/// Draws what was found on its photo (CV_8UC3): boxes with their labels and scores, key points,
/// masks, in colours of the classes; the best classes and text in the corner.
void DrawFound(const Found& found, cv::Mat* image);

/// A mask as a picture (CV_8UC1): the class of each pixel, 255 for none. Throws UsageError for a
/// class that is no less than that.
cv::Mat MaskImage(const Mask& mask);

/// Writes a photo as PNG or JPEG, by the file's name. Throws UsageError.
void SaveImage(const std::filesystem::path& path, const cv::Mat& image);

/// A photo (CV_8UC3) as the bytes of a JPEG to be looked at.
std::string EncodeJpeg(const cv::Mat& image);

}  // namespace edgepack
