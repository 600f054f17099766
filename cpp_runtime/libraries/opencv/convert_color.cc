// cv::cvtColor for the conversions that reading an image and preprocessing ask for. OpenCV's own
// refers to all the others (Lab, HSV, YUV, Bayer), which are a good part of imgproc.
#include "opencv2/imgproc.hpp"

namespace cv {

// In color_rgb.dispatch.cpp; their header cannot be included twice in a unity build.
void cvtColorBGR2BGR(InputArray in, OutputArray out, int channels, bool swap_blue);
void cvtColorBGR2Gray(InputArray in, OutputArray out, bool swap_blue);

void cvtColor(InputArray in, OutputArray out, int code, int, AlgorithmHint) {
  switch (code) {
    case COLOR_BGRA2BGR:
      return cvtColorBGR2BGR(in, out, 3, false);
    case COLOR_BGR2RGB:
      return cvtColorBGR2BGR(in, out, 3, true);
    case COLOR_BGRA2RGBA:
      return cvtColorBGR2BGR(in, out, 4, true);
    case COLOR_BGR2GRAY:
    case COLOR_BGRA2GRAY:
      return cvtColorBGR2Gray(in, out, false);
    default:
      CV_Error(Error::StsBadFlag, "this colour conversion is not part of the runtime app");
  }
}

}  // namespace cv
