#pragma once

#include <filesystem>

#include <edgepack/postprocessor.h>
#include <opencv2/core/mat.hpp>

namespace edgepack {

/// Draws a box and its points on a photo (CV_8UC3), in a colour of its class.
void DrawBox(const Box& box, cv::Mat* image);

/// Writes a photo as PNG or JPEG, by the file's name. Throws UsageError.
void SaveImage(const std::filesystem::path& path, const cv::Mat& image);

}  // namespace edgepack
