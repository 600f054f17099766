#include <vector>

#include <doctest/doctest.h>
#include <opencv2/imgcodecs.hpp>

#include "frames.h"
#include "support.h"

namespace edgepack::testing {
namespace {

std::string Jpeg(int side, int seed) {
  cv::Mat image(side, side, CV_8UC3);
  for (int i = 0; i < side * side * 3; ++i) {
    image.data[i] = static_cast<unsigned char>((i * 7919 + seed * 104729) >> 3);
  }
  std::vector<unsigned char> bytes;
  REQUIRE(cv::imencode(".jpg", image, bytes));
  return {bytes.begin(), bytes.end()};
}

/// The frames of a stream that comes in pieces of `step` bytes.
std::vector<std::string> Split(FrameSplitter* splitter, const std::string& stream,
                               std::size_t step) {
  std::vector<std::string> frames;
  const auto take = [&] {
    for (std::string frame; splitter->Next(&frame);) frames.push_back(frame);
  };
  for (std::size_t at = 0; at < stream.size(); at += step) {
    splitter->Feed(std::string_view(stream).substr(at, step));
    take();
  }
  splitter->End();
  take();
  return frames;
}

}  // namespace

TEST_CASE("JPEG pictures one after the other") {
  const std::vector<std::string> pictures = {Jpeg(16, 1), Jpeg(33, 2), Jpeg(8, 3)};
  const std::string header = "--frame\r\nContent-Type: image/jpeg\r\n\r\n";
  for (const std::string& between : {std::string(), header}) {
    const std::string stream =
        between + pictures[0] + between + pictures[1] + between + pictures[2];
    for (const std::size_t step : {1U, 2U, 3U, 7U, 100U, 100000U}) {
      CAPTURE(step);
      FrameSplitter splitter;
      CHECK(Split(&splitter, stream, step) == pictures);
      CHECK(splitter.broken() == 0);
    }
  }
}

TEST_CASE("a picture within a picture's segment is none") {
  std::string picture = Jpeg(16, 1);
  const std::string inner = Jpeg(8, 2);
  const std::size_t length = inner.size() + 2;
  const std::string segment = {'\xff', '\xe1', static_cast<char>(length >> 8U),
                               static_cast<char>(length & 0xffU)};
  picture.insert(2, segment + inner);
  FrameSplitter splitter;
  CHECK(Split(&splitter, picture + picture, 50) == std::vector<std::string>{picture, picture});
}

TEST_CASE("pictures that are cut, wherever") {
  const std::string whole = Jpeg(16, 1);
  const std::string next = Jpeg(16, 2);
  for (std::size_t cut = 3; cut < whole.size(); cut += 5) {
    CAPTURE(cut);
    FrameSplitter splitter;
    const std::vector<std::string> frames =
        Split(&splitter, whole + whole.substr(0, cut) + next + next, 64);
    // A cut within a segment may take the picture behind it along, never the one after.
    CHECK(frames.front() == whole);
    CHECK(frames.back() == next);
    CHECK(splitter.broken() >= 1);
    FrameSplitter last;
    CHECK(Split(&last, whole + next.substr(0, cut), 64) == std::vector<std::string>{whole});
    CHECK(last.broken() == 1);
  }
}

TEST_CASE("bytes that are no pictures") {
  FrameSplitter splitter;
  const std::string whole = Jpeg(16, 1);
  CHECK(Split(&splitter, std::string(3000, 'x') + whole + std::string(2000, '\xff'), 999) ==
        std::vector<std::string>{whole});
  CHECK(splitter.broken() == 2);
  // A stream that never ends a picture takes no more memory than the largest may have.
  FrameSplitter endless;
  endless.Feed("\xff\xd8\xff\xda");
  endless.Feed(std::string("\0\2", 2));
  const std::string zeros(std::size_t{1} << 22U, '\0');
  std::string none;
  for (int i = 0; i < 20; ++i) {
    endless.Feed(zeros);
    CHECK_FALSE(endless.Next(&none));
  }
  CHECK(endless.broken() == 1);
}

TEST_CASE("frames of pixels") {
  for (const std::size_t step : {1U, 4U, 6U, 13U}) {
    FrameSplitter splitter(6);
    CHECK(Split(&splitter, "aaaaaabbbbbbcc", step) == std::vector<std::string>{"aaaaaa", "bbbbbb"});
    CHECK(splitter.broken() == 1);
  }
}

}  // namespace edgepack::testing
