#include <algorithm>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>
#include <opencv2/imgcodecs.hpp>

#include "common/fd.h"
#include "common/json.h"
#include "http_client.h"
#include "live.h"
#include "photos.h"
#include "run_app.h"
#include "slot.h"
#include "support.h"
#include "watch.h"

namespace edgepack::testing {
namespace {

/// The model of test_run_app.cc for a photo of 1 x 4 pixels.
void WriteLiveBundle(const TempFolder& folder) {
  WriteBundle(folder.path());
  WriteFile(folder / "model" / "graph.json", Replace(GraphText(), "[1, 4]", "[1, 1, 1, 4]"));
  WriteFile(folder / "preprocess.json", R"({
    "format": "edgepack-preprocess", "version": 1, "input": "x", "color": "gray", "resize": null,
    "interpolation": "linear", "crop": null, "scale": 1, "mean": [0], "std": [1],
    "layout": "NCHW", "dtype": "float32", "accept": []})");
  WriteFile(folder / "postprocess.json", R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "tensors", "outputs": ["y"],
    "count": 4})");
}

struct Lines {
  int code = 0;
  std::vector<std::string> texts;
  std::string err;

  [[nodiscard]] JsonDocument At(std::size_t index) const {
    return {texts.at(index), "line", "kind"};
  }
  /// What the last line says under a key.
  [[nodiscard]] std::int64_t End(const char* key) const {
    const JsonDocument document = At(texts.size() - 1);
    return document.Root().Object("end").Int(key);
  }
};

Lines RunLines(const TempFolder& bundle, std::vector<std::string> words) {
  words.insert(words.end(), {"--bundle", bundle.path().string()});
  std::ostringstream out;
  std::ostringstream err;
  Lines lines;
  lines.code = RunApp(words, out, err);
  lines.err = err.str();
  INFO(lines.err);
  std::istringstream stream(out.str());
  for (std::string line; std::getline(stream, line);) lines.texts.push_back(line);
  return lines;
}

std::vector<double> ValuesIn(const JsonDocument& document) {
  return document.Root().Objects("tensors").at(0).Numbers("values");
}

