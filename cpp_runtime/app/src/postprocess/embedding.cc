// Whose vector is nearest: edgepack/postprocess/embedding.py.
#include <cmath>
#include <cstddef>
#include <limits>

#include "postprocess/boxes.h"

namespace edgepack {

void FindPerson(const PostprocessSpec& spec, const TensorView& embedding, std::vector<Score>* top) {
  const TensorInfo& info = *embedding.info;
  const std::size_t size = info.size();
  if (!IsVector(info.shape) || size == 0 ||
      (!spec.owners.empty() && spec.owners.size() * size != spec.vectors.size())) {
    FailTensors("'" + info.name + "' is no vector as long as those of the gallery");
  }
  if (info.dtype != DType::kFloat32 && info.dtype != DType::kFloat16) {
    FailTensors("'" + info.name + "' is " + std::string(Name(info.dtype)));
  }
  double squares = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const double element = ElementAt(info.dtype, embedding.data, i);
    squares += element * element;
  }
  const double length = std::sqrt(squares);
  top->assign(1, {static_cast<std::size_t>(spec.people), 0});
  if (!std::isfinite(length) || !(length > 0) || spec.owners.empty()) return;
  double nearest = -std::numeric_limits<double>::infinity();
  std::size_t best = 0;
  for (std::size_t row = 0; row < spec.owners.size(); ++row) {
    const double* const known = spec.vectors.data() + row * size;
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) {
      sum += known[i] * ElementAt(info.dtype, embedding.data, i);
    }
    const double near = sum / length;
    if (near > nearest) {
      nearest = near;
      best = row;
    }
  }
  top->front().score = nearest;
  if (nearest >= spec.score) top->front().index = static_cast<std::size_t>(spec.owners[best]);
}

}  // namespace edgepack
