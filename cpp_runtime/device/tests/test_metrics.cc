#include <algorithm>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include <doctest/doctest.h>

#include "app_metrics.h"
#include "install.h"
#include "metrics.h"
#include "sources.h"
#include "status.h"
#include "support.h"
#include "switch.h"

namespace edgepack::device {
namespace {

using testing::Contains;
using testing::ErrorOf;
using testing::LinkAt;
using testing::Quiet;
using testing::ReadFile;
using testing::TempFolder;
using testing::TestBundle;
using testing::WriteFile;

class Device {
 public:
  void Install(const TestBundle& bundle) {
    bundle.WriteTo(temp_ / bundle.release);
    InstallRequest request;
    request.by = "te\"ster";
    Installer(site_, Quiet, std::move(request)).Install(OpenBundle(temp_ / bundle.release).get());
  }
  [[nodiscard]] const Site& site() const { return site_; }
  [[nodiscard]] const TempFolder& temp() const { return temp_; }

 private:
  TempFolder temp_;
  Site site_ = Site::Make(temp_ / "root");
};

TestBundle Failing() {
  TestBundle bundle;
  bundle.release = "00000000000f";
  bundle.files["bin/edgepack-run"] = "#!/bin/sh\nexit 1\n";
  return bundle;
}

std::string ReadWith(const TempFolder& temp, const std::string& content) {
  WriteFile(temp / "app.prom", content);
  const auto read = ReadAppMetrics(temp / "app.prom", "mug", "000000000001");
  return read ? read->text : "refused";
}

}  // namespace

TEST_CASE("metrics say what is installed, since when and by whom, and what failed") {
  Device device;
  std::string text = MetricsText(device.site(), std::nullopt);
  CHECK(Contains(text, "edgepack_device_has_release{model=\"\"} 0\n"));
  CHECK_FALSE(Contains(text, "release_info"));
  device.Install(TestBundle());
  text = MetricsText(device.site(), std::nullopt);
  const std::string of = "{model=\"tiny\"";
  CHECK(Contains(text, "edgepack_device_has_release" + of + "} 1\n"));
  CHECK(Contains(text, "edgepack_device_release_info" + of + ",release=\"000000000001\""));
  CHECK(Contains(text, ",by=\"te\\\"ster\",signer=\"\"} 1\n"));
  CHECK(Contains(text, "edgepack_device_release_healthy" + of + ",release=\"000000000001\"} 1\n"));
  CHECK(Contains(
      text, "edgepack_device_smoke_test_seconds" + of + ",release=\"000000000001\"} 0.0025\n"));
  CHECK(Contains(text, "edgepack_device_smoke_test_memory_bytes" + of +
                           ",release=\"000000000001\"} 3000000\n"));
  CHECK(Contains(text, "edgepack_device_rollbacks_total" + of + "} 0\n"));
  CHECK(Contains(text, "edgepack_device_disk_free_bytes" + of + "} "));
  CHECK_FALSE(Contains(text, "edgepack_device_app_up"));

  for (int i = 0; i < 2; ++i) CHECK_THROWS_AS(device.Install(Failing()), Error);
  text = MetricsText(device.site(), std::nullopt);
  CHECK(Contains(text, "edgepack_device_rollbacks_total" + of + "} 2\n"));
  CHECK(Contains(
      text, "edgepack_device_rollback_timestamp_seconds" + of + ",release=\"00000000000f\"} "));
  CHECK(Contains(text, "edgepack_device_release_info" + of + ",release=\"000000000001\""));
  // What counts it may be damaged: it begins again.
  WriteFile(device.site().root.PathOf("state/rollbacks.json"), "{\"count\":");
  CHECK(Contains(MetricsText(device.site(), std::nullopt), "rollbacks_total" + of + "} 0\n"));
  CHECK_THROWS_AS(device.Install(Failing()), Error);
  CHECK(Contains(MetricsText(device.site(), std::nullopt), "rollbacks_total" + of + "} 1\n"));
}

TEST_CASE("a test that was interrupted is not healthy") {
  Device device;
  device.Install(TestBundle());
  device.site().state.SetPending({"000000000001", std::nullopt, std::nullopt, 1, "x"});
  const std::string text = MetricsText(device.site(), std::nullopt);
  CHECK(Contains(text, "release_healthy{model=\"tiny\",release=\"000000000001\"} 0\n"));
  CHECK(Contains(text, "edgepack_device_testing{model=\"tiny\"} 1\n"));
}

TEST_CASE("what the app says is told as well, with the model's name") {
  const TempFolder temp;
  CHECK(ReadWith(temp, "# HELP edgepack_x Some.\n# TYPE edgepack_x gauge\nedgepack_x 1\n") ==
        "# HELP edgepack_x Some.\n# TYPE edgepack_x gauge\nedgepack_x{model=\"mug\"} 1\n");
  CHECK(ReadWith(temp, "edgepack_x{le=\"+Inf\"} 1e+06\n") ==
        "edgepack_x{model=\"mug\",le=\"+Inf\"} 1e+06\n");
  CHECK(ReadWith(temp, "edgepack_x{model=\"cup\",a=\"}\\\" \\\\\"} NaN\n") ==
        "edgepack_x{model=\"cup\",a=\"}\\\" \\\\\"} NaN\n");
  // Those of node_exporter's own process.
  CHECK(ReadWith(temp, "process_resident_memory_bytes 5\nedgepack_y 2\n") ==
        "edgepack_y{model=\"mug\"} 2\n");
}

TEST_CASE("a file that is none of the app's is not told at all") {
  const TempFolder temp;
  for (const char* content :
       {"", "edgepack_x 1", "edgepack_x\n", "edgepack_x 1 1700000000\n", "edgepack_x one\n",
        "edgepack_x  1\n", "edgepack_x{a=\"b\" 1\n", "edgepack_x{a=\"b} 1\n", "edgepack_x{} 1\n",
        "edgepack_x{a=\"b\",a=\"c\"} 1\n", "edgepack_x{=\"b\"} 1\n", "edgepack_x{a=\"b\\\"} 1\n",
        "# a remark\n", "0edgepack 1\n", "edgepack_device_problems 0\n",
        "# TYPE edgepack_device_problems gauge\n", "edgepack_x 1\nedgepack_\xFF 1\n"}) {
    CAPTURE(content);
    CHECK(ReadWith(temp, content) == "refused");
  }
  std::string large;
  while (large.size() <= (std::size_t{256} << 10U)) large += "edgepack_x 1\n";
  CHECK(ReadWith(temp, large) == "refused");
  REQUIRE(symlink("app.prom", (temp / "link").c_str()) == 0);
  WriteFile(temp / "app.prom", "edgepack_x 1\n");
  CHECK_FALSE(ReadAppMetrics(temp / "link", "", "").has_value());
  REQUIRE(mkfifo((temp / "pipe").c_str(), 0600) == 0);
  CHECK_FALSE(ReadAppMetrics(temp / "pipe", "", "").has_value());
  CHECK_FALSE(ReadAppMetrics(temp / "none", "", "").has_value());
}

TEST_CASE("an app that has stopped is told as one, and not as idle") {
  Device device;
  device.Install(TestBundle());
  const std::string path = device.temp() / "app.prom";
  WriteFile(path, "edgepack_x 1\n");
  std::string text = MetricsText(device.site(), path);
  CHECK(Contains(text, "edgepack_device_app_up{model=\"tiny\"} 1\n"));
  CHECK(Contains(text, "\nedgepack_x{model=\"tiny\"} 1\n"));
  const utimbuf old = {time(nullptr) - 120, time(nullptr) - 120};
  REQUIRE(utime(path.c_str(), &old) == 0);
  text = MetricsText(device.site(), path);
  CHECK(Contains(text, "edgepack_device_app_up{model=\"tiny\"} 0\n"));
  CHECK_FALSE(Contains(text, "edgepack_x"));
}

TEST_CASE("how far input is from the photos is the current release's alone") {
  const TempFolder temp;
  const std::string level = "edgepack_drift_level{release=\"";
  WriteFile(
      temp / "app.prom",
      level + "000000000001\",signal=\"scores\"} 2\n" + level +
          "000000000001\",signal=\"\\u001b\"} 2\n" + level +
          "000000000002\",signal=\"classes\"} 2\n" +
          "edgepack_drift_since_timestamp_seconds{release=\"000000000001\",signal=\"scores\"} "
          "1767600000\n");
  const auto read = ReadAppMetrics(temp / "app.prom", "", "000000000001");
  REQUIRE(read.has_value());
  REQUIRE(read->drift.size() == 1);
  CHECK(read->drift[0].name == "scores");
  CHECK(read->drift[0].level == 2);
  CHECK(read->drift[0].since == 1767600000);
}

TEST_CASE("which processor runs the model is the current release's alone") {
  const TempFolder temp;
  const std::string path = temp / "app.prom";
  const std::string info = "edgepack_app_info{release=\"000000000001\"} 1\n";
  const std::string on = "edgepack_on_gpu ";
  for (const std::string& text : {info + on + "1\n", on + "1\n" + info}) {
    WriteFile(path, text);
    CHECK(ReadAppMetrics(path, "", "000000000001")->on_gpu == true);
    CHECK_FALSE(ReadAppMetrics(path, "", "000000000002")->on_gpu.has_value());
  }
  for (const char* value : {"0", "NaN", "-1"}) {
    CAPTURE(value);
    WriteFile(path, info + on + value + "\n");
    CHECK(ReadAppMetrics(path, "", "000000000001")->on_gpu == false);
  }
  WriteFile(path, info);
  CHECK_FALSE(ReadAppMetrics(path, "", "000000000001")->on_gpu.has_value());
}

TEST_CASE("a file for node_exporter, and a timer that writes it") {
  Device device;
  device.Install(TestBundle());
  const std::string folder = device.temp() / "text files";
  REQUIRE(mkdir(folder.c_str(), 0755) == 0);
  CHECK(WriteTextfile(device.site(), std::nullopt, folder) == folder + "/edgepack-tiny.prom");
  CHECK(Contains(ReadFile(folder + "/edgepack-tiny.prom"), "edgepack_device_has_release"));
  CHECK(ErrorOf([&] { WriteTextfile(device.site(), std::nullopt, folder + "/none"); }) != "");
  const std::string units = device.temp() / "units";
  REQUIRE(mkdir(units.c_str(), 0755) == 0);
  const std::string next = WriteTimer(device.site(), std::nullopt, folder, units, "/a/50%/tool");
  CHECK(Contains(next, "systemctl --user start edgepack-metrics-tiny.timer\n"));
  CHECK(Contains(ReadFile(units + "/edgepack-metrics-tiny.service"),
                 "ExecStart=\"/a/50%%/tool\" metrics --root \"" + device.site().root.path() +
                     "\" --textfile \"" + folder + "\"\n"));
  CHECK(LinkAt(units + "/timers.target.wants/edgepack-metrics-tiny.timer") ==
        "../edgepack-metrics-tiny.timer");
}

}  // namespace edgepack::device