std::string PngOf(int first) {
  cv::Mat photo(1, 4, CV_8UC1);
  for (int x = 0; x < 4; ++x) photo.data[x] = static_cast<unsigned char>(first + x);
  std::vector<unsigned char> bytes;
  REQUIRE(cv::imencode(".png", photo, bytes));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("photos of a folder, and of a pattern") {
  const TempFolder folder;
  WriteLiveBundle(folder);
  const std::filesystem::path photos = folder / "photos";
  std::filesystem::create_directory(photos);
  WriteFile(photos / "b.png", PngOf(2));
  WriteFile(photos / "a.png", PngOf(1));
  WriteFile(photos / "c.png", "no photo");
  WriteFile(photos / "d.txt", "no photo either");
  Lines lines = RunLines(folder, {"--images", photos.string()});
  CHECK(lines.code == 0);
  REQUIRE(lines.texts.size() == 4);
  CHECK(lines.At(0).Root().String("image") == photos / "a.png");
  CHECK(ValuesIn(lines.At(0)) == std::vector<double>{22, 44, 66, 88});
  CHECK(ValuesIn(lines.At(1)) == std::vector<double>{24, 46, 68, 90});
  CHECK(lines.At(2).Root().String("image") == photos / "c.png");
  CHECK(lines.At(2).Root().Object("error").Int("code") == 2);
  CHECK(lines.End("frames") == 2);
  CHECK(lines.End("broken") == 1);
  CHECK(lines.End("dropped") == 0);
  lines = RunLines(folder, {"--images", photos / "[ab].*"});
  CHECK(lines.texts.size() == 3);
  CHECK(RunLines(folder, {"--images", photos / "*.gif"}).code == 2);
}

TEST_CASE("frames of pixels through a pipe") {
  const TempFolder folder;
  WriteLiveBundle(folder);
  WriteFile(folder / "frames", "\x01\x02\x03\x04\x05\x06\x07\x08\x09");
  const std::vector<std::string> words = {"--frames", "gray", "--size", "4x1", "--from"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return RunLines(folder, all);
  };
  Lines lines = with({folder / "frames"});
  CHECK(lines.code == 0);
  REQUIRE(lines.texts.size() == 3);
  CHECK(ValuesIn(lines.At(0)) == std::vector<double>{22, 44, 66, 88});
  CHECK(lines.At(1).Root().Int("frame") == 1);
  CHECK(ValuesIn(lines.At(1)) == std::vector<double>{30, 52, 74, 96});
  CHECK(lines.End("frames") == 2);
  CHECK(lines.End("broken") == 1);
  CHECK(with({folder / "none"}).code == 2);
  CHECK(with({folder / "frames", "--at-end", "wait"}).code == 2);

  // A pipe whose writers come and go; SIGTERM ends it.
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  HoldStopSignals();  // so that the writer has them held, too
  std::thread writer([&] {
    for (int i = 0; i < 3; ++i) {
      const Fd fd(open(pipe.c_str(), O_WRONLY));
      // Half a frame goes with its writer.
      CHECK(write(fd.get(), "\x01\x02\x03\x04\x05", 5) == 5);
    }
    // Nobody has it open for reading again before its end was seen: the third was, then.
    const Fd last(open(pipe.c_str(), O_WRONLY));
    kill(getpid(), SIGTERM);
  });
  lines = with({pipe, "--at-end", "wait"});
  writer.join();
  CHECK(lines.code == 0);
  CHECK(lines.End("frames") >= 1);
  CHECK(lines.End("broken") >= 1);
}

TEST_CASE("what /metrics says goes to a file, too") {
  const TempFolder folder;
  WriteLiveBundle(folder);
  WriteFile(folder / "frames", "\xFF\xFF\xFF\xFF\x01\x02\x03\x04\x05");
  std::vector<std::string> words = {"--frames",        "gray",     "--size", "4x1", "--from",
                                    folder / "frames", "--metrics"};
  words.push_back(folder / "app.prom");
  CHECK(RunLines(folder, words).code == 0);
  const std::string text = ReadFile(folder / "app.prom");
  CHECK(Contains(text, "edgepack_frame_seconds_count 2\n"));
  CHECK(Contains(text, "edgepack_pictures_total{model=\"\",release=\"\"} 2\n"));
  CHECK(Contains(text, "edgepack_pictures_empty_total{model=\"\",release=\"\"} 0\n"));  // tensors
  CHECK(Contains(text, "edgepack_brightness_bucket{model=\"\",release=\"\",le=\"0.0625\"} 1\n"));
  CHECK(Contains(text, "edgepack_brightness_bucket{model=\"\",release=\"\",le=\"1\"} 2\n"));
  CHECK_FALSE(std::filesystem::exists(folder / "app.prom.new"));
  words.back() = folder / "none" / "app.prom";
  const Lines lines = RunLines(folder, words);
  CHECK(lines.code == 2);
  CHECK(Contains(lines.err, "--metrics: cannot write "));
  CHECK(RunLines(folder, {"--golden", "--metrics", "x"}).code == 2);
}

TEST_CASE("a source that gave nothing of use ends with an error") {
  const TempFolder folder;
  WriteLiveBundle(folder);
  WriteFile(folder / "text", std::string(3000, 'x'));
  WriteFile(folder / "nothing", "");
  WriteFile(folder / "gray", "\x01\x02");
  const auto frames = [&](const std::string& format, const std::string& from) {
    std::vector<std::string> words = {"--frames", format, "--from", folder / from};
    if (format != "mjpeg") words.insert(words.end(), {"--size", "4x1"});
    return RunLines(folder, words);
  };
  Lines lines = frames("mjpeg", "text");
  CHECK(lines.code == 2);
  CHECK(lines.End("frames") == 0);
  CHECK(Contains(lines.err, "nothing of the 3000 bytes that came is a picture"));
  CHECK(Contains(lines.err, "hint: --frames mjpeg takes JPEG pictures"));
  CHECK(frames("mjpeg", "nothing").code == 2);
  CHECK(frames("gray", "nothing").code == 2);
  CHECK(frames("gray", "gray").code == 2);
  // Pictures that the model cannot take: of another size than was said.
  std::vector<unsigned char> bytes;
  REQUIRE(cv::imencode(".jpg", cv::Mat(2, 4, CV_8UC3, cv::Scalar::all(50)), bytes));
  std::string stream;
  for (int i = 0; i < 12; ++i) stream.append(bytes.begin(), bytes.end());
  WriteFile(folder / "large", stream);
  lines = RunLines(folder, {"--frames", "mjpeg", "--size", "4x1", "--from", folder / "large"});
  CHECK(lines.code == 2);
  CHECK(lines.End("broken") == 12);
  CHECK(Contains(lines.err, "gives nothing that can be used, 10 times in a row: frame of 4 x 2"));
  CHECK(Contains(lines.err, "none of the pictures that came (12) could be used"));
  const std::filesystem::path photos = folder / "photos";
  std::filesystem::create_directory(photos);
  WriteFile(photos / "a.png", "no photo");
  CHECK(RunLines(folder, {"--images", photos.string()}).code == 2);
}

TEST_CASE("no pipe, socket or dangling link holds up photos") {
  const TempFolder folder;
  WriteLiveBundle(folder);
  const std::filesystem::path photos = folder / "photos";
  std::filesystem::create_directory(photos);
  WriteFile(photos / "a.png", PngOf(1));
  REQUIRE(mkfifo((photos / "b.png").c_str(), 0600) == 0);
  std::filesystem::create_symlink(photos / "none.png", photos / "c.png");
  WriteFile(photos / "d\xff.png", PngOf(2));
  for (const std::string& where : {photos.string(), (photos / "*.png").string()}) {
    const Lines lines = RunLines(folder, {"--images", where});
    CHECK(lines.code == 0);
    REQUIRE(lines.texts.size() == 3);
    const JsonDocument odd = lines.At(1);
    CHECK(odd.Root().String("image") == (photos / "d\xef\xbf\xbd.png").string());
    CHECK(FromHex(odd.Root().String("image_hex")) == (photos / "d\xff.png").string());
    CHECK(lines.End("broken") == 0);
  }
  // Named, it is opened, and refused at once.
  const Lines named = RunLines(folder, {"--image", photos / "b.png"});
  CHECK(named.code == 2);
  CHECK(Contains(named.err, "not a plain file"));
}

TEST_CASE("a pipe that another takes the place of, and its metrics") {
  const TempFolder folder;
  WriteLiveBundle(folder);
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  HoldStopSignals();
  Lines lines;
  std::thread program([&] {
    lines = RunLines(folder, {"--frames", "gray", "--size", "4x1", "--from", pipe, "--at-end",
                              "wait", "--preview", "unix:" + (folder / "web").string()});
  });
  {
    // The program has it open when this succeeds.
    const Fd first(open(pipe.c_str(), O_WRONLY));
    CHECK(write(first.get(), "\x01\x02\x03\x04", 4) == 4);
  }
  HttpClient client(folder / "web");
  while (!Contains(client.Get("/metrics"), "edgepack_source_up 0\n")) {  // it has no writer
  }
  std::filesystem::remove(pipe);
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  {
    const Fd second(open(pipe.c_str(), O_WRONLY));
    CHECK(write(second.get(), "\x05\x06\x07\x08", 4) == 4);
    std::string metrics;
    while (!Contains(metrics = client.Get("/metrics"), "edgepack_source_up 1\n")) {
    }
    CHECK(Contains(metrics, "edgepack_source_losses_total 1\n"));
    kill(getpid(), SIGTERM);
  }
  program.join();
  CHECK(lines.code == 0);
  CHECK(lines.End("frames") == 2);
  CHECK(Contains(lines.err, "--from: " + pipe + " has no writer\n"));
  CHECK(Contains(lines.err, "--from: " + pipe + " is back, after "));
}

TEST_CASE("colours of frames") {
  const TempFolder folder;
  WriteLiveBundle(folder);
  // Red, as both formats have it: gray is 0.299 of it.
  WriteFile(folder / "rgb", std::string("\xff\0\0\xff\0\0\xff\0\0\xff\0\0", 12));
  WriteFile(folder / "bgr", std::string("\0\0\xff\0\0\xff\0\0\xff\0\0\xff", 12));
  for (const std::string format : {"rgb", "bgr"}) {
    const Lines lines =
        RunLines(folder, {"--frames", format + "24", "--size", "4x1", "--from", folder / format});
    REQUIRE(lines.texts.size() == 2);
    CHECK(ValuesIn(lines.At(0)) == std::vector<double>{172, 192, 212, 232});
  }
}

TEST_CASE("frames of JPEG, some of which are none") {
  const TempFolder folder;
  WriteLiveBundle(folder);
  std::vector<unsigned char> bytes;
  REQUIRE(cv::imencode(".jpg", cv::Mat(1, 4, CV_8UC3, cv::Scalar::all(50)), bytes));
  const std::string good(bytes.begin(), bytes.end());
  REQUIRE(cv::imencode(".jpg", cv::Mat(2, 4, CV_8UC3, cv::Scalar::all(50)), bytes));
  const std::string large(bytes.begin(), bytes.end());
  WriteFile(folder / "frames",
            good + good.substr(0, good.size() - 2) + good + large + good.substr(0, 20));
  Lines lines =
      RunLines(folder, {"--frames", "mjpeg", "--size", "4x1", "--from", folder / "frames"});
  CHECK(lines.code == 0);
  CHECK(lines.texts.size() == 3);
  CHECK(lines.End("frames") == 2);
  CHECK(lines.End("broken") == 3);
  CHECK(ValuesIn(lines.At(0)) == std::vector<double>{120, 140, 160, 180});
}

TEST_CASE("lines in a file, pictures on a page") {
  const TempFolder folder;
  WriteLiveBundle(folder);
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  HoldStopSignals();
  Lines lines;
  int sent = 1;
  std::thread program([&] {
    lines = RunLines(folder, {"--frames", "gray", "--size", "4x1", "--from", pipe, "--out",
                              folder / "lines", "--preview", "unix:" + (folder / "web").string()});
  });
  {
    const Fd frames(open(pipe.c_str(), O_WRONLY));
    const auto send = [&] { CHECK(write(frames.get(), "\x01\x02\x03\x04", 4) == 4); };
    HttpClient client(folder / "web");
    CHECK(Contains(client.Get("/"), "<img src=\"stream\""));
    CHECK(Contains(client.Get("/none"), "HTTP/1.1 404"));
    CHECK(Contains(client.Post("/", ""), "HTTP/1.1 405"));
    send();
    while (!Contains(client.Get("/latest"), "\"values\":[22,44,66,88]")) {
    }
    CHECK(Contains(client.Get("/metrics"), "edgepack_frames_broken_total 0\n"));
    HttpClient viewer(folder / "web");
    CHECK(Contains(viewer.Get("/stream"), "multipart/x-mixed-replace; boundary=edgepack-frame"));
    // It looks at what comes from now on; the first may have been on its way already.
    std::atomic<bool> seen{false};
    std::thread sender([&] {
      for (; !seen; ++sent) {
        send();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    const std::string part = viewer.Receive();
    seen = true;
    sender.join();
    CHECK(Contains(part, "--edgepack-frame\r\nContent-Type: image/jpeg\r\n"));
    const std::string jpeg = BodyOf(part);
    const cv::Mat picture =
        cv::imdecode(std::vector<unsigned char>(jpeg.begin(), jpeg.end()), cv::IMREAD_COLOR);
    CHECK(picture.size() == cv::Size(4, 1));
  }
  program.join();
  CHECK(lines.code == 0);
  CHECK(lines.texts.empty());
  const std::string written = ReadFile(folder / "lines");
  CHECK(std::count(written.begin(), written.end(), '\n') == sent + 1);
  CHECK(Contains(written, "{\"end\":{\"frames\":" + std::to_string(sent) +
                              ",\"broken\":0,\"dropped\":0,\"lost\":0,"));
}

TEST_CASE("the newest is taken, the others are dropped") {
  Slot<int> slot(true);
  int value = 0;
  for (int i = 0; i < 5; ++i) {
    value = i;
    CHECK(slot.Put(&value));
  }
  CHECK(slot.Take(&value));
  CHECK(value == 4);
  CHECK(slot.dropped() == 4);
  CHECK_FALSE(slot.Take(&value, std::chrono::milliseconds(1)));
  CHECK_FALSE(slot.ended());
  value = 7;
  CHECK(slot.Put(&value));
  slot.Close();
  CHECK_FALSE(slot.Put(&value));
  CHECK_FALSE(slot.ended());
  CHECK(slot.Take(&value));
  CHECK(value == 7);
  CHECK(slot.ended());
  CHECK_FALSE(slot.Take(&value));
}

TEST_CASE("nothing is lost on the way") {
  Slot<int> slot;
  std::thread writer([&] {
    for (int i = 0; i < 1000; ++i) {
      int value = i;
      slot.Put(&value);
    }
    slot.Close();
  });
  int next = 0;
  for (int value = 0; slot.Take(&value);) CHECK(value == next++);
  writer.join();
  CHECK(next == 1000);
}

TEST_CASE("shares of latencies") {
  LatencyHistogram latency;
  CHECK(latency.Percentile(0.5) == 0);
  for (int i = 1; i <= 1000; ++i) latency.Add(i);
  CHECK(latency.count() == 1000);
  CHECK(latency.max() == 1000);
  for (const double share : {0.01, 0.5, 0.9, 0.99, 1.0}) {
    CHECK(latency.Percentile(share) >= 1000 * share);
    CHECK(latency.Percentile(share) <= 1060 * share);
  }
  latency.Add(1e30);
  latency.Add(0);
  CHECK(latency.count() == 1002);
}

}  // namespace edgepack::testing
