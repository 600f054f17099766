// The best class of each step: edgepack/postprocess/ctc.py.
#include <cmath>
#include <cstddef>
#include <string>

#include "postprocess/boxes.h"

namespace edgepack {

void ReadText(const PostprocessSpec& spec, const std::vector<Floats>& tensors, Best* found,
              TextLine* text) {
  const std::size_t classes = spec.characters.size() + 1;
  if (tensors.size() != 1 || tensors.front().shape.size() != 3 ||
      (tensors.front().shape[0] != 1 && tensors.front().shape[1] != 1) ||
      tensors.front().dim(2) != classes) {
    FailTensors("they are not one output of " + std::to_string(classes) + " classes in each step");
  }
  const Floats& tensor = tensors.front();
  const Grid steps = Grid::Rows(tensor.data, classes, tensor.dim(0) * tensor.dim(1));
  FindBest(steps, 0, classes, found);
  const Best& best = *found;
  const std::size_t blank = spec.blank_last ? classes - 1 : 0;
  TextLine& line = *text;
  line.text.clear();
  line.score = 0;
  std::size_t count = 0;
  std::size_t last = blank;
  for (std::size_t step = 0; step < steps.cells; ++step) {
    const std::size_t index = best.index[step];
    if (index != blank && index != last) {
      line.text += spec.characters[spec.blank_last ? index : index - 1];
      auto score = static_cast<double>(best.score[step]);
      if (spec.scores == PostprocessSpec::Scores::kSoftmax) {
        double sum = 0;
        for (std::size_t i = 0; i < classes; ++i) {
          const double other = steps.At(i, step);
          if (!std::isnan(other)) sum += std::exp(other - score);
        }
        score = 1 / sum;
      }
      line.score += score;
      ++count;
    }
    last = index;
  }
  if (count != 0) line.score /= static_cast<double>(count);
  if (!std::isfinite(line.score)) line.score = 0;
}

}  // namespace edgepack
