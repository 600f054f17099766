#pragma once

#include <edgepack/preprocessor.h>
#include <edgepack/tensor.h>

#include "platform/opencv/decode.h"
#include "platform/opencv/preprocess_buffers.h"

namespace edgepack {

/// Writes the tensor of a picture into the model's input. Throws ModelInputError if the
/// preprocessing makes another one.
void ToInput(const Decoded& picture, const Preprocessor& preprocessor, const TensorView& input,
             PreprocessBuffers* buffers);

}  // namespace edgepack
