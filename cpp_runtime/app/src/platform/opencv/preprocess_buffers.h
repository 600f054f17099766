#pragma once

#include <opencv2/core/mat.hpp>

#include "platform/opencv/pillow_resize.h"
#include "platform/opencv/tf_resize.h"

namespace edgepack {

/// The images that a Preprocessor makes on its way, for the next photo of the same size.
struct PreprocessBuffers {
  cv::Mat gray;
  cv::Mat scaled;
  PillowBuffers pillow;
  TfBuffers tf;
  cv::Mat canvas;
  cv::Mat swapped;
};

}  // namespace edgepack
