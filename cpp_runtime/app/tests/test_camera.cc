#include <cstdint>

#include <doctest/doctest.h>
#include <edgepack/errors.h>

#include "camera.h"
#include "frames.h"
#include "recorded_device.h"
#include "support.h"

namespace edgepack::testing {
namespace {

const std::string kJpeg("\xff\xd8\xff\xd9", 4);

std::string Numbered(char number) {
  return std::string("\xff\xd8\xff\xfe\x00\x03", 6) + number + std::string("\xff\xd9", 2);
}

/// Its newest frame; "" if there is none.
std::string Next(Camera* camera) {
  std::string frame;
  return camera->Next(&frame, std::chrono::milliseconds(0)) ? frame : "";
}

}  // namespace

TEST_CASE("a camera gives its newest frame") {
  RecordedDevice device;
  device.events = {{{Numbered('a')}}, {{Numbered('b'), Numbered('c'), Numbered('d')}}, {}};
  device.interrupted = 3;
  {
    Camera camera(&device, "cam", {std::nullopt, std::nullopt, 25});
    CHECK(camera.format() == FrameFormat::kMjpeg);
    CHECK(camera.size().width == 4);
    CHECK(device.streaming);
    CHECK(device.fps == 25);
    CHECK(device.queued.size() == 4);
    CHECK(Next(&camera) == Numbered('a'));
    CHECK(Next(&camera) == Numbered('d'));
    CHECK(camera.dropped() == 2);
    CHECK(Next(&camera).empty());  // woken up for nothing
    CHECK(Next(&camera).empty());  // a stop signal
    CHECK_FALSE(camera.gone());
    CHECK(device.queued.size() == 4);
  }
  CHECK_FALSE(device.streaming);
  CHECK(device.mapped == 0);
  CHECK(device.memory.empty());
}

TEST_CASE("frames of a camera that are none, and its end") {
  RecordedDevice device;
  RecordedDevice::Event flagged;
  flagged.frames = {Numbered('a')};
  flagged.flags = V4L2_BUF_FLAG_ERROR;
  RecordedDevice::Event failed;
  failed.error = EIO;
  RecordedDevice::Event gone;
  gone.error = ENODEV;
  device.events = {flagged, {{"no picture"}}, failed, {{kJpeg + std::string(9, '\0')}}, gone};
  Camera camera(&device, "cam", {});
  for (int i = 0; i < 3; ++i) CHECK(Next(&camera).empty());
  CHECK(camera.broken() == 3);
  CHECK(Next(&camera) == kJpeg);  // padded by the driver
  CHECK_FALSE(camera.gone());
  CHECK(Next(&camera).empty());
  CHECK(camera.gone());
  CHECK(Next(&camera).empty());
  CHECK(device.queued.size() == 4);
}

TEST_CASE("rows of a camera may have gaps") {
  RecordedDevice device;
  device.stride = 10;
  device.events = {{{"01234567__abcdefgh"}}, {{"01234567__abcdefg"}}};
  Camera camera(&device, "cam", {FrameFormat::kYuyv, ImageSize{4, 2}, std::nullopt});
  CHECK(camera.format() == FrameFormat::kYuyv);
  CHECK(Next(&camera) == "01234567abcdefgh");
  CHECK(Next(&camera).empty());  // a byte too few
  CHECK(camera.broken() == 1);
}

TEST_CASE("cameras that cannot do what is asked for") {
  const auto error = [](RecordedDevice* device, const CameraWish& wish) {
    return MessageOf<UsageError>([&] { const Camera camera(device, "cam", wish); });
  };
  RecordedDevice none;
  none.errors[VIDIOC_QUERYCAP] = ENOTTY;
  CHECK(Contains(error(&none, {}), "--camera: cam is no video device"));
  RecordedDevice metadata;
  metadata.capabilities = V4L2_CAP_STREAMING;
  CHECK(Contains(error(&metadata, {}), "cam gives no pictures"));
  RecordedDevice raw;
  raw.formats = {{V4L2_PIX_FMT_SRGGB8, {4, 2}}};
  CHECK(Contains(error(&raw, {}), "neither mjpeg nor yuyv"));
  RecordedDevice small;
  CHECK(Contains(error(&small, {FrameFormat::kYuyv, ImageSize{640, 480}, std::nullopt}),
                 "cam has no yuyv of 640x480"));
  RecordedDevice busy;
  busy.errors[VIDIOC_STREAMON] = EBUSY;
  CHECK(Contains(error(&busy, {}), "cannot begin"));
  CHECK(busy.mapped == 0);
  RecordedDevice fixed;  // its rate cannot be set
  fixed.errors[VIDIOC_S_PARM] = ENOTTY;
  CHECK(Camera(&fixed, "cam", {std::nullopt, std::nullopt, 30}).size().height == 2);
}

TEST_CASE("colours of YUYV") {
  // BT.601: black, white; then a red and a blue pair by the formula of ITU-R BT.601-7, 2.5.
  const std::string yuyv("\x10\x80\xeb\x80\x51\x5a\x51\xf0\x29\xf0\x29\x6e", 12);
  std::uint8_t bgr[18] = {};
  YuyvToBgr(yuyv, {6, 1}, bgr);
  CHECK(std::vector<int>(bgr, bgr + 6) == std::vector<int>{0, 0, 0, 255, 255, 255});
  CHECK(std::vector<int>(bgr + 6, bgr + 9) == std::vector<int>{0, 0, 254});
  CHECK(std::vector<int>(bgr + 12, bgr + 15) == std::vector<int>{255, 0, 0});
}

}  // namespace edgepack::testing
