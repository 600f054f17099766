// Input: how many bytes come at a time, and a stream of them: JPEG pictures, or frames of pixels.
#include <algorithm>
#include <string>

#include "common/fuzz/fuzz.h"
#include "frames.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  if (size < 2) return 0;
  const std::size_t step = std::max<std::size_t>(data[0], 1);
  FrameSplitter splitter = data[1] == 0 ? FrameSplitter() : FrameSplitter(data[1]);
  std::size_t left = size - 2;
  for (std::string_view rest = Text(data + 2, size - 2); !rest.empty();
       rest.remove_prefix(std::min(step, rest.size()))) {
    splitter.Feed(rest.substr(0, step));
    for (std::string frame; splitter.Next(&frame);) {
      EDGEPACK_REQUIRE(!frame.empty() && frame.size() <= left);
      left -= frame.size();
      if (data[1] != 0) {
        EDGEPACK_REQUIRE(frame.size() == data[1]);
        continue;
      }
      EDGEPACK_REQUIRE(frame.substr(0, 2) == "\xff\xd8");
      EDGEPACK_REQUIRE(frame.substr(frame.size() - 2) == "\xff\xd9");
    }
  }
  splitter.End();
  for (std::string frame; splitter.Next(&frame);) {
  }
  return 0;
}
