#include <algorithm>
#include <chrono>
#include <dirent.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <sys/stat.h>
#include <thread>

#include <doctest/doctest.h>
#include <opencv2/core.hpp>
#include <opencv2/imgcodecs.hpp>

#include "clips.h"
#include "support.h"

namespace edgepack::testing {
namespace {

using Path = std::filesystem::path;

/// A clip that goes on for long enough to have a picture on a machine that is busy.
ClipRule Rule(const Path& folder) { return {"door", folder, 60, 1, 30, 1 << 20}; }

/// The names in a folder that begin so.
std::set<std::string> Names(const Path& folder, const std::string& start = "") {
  std::set<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  REQUIRE(open != nullptr);
  while (const dirent* const entry = readdir(open.get())) {  // NOLINT(concurrency-mt-unsafe)
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name.compare(0, start.size(), start) == 0) {
      names.insert(name);
    }
  }
  return names;
}

bool Await(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000; ++i) {
    if (holds()) return true;  // asked once: asking may show a picture
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

/// Shows pictures of one gray after the other, until `holds` of how many were shown.
bool ShowUntil(Clips* clips, const std::function<bool(int)>& holds) {
  int shown = 0;
  return Await([&] {
    if (clips->due()) clips->Show(cv::Mat(8, 8, CV_8UC3, cv::Scalar::all(shown++ % 256)));
    return holds(shown);
  });
}

bool Shows(Clips* clips, int pictures) {
  return ShowUntil(clips, [&](int shown) { return shown >= pictures; });
}

Path OnlyClip(const Path& folder) {
  const std::set<std::string> names = Names(folder, "door-");
  REQUIRE(names.size() == 1);
  return folder / *names.begin();
}

void MakeClip(const Path& path, std::size_t bytes) {
  std::filesystem::create_directory(path);
  WriteFile(path / "1.jpg", std::string(bytes, 'x'));
}

}  // namespace

TEST_CASE("a clip has the pictures before and after, for nobody else") {
  const TempFolder folder;
  std::ostringstream err;
  // Its clip shows which pictures have been kept: the one of "door" begins with all of them.
  ClipRule first = Rule(folder.path());
  first.name = "first";
  first.after_s = 60;
  ClipRule door = Rule(folder.path());
  door.after_s = 60;
  const auto pictures = [&](const std::string& rule) {
    const std::set<std::string> clip = Names(folder.path(), "." + rule + "-");
    return clip.empty() ? std::set<std::string>() : Names(folder.path() / *clip.begin());
  };
  std::set<std::string> before;
  {
    Clips clips({first, door}, err);
    clips.Save("first");
    REQUIRE(ShowUntil(&clips, [&](int /*shown*/) { return pictures("first").size() >= 3; }));
    before = pictures("first");
    clips.Save("other");
    clips.Save("door");
    REQUIRE(ShowUntil(&clips,
                      [&](int /*shown*/) { return pictures("door").size() >= before.size() + 2; }));
    CHECK(clips.Metrics() == "edgepack_clips_total 0\nedgepack_clip_failures_total 0\n");
  }
  const Path clip = OnlyClip(folder.path());
  const std::set<std::string> after = Names(clip);
  CHECK(after.size() >= before.size() + 2);
  CHECK(std::includes(after.begin(), after.end(), before.begin(), before.end()));
  for (const std::string& name : after) {
    CHECK(name.size() == std::string("20261128T161503.250Z.jpg").size());
    CHECK(cv::imread((clip / name).string()).size() == cv::Size(8, 8));
    struct stat status = {};
    REQUIRE(stat((clip / name).c_str(), &status) == 0);
    CHECK((status.st_mode & 0777U) == 0600);
  }
  struct stat status = {};
  REQUIRE(stat(clip.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777U) == 0700);
  CHECK(err.str().empty());
}

TEST_CASE("a clip ends by itself, and is counted") {
  const TempFolder folder;
  std::ostringstream err;
  Clips clips({Rule(folder.path())}, err);
  REQUIRE(Shows(&clips, 1));
  clips.Save("door");
  REQUIRE(ShowUntil(&clips, [&](int /*shown*/) {
    return clips.Metrics() == "edgepack_clips_total 1\nedgepack_clip_failures_total 0\n";
  }));
  CHECK(!Names(OnlyClip(folder.path())).empty());
}

TEST_CASE("what a rule saw is kept however long ago it was, and however it ends") {
  const TempFolder folder;
  std::ostringstream err;
  ClipRule rule = Rule(folder.path());
  rule.before_s = 0;
  rule.after_s = 60;
  {
    Clips clips({rule}, err);
    REQUIRE(Shows(&clips, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    clips.Save("door");
    CHECK(Await([&] { return Names(folder.path(), ".door-").size() == 1; }));
    CHECK(Await(
        [&] { return !Names(folder.path() / *Names(folder.path(), ".door-").begin()).empty(); }));
  }
  CHECK(Names(OnlyClip(folder.path())).size() == 1);
}

TEST_CASE("the oldest clips go, of this rule alone") {
  const TempFolder folder;
  const Path other = folder / "door-2-20200101T000000Z";
  const Path nothing = folder / "door-photos";
  MakeClip(other, 1 << 20);
  MakeClip(nothing, 1 << 20);
  MakeClip(folder / "door-20200101T000000Z", 1 << 19);
  MakeClip(folder / "door-20210101T000000Z-12", (1 << 19) + 1000);
  const Path away = folder / "away";
  MakeClip(away, 1 << 20);
  std::filesystem::create_directory_symlink(away, folder / "door-20190101T000000Z");
  std::ostringstream err;
  Clips clips({Rule(folder.path())}, err);
  clips.Save("door");
  REQUIRE(ShowUntil(&clips, [&](int /*shown*/) {
    return clips.Metrics().find("total 1\n") != std::string::npos;
  }));
  REQUIRE(Await([&] { return Names(folder.path(), "door-20200101").empty(); }));
  CHECK(Names(folder.path(), "door-20210101").size() == 1);
  for (const Path& kept : {other, nothing, away}) CHECK(Names(kept).size() == 1);
}

TEST_CASE("a clip that cannot be written is counted, and half of one is kept") {
  const TempFolder folder;
  MakeClip(folder / ".door-20200101T000000Z", 10);
  std::filesystem::create_directory(folder / ".door-20200102T000000Z");
  std::ostringstream err;
  {
    ClipRule lost = Rule(folder / "gone");
    lost.name = "lost";
    Clips clips({Rule(folder.path()), lost}, err);
    REQUIRE(Shows(&clips, 1));
    clips.Save("lost");
    REQUIRE(Await([&] { return clips.Metrics().find("failures_total 1") != std::string::npos; }));
  }
  CHECK(err.str().find("clip of lost: ") == 0);
  CHECK(err.str().find("No such file or directory") != std::string::npos);
  CHECK(Names(folder.path()) == std::set<std::string>{"door-20200101T000000Z"});
}

TEST_CASE("a clip ends where it would be larger than all may be") {
  const TempFolder folder;
  std::ostringstream err;
  ClipRule rule = Rule(folder.path());
  rule.bytes = 1000;  // a picture is some 650
  rule.after_s = 60;
  Clips clips({rule}, err);
  clips.Save("door");
  REQUIRE(
      ShowUntil(&clips, [&](int /*shown*/) { return Names(folder.path(), "door-").size() == 1; }));
  CHECK(Names(OnlyClip(folder.path())).size() == 1);
  CHECK(err.str().find("larger than all clips may be") != std::string::npos);
}

TEST_CASE("rules of sinks.json") {
  const TempFolder folder;
  const auto read = [&](const std::string& clip) {
    WriteFile(folder / "sinks.json",
              R"({"schema": 1, "name": "x", "sinks": [], "counters": [], "when": [)"
              R"({"name": "a", "clip": null}, {"name": "b"}, {"name": "c", "clip": )" +
                  clip + "}]}");
    return ReadClipRules(folder.path());
  };
  const std::string right =
      R"({"folder": "/srv", "before_s": 5, "after_s": 6.5, "frames_per_s": 2, "bytes": 1048576})";
  const std::vector<ClipRule> rules = read(right);
  REQUIRE(rules.size() == 1);
  CHECK(rules[0].name == "c");
  CHECK(rules[0].folder == "/srv");
  CHECK(rules[0].after_s == 6.5);
  for (const auto& [old, wrong] : std::initializer_list<std::pair<std::string, std::string>>{
           {"\"/srv\"", "\"srv\""},
           {"6.5", "61"},
           {"s\": 5", "s\": -1"},
           {"s\": 2", "s\": 0"},
           {"1048576", "1"},
           {"1048576", "1048576, \"x\": 1"}}) {
    std::string text = right;
    text.replace(text.find(old), old.size(), wrong);
    CHECK_THROWS_AS(read(text), Error);
  }
}

}  // namespace edgepack::testing
