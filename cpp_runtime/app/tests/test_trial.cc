#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <opencv2/core.hpp>
#include <opencv2/imgcodecs.hpp>

#include "common/error.h"
#include "common/fd.h"
#include "split.h"
#include "support.h"
#include "trial.h"

namespace edgepack::testing {
namespace {

/// What `edgepack-device trial run` does, by hand: asks for pictures at `folder`/trial/frames.
class Asker {
 public:
  explicit Asker(const std::filesystem::path& folder)
      : listener_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    std::filesystem::create_directories(folder / "trial");
    const std::string path = folder / "trial/frames";
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof(address.sun_path));
    path.copy(address.sun_path, path.size());
    REQUIRE(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
            0);
    REQUIRE(listen(listener_.get(), 1) == 0);
  }

  bool Accept() {
    peer_ = Fd(accept(listener_.get(), nullptr, nullptr));
    return static_cast<bool>(peer_);
  }
  void Ask(const std::string& share) const {
    REQUIRE(send(peer_.get(), share.data(), share.size(), 0) == static_cast<ssize_t>(share.size()));
  }
  /// What was handed over: the words about it, and all bytes; empty if nothing was.
  std::pair<std::string, std::string> Take() {
    std::array<char, 4096> text = {};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
    iovec part = {text.data(), text.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = recvmsg(peer_.get(), &message, MSG_DONTWAIT);
    if (size <= 0) return {};
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    REQUIRE(header != nullptr);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    const Fd memory(fd);
    std::array<char, 4096> bytes = {};
    const ssize_t count = pread(fd, bytes.data(), bytes.size(), 0);
    REQUIRE(count >= 0);
    return {{text.data(), static_cast<std::size_t>(size)},
            {bytes.data(), static_cast<std::size_t>(count)}};
  }
  void HangUp() { peer_.Close(); }
  /// What the candidate says, or the next request.
  void Say(const std::string& text) const { Ask(text); }

 private:
  Fd listener_;
  Fd peer_;
};

const std::string kJpeg = "\xff\xd8\xff\xe0 a picture";

}  // namespace

TEST_CASE("a picture is handed over with its answer, once for each request") {
  const TempFolder folder;
  const std::filesystem::path root = folder / "model";
  const std::filesystem::path release = root / "releases/0123456789ab";
  std::filesystem::create_directories(release);
  Asker asker(root);
  TrialTap tap(release);
  tap.Look();
  REQUIRE(asker.Accept());
  tap.Look();
  CHECK_FALSE(tap.Picks());  // nobody has asked
  asker.Ask("1");
  tap.Look();
  REQUIRE(tap.Picks());
  CHECK_FALSE(tap.Picks());  // one picture for one request
  const auto shared = tap.SharePhoto(kJpeg);
  REQUIRE(shared);
  tap.Give(*shared, "{\"top\":[]}\n");
  const auto [words, bytes] = asker.Take();
  CHECK(words == R"({"format":"mjpeg","width":0,"height":0,"picture_bytes":14,"answer_bytes":11})");
  CHECK(bytes == kJpeg + "{\"top\":[]}\n");

  asker.Ask("1");
  tap.Look();
  REQUIRE(tap.Picks());
  const auto raw = tap.Share("123456", FrameFormat::kBgr24, ImageSize{2, 1});
  REQUIRE(raw);
  tap.Give(*raw, "{}\n");
  CHECK(asker.Take().first ==
        R"({"format":"bgr24","width":2,"height":1,"picture_bytes":6,"answer_bytes":3})");
}

