#include <doctest/doctest.h>
#include <edgepack/errors.h>

#include "options.h"
#include "support.h"

namespace edgepack::testing {
namespace {

std::string ParseError(const std::vector<std::string>& words) {
  return MessageOf<UsageError>([&] { ParseOptions(words); });
}

}  // namespace

TEST_CASE("options are read") {
  const Options options =
      ParseOptions({"--input",          "a.npy", "--input=b.npy", "--output",  "c.npy",
                    "--tolerance",      "1e-3",  "--warmup=0",    "--threads", "2",
                    "--affinity",       "0,2-3", "--json",        "--top",     "3",
                    "--expected",       "d.npy", "--bundle",      "/b",        "--dump",
                    "7:19:/tmp/a:b.npy"});
  CHECK(options.inputs.size() == 2);
  CHECK(options.inputs[1] == "b.npy");
  CHECK(options.outputs.at(0) == "c.npy");
  CHECK(options.tolerance == 1e-3);
  CHECK(ParseOptions({"--golden", "--bench", "10"}).bench == 10);
  CHECK(options.warmup == 0);
  CHECK(options.threads == 2);
  CHECK(options.affinity == "0,2-3");
  CHECK(options.json);
  CHECK(options.top == 3);
  CHECK(options.expected.at(0) == "d.npy");
  CHECK(options.bundle == "/b");
  CHECK(options.dumps.at(0).call == 7);
  CHECK(options.dumps.at(0).tensor == 19);
  CHECK(options.dumps.at(0).file == "/tmp/a:b.npy");
  CHECK(ParseOptions({"--golden", "--bench", "2", "--profile"}).profile);
  const Options post = ParseOptions({"--postprocess", "a.npy", "--size", "640x480"});
  CHECK(post.postprocess.at(0) == "a.npy");
  CHECK(post.size->width == 640);
  CHECK(post.size->height == 480);
  CHECK(ParseOptions({"--help"}).help);
  CHECK(ParseOptions({"--version"}).version);
}

TEST_CASE("mistakes") {
  CHECK(ParseError({"photo.jpg"}) == "unexpected word: photo.jpg");
  CHECK(ParseError({}) == "no input");
  CHECK(Contains(ParseError({"--golden", "--image", "a"}), "exclude each other"));
  CHECK(Contains(ParseError({"--golden", "--expected", "a"}), "has its own"));
  CHECK(ParseError({"--golden", "--profile"}) == "--profile needs --bench");
  CHECK(Contains(ParseError({"--golden", "--preprocess-only"}), "need --image"));
  CHECK(
      Contains(ParseError({"--image", "a", "--preprocess-only", "--bench", "1"}), "does not run"));
  CHECK(ParseError({"--frames", "rgb24"}) == "--frames of pixels need --size");
  CHECK(ParseError({"--frames", "h264"}) ==
        "--frames: 'h264' is none of bgr24, gray, mjpeg, rgb24, yuyv");
  CHECK(Contains(ParseError({"--frames", "mjpeg", "--at-end", "wait"}), "cannot be opened again"));
  CHECK(Contains(ParseError({"--golden", "--newest"}), "need --frames"));
  CHECK(Contains(ParseError({"--images", "a", "--bench", "1"}), "write lines of results"));
  for (const char* value : {"", "7", "7:1", "7:1:", ":1:f", "7::f", "-1:2:f", "1:x:f"}) {
    CAPTURE(value);
    CHECK(Contains(ParseError({"--golden", "--dump", value}), "--dump: '"));
  }
  CHECK(Contains(ParseError({"--golden", "--bench", "1", "--dump", "1:2:f"}), "single run"));
  CHECK(ParseOptions({"--load-only", "--bundle", "b"}).load_only);
  CHECK(Contains(ParseError({"--load-only", "--golden"}), "exclude each other"));
  CHECK(Contains(ParseError({"--load-only", "--bench", "1"}), "does not run the model"));
  CHECK(ParseError({"--golden", "--size", "1x1"}) == "--size needs --frames or --postprocess");
  CHECK(Contains(ParseError({"--golden", "--draw", "a.png"}),
                 "--draw, --mask and --save-crops need --image"));
  CHECK(Contains(ParseError({"--golden", "--fps", "5"}), "--fps needs --camera"));
  CHECK(Contains(ParseError({"--golden", "--track", "5"}), "--track needs --images, --frames"));
  CHECK(Contains(ParseError({"--camera", "v", "--frames", "gray"}), "mjpeg or yuyv"));
  CHECK(Contains(ParseError({"--camera", "v", "--at-end", "wait"}), "--at-end wait is for pipes"));
  CHECK(Contains(ParseError({"--camera", "v", "--image", "a"}), "exclude each other"));
  CHECK(Contains(ParseError({"--postprocess", "a", "--bench", "1"}), "does not run the model"));
  CHECK(Contains(ParseError({"--postprocess", "a", "--size", "640"}), "is no WIDTHxHEIGHT"));
  CHECK(Contains(ParseError({"--postprocess", "a", "--size", "0x480"}), "--size: '0' is not"));
  for (const char* value : {"", "x", "0", "-1", "1.5", "2x", "99999999999"}) {
    CAPTURE(value);
    CHECK(Contains(ParseError({"--golden", "--bench", value}), "--bench: '"));
    CHECK(Contains(ParseError({"--golden", "--threads", value}), "--threads: '"));
  }
  for (const char* value : {"", "x", "0", "-1", "nan", "inf", "86401", "2s"}) {
    CAPTURE(value);
    CHECK(Contains(ParseError({"--golden", "--gpu-limit", value}), "--gpu-limit: '"));
  }
  CHECK(ParseOptions({"--golden", "--gpu-limit", "2.5"}).gpu_limit_s == 2.5);
  for (const char* value : {"", "x", "-1", "nan", "inf", "1e-4x"}) {
    CAPTURE(value);
    CHECK(Contains(ParseError({"--golden", "--tolerance", value}), "--tolerance: '"));
  }
}

}  // namespace edgepack::testing
