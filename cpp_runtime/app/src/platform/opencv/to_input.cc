#include "platform/opencv/to_input.h"

#include <string>

#include <edgepack/errors.h>

namespace edgepack {

void ToInput(const Decoded& picture, const Preprocessor& preprocessor, const TensorView& input,
             PreprocessBuffers* buffers) {
  const cv::Mat resized = preprocessor.Resized(picture, buffers);
  if (!preprocessor.Fits(resized, *input.info)) {
    const TensorInfo info = preprocessor.InfoOf(resized);
    throw ModelInputError(
        "the preprocessing makes " + std::string(Name(info.dtype)) + " " + ToString(info.shape) +
            " of this image, input '" + input.info->name + "' is " +
            std::string(Name(input.info->dtype)) + " " + ToString(input.info->shape),
        "set resize and crop in the [preprocess] table so that they fit every photo");
  }
  preprocessor.ToTensor(resized, input.data);
}

}  // namespace edgepack