TEST_CASE("a small picture comes with it if the trial asks for one") {
  const TempFolder folder;
  const std::filesystem::path root = folder / "model";
  std::filesystem::create_directories(root / "releases/0123456789ab");
  Asker asker(root);
  TrialTap tap(root / "releases/0123456789ab");
  tap.Look();
  REQUIRE(asker.Accept());
  const cv::Mat pixels(96, 64, CV_8UC3, cv::Scalar(0, 128, 255));
  const auto hand_over = [&](const std::string& request) {
    asker.Ask(request);
    tap.Look();
    REQUIRE(tap.Picks());
    auto shared = tap.Share("123456", FrameFormat::kBgr24, ImageSize{2, 1});
    REQUIRE(shared);
    tap.AddThumbnail(pixels, &*shared);
    tap.Give(*shared, "{}\n");
    return asker.Take();
  };
  CHECK(hand_over("1").second == "123456{}\n");
  CHECK_FALSE(tap.wants_thumbnail());
  const auto [words, bytes] = hand_over("1 24");
  CHECK(tap.wants_thumbnail());
  const std::string jpeg = bytes.substr(9);
  CHECK(words.find("\"thumbnail_bytes\":" + std::to_string(jpeg.size()) + "}") !=
        std::string::npos);
  const cv::Mat seen = cv::imdecode(std::vector<char>(jpeg.begin(), jpeg.end()), cv::IMREAD_COLOR);
  REQUIRE(seen.size() == cv::Size(16, 24));
  const cv::Vec3b pixel = seen.at<cv::Vec3b>(12, 8);
  CHECK(pixel[0] < 12);
  CHECK(std::abs(pixel[1] - 128) < 12);
  CHECK(pixel[2] > 243);
  CHECK(hand_over("1 -5").second == "123456{}\n");
  // Noise, which makes a large file, is left out.
  cv::Mat noise(1024, 1024, CV_8UC3);
  cv::randu(noise, 0, 256);
  SharedPicture large;
  (void)hand_over("1 1024");
  tap.AddThumbnail(noise, &large);
  CHECK(large.thumbnail.empty());
}

TEST_CASE("what cannot be handed over leaves the request open") {
  const TempFolder folder;
  const std::filesystem::path root = folder / "model";
  std::filesystem::create_directories(root / "releases/0123456789ab");
  Asker asker(root);
  TrialTap tap(root / "releases/0123456789ab");
  tap.Look();
  REQUIRE(asker.Accept());
  asker.Ask("1");
  tap.Look();
  REQUIRE(tap.Picks());
  CHECK_FALSE(tap.SharePhoto("\x89PNG"));
  REQUIRE(tap.Picks());
  CHECK_FALSE(tap.SharePhotoAt(root / "no such photo"));
  CHECK(tap.Picks());
}

TEST_CASE("a share of pictures is a share") {
  const TempFolder folder;
  const std::filesystem::path root = folder / "model";
  std::filesystem::create_directories(root / "releases/0123456789ab");
  Asker asker(root);
  TrialTap tap(root / "releases/0123456789ab");
  tap.Look();
  REQUIRE(asker.Accept());
  asker.Ask("0.25");
  tap.Look();
  int picked = 0;
  for (int i = 0; i < 4000; ++i) {
    if (!tap.Picks()) continue;
    ++picked;
    tap.GiveUp();
  }
  // 27 is the standard deviation of a binomial distribution: six of them.
  CHECK(picked > 1000 - 165);
  CHECK(picked < 1000 + 165);
}

TEST_CASE("a trial that ends, or whose side dies, is forgotten, and the next one is found") {
  const TempFolder folder;
  const std::filesystem::path root = folder / "model";
  std::filesystem::create_directories(root / "releases/0123456789ab");
  TrialTap tap(root / "releases/0123456789ab");
  tap.Look();  // there is none yet
  Asker asker(root);
  std::this_thread::sleep_for(std::chrono::milliseconds(1050));
  tap.Look();
  REQUIRE(asker.Accept());
  asker.Ask("1");
  tap.Look();
  REQUIRE(tap.Picks());
  const auto shared = tap.SharePhoto(kJpeg);
  REQUIRE(shared);
  asker.HangUp();
  tap.Give(*shared, "{}\n");  // no SIGPIPE, no error
  CHECK_FALSE(tap.Picks());
  std::this_thread::sleep_for(std::chrono::milliseconds(1050));
  tap.Look();
  CHECK(asker.Accept());
}

namespace {

/// A picture and the own answer to it, in 1 ms.
Report Cat() {
  Report report;
  report.frame = 7;
  report.run_ms = 1;
  report.top.push_back({{3, 0.5}, "cat"});
  return report;
}

const std::string kDog = R"({"frame":0,"edgepack":"1","run_ms":2,"decode_ms":0.5,)"
                         R"("top":[{"index":4,"label":"dog","score":0.75}]})"
                         "\n";

/// An app whose candidate answers all pictures.
struct SplitApp {
  SplitApp() : asker((std::filesystem::create_directories(release), folder / "model")) {
    tap.Look();
    REQUIRE(asker.Accept());
  }

