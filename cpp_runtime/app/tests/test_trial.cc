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

#include "common/fd.h"
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
