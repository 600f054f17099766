// Input: postprocess.json, a zero byte, and for each of its outputs a rank, as many dimensions (one
// byte each) and the elements. What is read is tried on those tensors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include <edgepack/postprocessor.h>

#include "files.h"
#include "postprocess/boxes.h"
#include "postprocess/counts.h"

namespace edgepack {
namespace {

constexpr std::size_t kMostElements = 4096;

/// Takes bytes from the front; zeros after the end.
class Bytes {
 public:
  explicit Bytes(std::string_view rest) : rest_(rest) {}

  std::size_t Next() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }

  void Fill(char* data, std::size_t size) {
    if (size == 0) return;  // an empty vector has no memory
    const std::size_t count = std::min(size, rest_.size());
    std::memcpy(data, rest_.data(), count);
    std::memset(data + count, 0, size - count);
    rest_.remove_prefix(count);
  }

 private:
  std::string_view rest_;
};

TensorInfo NextInfo(Bytes* bytes) {
  TensorInfo info;
  const std::size_t kind = bytes->Next();
  info.dtype = kind % 8 < 6 ? DType::kFloat32 : kind % 8 == 6 ? DType::kFloat16 : DType::kInt64;
  std::size_t elements = 1;
  for (std::size_t rank = kind / 8 % 7; rank > 0; --rank) {
    const std::size_t dim =
        std::min(bytes->Next(), kMostElements / std::max<std::size_t>(elements, 1));
    elements *= dim;
    info.shape.push_back(static_cast<std::int64_t>(dim));
  }
  info.bytes = ByteSize(info.dtype, info.shape).value();
  return info;
}

/// Its pixels come in order, and their centres lie in the box.
void CheckMask(const Box& box) {
  std::int64_t last = 0;
  ReadCounts(box.mask.counts, [&](std::int64_t begin, std::int64_t end) {
    EDGEPACK_REQUIRE(begin >= last && begin < end);
    last = end;
    for (std::int64_t at = begin; at < end; ++at) {
      const double x = static_cast<double>(at / box.mask.height) + 0.5;
      const double y = static_cast<double>(at % box.mask.height) + 0.5;
      EDGEPACK_REQUIRE(x >= box.low.x && x < box.high.x && y >= box.low.y && y < box.high.y);
    }
  });
  EDGEPACK_REQUIRE(last <= std::int64_t{box.mask.height} * box.mask.width);
}

void CheckBoxes(const PostprocessSpec& spec, const Geometry& geometry,
                const std::vector<Box>& boxes) {
  EDGEPACK_REQUIRE(boxes.size() <= static_cast<std::size_t>(spec.max_boxes));
  double last = INFINITY;
  for (const Box& box : boxes) {
    EDGEPACK_REQUIRE(box.found.score >= spec.score && (!spec.boxes() || box.found.score <= last));
    EDGEPACK_REQUIRE(box.low.x >= 0 && box.low.x < box.high.x && box.high.x <= geometry.width);
    EDGEPACK_REQUIRE(box.low.y >= 0 && box.low.y < box.high.y && box.high.y <= geometry.height);
    for (const Point point : box.points) {
      EDGEPACK_REQUIRE(point.x >= 0 && point.x <= geometry.width);
      EDGEPACK_REQUIRE(point.y >= 0 && point.y <= geometry.height);
    }
    EDGEPACK_REQUIRE(spec.instances() == (box.mask.height != 0));
    if (box.mask.height != 0) CheckMask(box);
    last = box.found.score;
  }
}

}  // namespace
}  // namespace edgepack

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  static const MemoryFile file;
  const std::string_view input = Text(data, size);
  const std::size_t end = std::min(input.find('\0'), input.size());
  file.Write(input.substr(0, end));
  Bytes rest(input.substr(std::min(end + 1, input.size())));
  try {
    const Postprocessor postprocessor(LoadPostprocessSpec(file.path()));
    const PostprocessSpec& spec = postprocessor.spec();
    std::vector<TensorInfo> infos;
    std::vector<std::vector<char>> elements;
    for (std::size_t i = 0; i < spec.outputs.size(); ++i) {
      infos.push_back(NextInfo(&rest));
      // A vector's own memory is aligned for any number.
      rest.Fill(elements.emplace_back(infos.back().bytes).data(), infos.back().bytes);
    }
    std::vector<TensorView> tensors;
    for (std::size_t i = 0; i < infos.size(); ++i)
      tensors.push_back({&infos[i], elements[i].data()});
    const Geometry geometry = {30, 50, 20, 33, -2, 1};
    PostprocessBuffers buffers;
    Results results;
    for (int run = 0; run < 2; ++run) {  // the second in the first one's memory
      const std::size_t before = results.boxes ? results.boxes->size() : 0;
      postprocessor.Run(tensors, geometry, &buffers, &results);
      if (results.boxes) CheckBoxes(spec, geometry, *results.boxes);
      EDGEPACK_REQUIRE(run == 0 || !results.boxes || results.boxes->size() == before);
    }
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
