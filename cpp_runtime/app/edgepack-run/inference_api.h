// Tensors as version 2 of the open inference protocol has them (KServe's, Triton's): JSON, and the
// extension for binary data.
// https://github.com/kserve/open-inference-protocol
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <edgepack/model.h>
#include <edgepack/tensor.h>

#include "http_parser.h"
#include "http_server.h"

namespace edgepack {

/// What a client wants back.
struct InferenceRequest {
  struct Output {
    std::size_t index;  ///< of the model's outputs
    bool binary;
  };

  std::string id;  ///< "" if it gave none
  std::vector<Output> outputs;
};

/// {"name", "versions", "platform", "inputs", "outputs"} of a model.
std::string ModelMetadata(const std::string& name, const std::vector<TensorInfo>& inputs,
                          const std::vector<TensorInfo>& outputs);

/// How many bytes the body of a request may have: these inputs in JSON, well spaced.
std::size_t MostInferenceBytes(const std::vector<TensorInfo>& inputs);

/// Reads a request and writes its tensors into `inputs`, all of which it has to give but for
/// `states`. Throws Error: no JSON, an unknown, missing or repeated tensor, another datatype or
/// shape, a value that its datatype does not have, too few or too many values.
InferenceRequest ReadInference(const HttpRequest& request, const std::vector<TensorView>& inputs,
                               const std::vector<TensorInfo>& outputs,
                               const std::vector<ModelState>& states = {});

/// The answer: JSON, with the binary outputs behind it.
HttpAnswer WriteInference(const InferenceRequest& request, const std::string& model,
                          const std::vector<TensorView>& outputs);

}  // namespace edgepack