  /// The line that is given for a picture; `said` by the candidate, in time or before.
  std::string Answer(const std::vector<std::string>& said, const Report& ours = Cat()) {
    asker.Ask("1 0 1 ba9876543210");
    tap.Look();
    std::optional<SharedPicture> shared;
    if (tap.Picks()) shared = tap.SharePhoto(kJpeg);
    for (const std::string& one : said) asker.Say(one);
    std::string line = JsonLine(ours);
    const Report& answer = tap.Answer(shared, ours, &line);
    CHECK(line == JsonLine(answer));
    taken = asker.Take().first;
    return line;
  }
  [[nodiscard]] std::string Metric(const std::string& name) const {
    const std::string text = tap.counts().Text("model=\"m\"", "release=\"0123456789ab\"");
    const std::size_t at = text.find("\n" + name + " ");
    if (at == std::string::npos) return {};
    const std::size_t value = at + name.size() + 2;
    return text.substr(value, text.find('\n', value) - value);
  }
  [[nodiscard]] std::string Missed(const std::string& kind) const {
    return Metric(R"(edgepack_split_missed_total{model="m",release="ba9876543210",kind=")" + kind +
                  "\"}");
  }

  TempFolder folder;
  std::filesystem::path release = folder / "model/releases/0123456789ab";
  Asker asker;
  TrialTap tap{release, true};
  std::string taken;
};

}  // namespace

TEST_CASE("the candidate answers in place of the release that runs") {
  SplitApp app;
  const std::string line = app.Answer({kDog});
  CHECK(line.find(R"({"frame":7,"edgepack":)") == 0);  // our number of it
  CHECK(line.find(R"("release":"ba9876543210")") != std::string::npos);
  CHECK(line.find(R"("run_ms":2,"top":[{"index":4,"label":"dog","score":0.75}]})") !=
        std::string::npos);
  CHECK(app.taken.find(R"("reply":true)") != std::string::npos);
  CHECK(app.taken.find("used") == std::string::npos);
  // It is told that it was believed, once.
  CHECK(app.Answer({"-"}).find("cat") != std::string::npos);
  CHECK(app.taken.find(R"("used":true)") != std::string::npos);
  CHECK(app.Answer({"-"}).find("dog") == std::string::npos);
  CHECK(app.taken.find("used") == std::string::npos);
  CHECK(app.Missed("failed") == "2");
  const std::string count = R"(edgepack_split_seconds_count{model="m",release=")";
  CHECK(app.Metric(count + "ba9876543210\"}") == "1");
  CHECK(app.Metric(count + "0123456789ab\"}") == "2");
  const std::string bucket = R"(edgepack_split_seconds_bucket{model="m",release=")";
  CHECK(app.Metric(bucket + "ba9876543210\",le=\"0.0025\"}") == "1");
  CHECK(app.Metric(bucket + "ba9876543210\",le=\"0.001\"}") == "0");
  CHECK(app.Metric(bucket + "0123456789ab\",le=\"0.001\"}") == "2");
}

TEST_CASE("a candidate that is late is not waited for, and its line is no later picture's") {
  SplitApp app;
  CHECK(app.Answer({}).find("cat") != std::string::npos);
  CHECK(app.Missed("late") == "1");
  // It has not asked for another picture, so it is busy.
  CHECK_FALSE(app.tap.Picks());
  CHECK(app.Missed("busy") == "1");
  app.asker.Say(kDog);
  app.tap.Look();
  CHECK_FALSE(app.tap.Picks());
  CHECK(app.Answer({"-"}).find("cat") != std::string::npos);
  CHECK(app.Missed("failed") == "1");
  CHECK(app.Answer({kDog}).find("dog") != std::string::npos);
}

TEST_CASE("the other side of an A/B test dies") {
  SplitApp app;
  app.asker.Ask("1 0 1 ba9876543210");
  app.tap.Look();
  REQUIRE(app.tap.Picks());
  const std::optional<SharedPicture> shared = app.tap.SharePhoto(kJpeg);
  app.asker.HangUp();
  const Report ours = Cat();
  std::string line = JsonLine(ours);
  CHECK(&app.tap.Answer(shared, ours, &line) == &ours);
  CHECK(line == JsonLine(ours));
  CHECK(app.Missed("failed") == "1");
}

