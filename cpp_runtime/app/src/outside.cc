#include "outside.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace edgepack {
namespace {

/// A number that is all of `text`.
std::optional<std::int64_t> NumberIn(std::string_view text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [behind, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || behind != end) return std::nullopt;
  return number;
}

/// Element `index` of a tensor, as people write it.
std::string ValueAt(const TensorView& tensor, std::size_t index) {
  if (tensor.info->dtype == DType::kInt64) {
    const char* const data = static_cast<const char*>(tensor.data);
    std::int64_t value = 0;
    std::memcpy(&value, data + index * sizeof(value), sizeof(value));
    return std::to_string(value);
  }
  const double value = ElementAt(tensor.info->dtype, tensor.data, index);
  // An int32 has more digits than a float.
  if (tensor.info->dtype == DType::kInt32) {
    return std::to_string(static_cast<std::int32_t>(value));
  }
  std::array<char, 32> text = {};
  (void)std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

/// The place below `size` that a tensor begins with; `size` if it is none.
std::size_t PlaceIn(const TensorView& tensor, std::size_t size) {
  if (tensor.info->size() == 0) return size;
  const double place = ElementAt(tensor.info->dtype, tensor.data, 0);
  return place >= 0 && place < static_cast<double>(size) ? static_cast<std::size_t>(place) : size;
}

/// " at [1, 2]" of element number `index`; nothing of a scalar.
std::string PlaceOf(std::size_t index, const Shape& shape) {
  if (shape.empty()) return "";
  std::string text;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    const auto extent = static_cast<std::size_t>(shape[axis]);
    text.insert(0, (axis == 0 ? "" : ", ") + std::to_string(index % extent));
    index /= extent;
  }
  return " at [" + text + "]";
}

/// " ('ids')" if a tensor is an input of the model.
std::string NameOf(const TensorView& tensor, const std::vector<TensorView>& inputs) {
  const auto is_it = [&](const TensorView& input) { return input.info->name == tensor.info->name; };
  const bool known = std::any_of(inputs.begin(), inputs.end(), is_it);
  return known ? " ('" + tensor.info->name + "')" : "";
}

}  // namespace

std::optional<Outside> ReadOutside(std::string_view text, std::size_t arguments) {
  Outside outside;
  std::array<std::int64_t, 4> numbers = {};
  // From the end: a name may have the separator in it.
  for (std::size_t i = numbers.size(); i-- > 0;) {
    const std::size_t bar = text.rfind('|');
    if (bar == std::string_view::npos) return std::nullopt;
    const std::optional<std::int64_t> number = NumberIn(text.substr(bar + 1));
    if (!number) return std::nullopt;
    numbers[i] = *number;
    text = text.substr(0, bar);
  }
  outside.what = text;
  outside.low = numbers[0];
  outside.high = numbers[1];
  const auto argument = [arguments](std::int64_t number) -> std::optional<std::size_t> {
    if (number < 0 || static_cast<std::uint64_t>(number) >= arguments) return std::nullopt;
    return static_cast<std::size_t>(number);
  };
  outside.source = argument(numbers[2]);
  outside.where = argument(numbers[3]);
  return outside;
}

PositionError ErrorOf(const Outside& outside, const Layer& layer,
                      const std::vector<TensorView>& arguments,
                      const std::vector<TensorView>& inputs) {
  std::string text = outside.what;
  if (text.empty()) {
    text = layer.op.empty() ? "kernel " + layer.kernel : layer.op + " '" + layer.name + "'";
    text += ": a position";
  }
  bool known = false;
  if (outside.source) {
    const TensorView& source = arguments[*outside.source];
    text += NameOf(source, inputs);
    if (outside.where) {
      const std::size_t place = PlaceIn(arguments[*outside.where], source.info->size());
      known = place < source.info->size();
      if (known) {
        text += " has " + ValueAt(source, place) + PlaceOf(place, source.info->shape) + ", which";
      }
    }
  }
  if (!known && !outside.what.empty()) text += " has a position that";
  return PositionError(text + " is not between " + std::to_string(outside.low) + " and " +
                       std::to_string(outside.high));
}

}  // namespace edgepack
