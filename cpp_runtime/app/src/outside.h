#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <edgepack/errors.h>
#include <edgepack/model.h>
#include <edgepack/tensor.h>

namespace edgepack {

/// What a kernel says of a position outside of `low` to `high`
/// (edgepack/compiler/backend/inside.py).
struct Outside {
  std::string what;  ///< an input of an operator, in words; or empty
  std::int64_t low = 0;
  std::int64_t high = 0;
  /// The argument that holds the position, and the one that begins with its place there.
  std::optional<std::size_t> source;
  std::optional<std::size_t> where;
};

/// "Gather 'rows': its input 'indices'|-4|3|0|1"; nothing if `text` is something else, or there are
/// not so many arguments.
std::optional<Outside> ReadOutside(std::string_view text, std::size_t arguments);

/// The error of a layer, with the position where `outside` says it. `arguments` are those of the
/// kernel; `inputs` have the names that people know.
PositionError ErrorOf(const Outside& outside, const Layer& layer,
                      const std::vector<TensorView>& arguments,
                      const std::vector<TensorView>& inputs);

}  // namespace edgepack