TEST_CASE("what a candidate says that is no answer") {
  SplitApp app;
  const auto top = [](const std::string& one) { return R"({"top":[)" + one + "]}\n"; };
  const std::vector<std::string> wrong = {
      "{}\n",
      "{\n",
      R"({"error":{"code":2}})",
      R"({"top":[]})",
      R"({"top":3})",
      R"({"boxes":[]})",  // of another kind
      top(R"({"index":-1,"score":1})"),
      top(R"({"index":1000001,"score":1})"),
      top(R"({"index":1})"),
      top(R"({"index":1,"score":null})"),
      top(R"({"index":1,"score":1e999})"),
      top(R"({"index":1,"score":1,"label":7})"),
      top(R"({"index":1,"score":1,"label":")" + std::string(257, 'x') + "\"}"),
      top("{\"index\":1,\"score\":1,\"label\":\"\xff\"}"),
      R"({"run_ms":-1,"top":[{"index":1,"score":1}]})",
      R"({"run_ms":1e300,"top":[{"index":1,"score":1}]})",
      R"({"top":[{"index":1,"score":1}],"more":")" + std::string(kMostLineBytes, 'x') + "\"}",
  };
  for (const std::string& line : wrong) {
    CAPTURE(line.substr(0, 100));
    CHECK(app.Answer({line}).find("cat") != std::string::npos);
  }
  CHECK(app.Missed("invalid") == std::to_string(wrong.size()));
  CHECK(app.Missed("late") == "0");
}

TEST_CASE("kinds of answers that a candidate can give, and those that it cannot") {
  CandidateAnswer answer;
  Report ours;
  ours.boxes.emplace();
  CHECK(CanSplit(ours));
  answer.Read(R"({"boxes":[{"index":2,"score":0.5,"box":[1,2,3.5,4],"points":[[5,6],[7,8]]}]})",
              ours);
  REQUIRE(answer.report.boxes->size() == 1);
  const Box& box = answer.report.boxes->front().box;
  CHECK(box.low.x == 1);
  CHECK(box.low.y == 2);
  CHECK(box.high.x == 3.5);
  CHECK(box.high.y == 4);
  CHECK(box.points.at(1).x == 7);
  for (const char* const wrong :
       {R"("box":[1,2,3])", R"("box":[1,2,3,1e9])", R"("box":[1,2,3,true])", R"("box":[])",
        R"("box":[1,2,3,4],"points":[[5]])", R"("box":[1,2,3,4],"mask":{})",
        R"("box":[1,2,3,4],"answers":{})"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(
        answer.Read(R"({"boxes":[{"index":2,"score":0.5,)" + std::string(wrong) + "}]}", ours),
        Error);
  }
  ours.boxes->emplace_back().box.mask.height = 2;
  CHECK_FALSE(CanSplit(ours));

  Report marks;
  marks.keypoints.emplace();
  CHECK(CanSplit(marks));
  answer.Read(R"({"keypoints":[{"index":0,"label":"nose","score":1,"point":[3,4]}]})", marks);
  CHECK(answer.report.keypoints->front().mark.point.y == 4);
  CHECK(answer.report.keypoints->front().label == "nose");
  Report text;
  text.text.emplace();
  CHECK(CanSplit(text));
  answer.Read(R"({"text":[{"text":"AB 12","score":0.9}]})", text);
  CHECK(answer.report.text->text == "AB 12");
  CHECK_THROWS_AS(answer.Read(R"({"text":[]})", text), Error);
  Report mask;
  mask.mask.emplace();
  CHECK_FALSE(CanSplit(mask));
  Report tensors;
  tensors.tensors.emplace_back();
  CHECK_FALSE(CanSplit(tensors));
}

TEST_CASE("a share is the candidate's to answer, and none where it cannot be") {
  for (const bool may_split : {true, false}) {
    const TempFolder folder;
    const std::filesystem::path root = folder / "model";
    std::filesystem::create_directories(root / "releases/0123456789ab");
    Asker asker(root);
    TrialTap tap(root / "releases/0123456789ab", may_split);
    tap.Look();
    REQUIRE(asker.Accept());
    asker.Ask("0.5 0 0.25 ba9876543210");
    tap.Look();
    int picked = 0;
    int split = 0;
    for (int i = 0; i < 4000; ++i) {
      if (!tap.Picks()) continue;
      ++picked;
      const auto shared = tap.SharePhoto(kJpeg);
      REQUIRE(shared);
      if (shared->split) ++split;
      // As if it had been answered; a photo that cannot be handed over is none of the candidate's.
      tap.GiveUp();
    }
    // Six standard deviations of binomial distributions, 32 and 27.
    CHECK(std::abs(picked - 2000) < 6 * 32);
    CHECK(std::abs(split - (may_split ? 1000 : 0)) < (may_split ? 6 * 27 : 1));
  }
}

TEST_CASE("an app outside of a folder of releases has no trials") {
  const TempFolder folder;
  const std::filesystem::path root = folder / "model";
  std::filesystem::create_directories(root / "bundle");
  Asker asker(root);
  TrialTap tap(root / "bundle");
  tap.Look();
  CHECK_FALSE(asker.Accept());
}

}  // namespace edgepack::testing
