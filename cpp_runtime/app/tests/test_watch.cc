#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <opencv2/imgcodecs.hpp>

#include "common/json.h"
#include "run_app.h"
#include "support.h"
#include "watch.h"

namespace edgepack::testing {
namespace {

constexpr std::chrono::milliseconds kNow(0);

std::vector<std::string> Names(const std::vector<PhotoFolder::Key>& keys) {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const auto& key : keys) names.push_back(key.first);
  return names;
}

/// A bundle whose model takes gray photos of 1 x 4 pixels, and an empty folder "in".
void WritePhotoBundle(const std::filesystem::path& folder) {
  WriteBundle(folder);
  const std::string graph = ReadFile(folder / "model" / "graph.json");
  WriteFile(folder / "model" / "graph.json", Replace(graph, "[1, 4]", "[1, 1, 1, 4]"));
  WriteFile(folder / "preprocess.json", R"({
    "format": "edgepack-preprocess", "version": 1, "input": "x", "color": "gray", "resize": null,
    "interpolation": "linear", "crop": null, "scale": 1, "mean": [1], "std": [0.5],
    "layout": "NCHW", "dtype": "float32", "accept": []})");
  std::filesystem::create_directory(folder / "in");
}

/// A photo for it whose pixels are `first`, and one more each.
void WritePhoto(const std::filesystem::path& path, int first) {
  cv::Mat photo(1, 4, CV_8UC1);
  for (int x = 0; x < 4; ++x) photo.data[x] = static_cast<unsigned char>(x + first);
  REQUIRE(cv::imwrite(path.string(), photo));
}

std::vector<std::string> WatchWords(const TempFolder& folder) {
  return {"--watch",  folder / "in",          "--results", folder / "results",
          "--bundle", folder.path().string(), "--threads", "1"};
}

}  // namespace

TEST_CASE("photos arrive when they are whole") {
  const TempFolder folder;
  WriteFile(folder / "old.jpg", "x");
  PhotoFolder photos(folder.path());
  CHECK(photos.Arrived(kNow).empty());
  CHECK(Names(photos.Present()) == std::vector<std::string>{"old.jpg"});
  WriteFile(folder / "a.PNG", "x");
  WriteFile(folder / "notes.txt", "x");
  WriteFile(folder / ".b.jpeg.part.jpg", "x");
  CHECK(Names(photos.Arrived(kNow)) == std::vector<std::string>{"a.PNG"});
  std::filesystem::rename(folder / ".b.jpeg.part.jpg", folder / "b.jpeg");
  std::filesystem::create_directory(folder / "folder.png");
  CHECK(Names(photos.Arrived(kNow)) == std::vector<std::string>{"b.jpeg"});
  {
    std::ofstream writing(folder / "c.jpg");
    writing << "half" << std::flush;
    CHECK(photos.Arrived(kNow).empty());
  }
  CHECK(Names(photos.Arrived(kNow)) == std::vector<std::string>{"c.jpg"});
  WriteFile(folder / "gone.jpg", "x");
  std::filesystem::remove(folder / "gone.jpg");
  CHECK(photos.Arrived(kNow).empty());
}

TEST_CASE("a folder that is none, or goes away") {
  const TempFolder folder;
  const auto watch_file = [&] { const PhotoFolder photos(folder / "none"); };
  CHECK(Contains(MessageOf<UsageError>(watch_file), "--watch: "));
  std::filesystem::create_directory(folder / "gone");
  PhotoFolder photos(folder / "gone");
  std::filesystem::remove(folder / "gone");
  CHECK(Contains(MessageOf<UsageError>([&] { (void)photos.Arrived(kNow); }), "is gone"));
}

TEST_CASE("lines remember what was done") {
  const TempFolder folder;
  const std::filesystem::path file = folder / "results";
  std::ostringstream out;
  {
    ResultLines lines(file, out);
    lines.Write({"a.jpg", 5}, "{\"image\":\"a.jpg\",\"mtime_ns\":5}\n");
    CHECK(lines.Done({"a.jpg", 5}));
  }
  // A line that a crash cut short.
  std::ofstream(file, std::ios::app) << "{\"image\":\"b.jpg\",\"mti";
  {
    ResultLines lines(file, out);
    CHECK(lines.Done({"a.jpg", 5}));
    CHECK_FALSE(lines.Done({"a.jpg", 6}));
    CHECK_FALSE(lines.Done({"b.jpg", 5}));
    lines.Write({"b.jpg", 7}, "{\"image\":\"b.jpg\",\"mtime_ns\":7}\n");
  }
  CHECK(ResultLines(file, out).Done({"b.jpg", 7}));
  // Full: what was done is still known.
  std::ofstream(file, std::ios::app) << std::string(ResultLines::kMaxBytes, ' ') << "\n";
  ResultLines(file, out).Write({"c.jpg", 1}, "{\"image\":\"c.jpg\",\"mtime_ns\":1}\n");
  CHECK(std::filesystem::file_size(file) < 100);
  CHECK(ResultLines(file, out).Done({"b.jpg", 7}));
  CHECK(out.str().empty());
  CHECK(Contains(MessageOf<UsageError>([&] { const ResultLines lines(folder / "no/file", out); }),
                 "--results: cannot write"));
}

TEST_CASE("a photo that is never finished is begun twice") {
  const TempFolder folder;
  const std::filesystem::path file = folder / "results.begun";
  const PhotoFolder::Key poison("a\n\xff.png", 1'700'000'000'000'000'001);
  const PhotoFolder::Key other("b.png", 1);
  std::vector<bool> begun;
  for (int start = 0; start < 4; ++start) {
    BegunPhotos photos(file, {other, poison});
    // What is finished in between changes nothing.
    CHECK(photos.Begin(other));
    photos.Finish(other);
    begun.push_back(photos.Begin(poison));
  }
  CHECK(begun == std::vector<bool>{true, true, false, false});
  // Written anew it is another photo; and one that is done, or gone, is forgotten.
  CHECK(BegunPhotos(file, {{poison.first, 2}}).Begin({poison.first, 2}));
  CHECK(BegunPhotos(file, {poison}).Begin(poison));
  for (const char* const damaged :
       {"", "noise\n", R"({"image":"b.png","mtime_ns":1,"times":-7})"}) {
    WriteFile(file, damaged);
    CHECK(BegunPhotos(file, {other}).Begin(other));
  }
  CHECK(BegunPhotos(folder / "no" / "folder", {}).Begin(other));
}

TEST_CASE("a photo that killed the program twice gets a line, and the next one its turn") {
  const TempFolder folder;
  WritePhotoBundle(folder.path());
  const std::string graph = ReadFile(folder / "model" / "graph.json");
  WriteFile(folder / "model" / "graph.json", Replace(graph, "\"add\"", "\"kill_at_two\""));
  for (int i = 0; i < 2; ++i) {
    const std::filesystem::path photo = folder / "in" / (i == 0 ? "poison.png" : "good.png");
    WritePhoto(photo, i == 0 ? 2 : 1);
    std::filesystem::last_write_time(
        photo, std::filesystem::file_time_type::clock::now() - std::chrono::hours(2 - i));
  }
  const std::vector<std::string> words = WatchWords(folder);
  // A process of its own: it is to be killed.
  const auto ended_by = [&] {
    const pid_t pid = fork();
    if (pid == 0) {
      HoldStopSignals();
      raise(SIGTERM);  // seen between two photos
      std::ostringstream out;
      _exit(RunApp(words, out, out));
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
  };
  CHECK(ended_by() == SIGKILL);
  CHECK(ended_by() == SIGKILL);
  CHECK(ReadFile(folder / "results").empty());
  CHECK(ended_by() == 0);
  CHECK(ended_by() == 0);
  const std::string text = ReadFile(folder / "results");
  const std::size_t end = text.find('\n');
  REQUIRE(end != std::string::npos);
  const JsonDocument first(text.substr(0, end), "line 1", "kind");
  JsonObject poison = first.Root();
  CHECK(poison.String("image") == "poison.png");
  CHECK(Contains(poison.Object("error").String("message"), "begun twice and never finished"));
  const JsonDocument second(text.substr(end + 1), "line 2", "kind");
  JsonObject good = second.Root();
  CHECK(good.String("image") == "good.png");
  CHECK(good.Has("top"));
}

TEST_CASE("a line for each photo, a bad one too, until the signal") {
  const TempFolder folder;
  WritePhotoBundle(folder.path());
  WritePhoto(folder / "in" / "good.png", 1);
  WriteFile(folder / "in" / "bad.png", "no photo");
  std::filesystem::last_write_time(
      folder / "in" / "bad.png",
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  const std::vector<std::string> words = WatchWords(folder);
  std::ostringstream out;
  std::ostringstream err;
  // The signal waits until the first photo is done: there is one line for each start.
  std::string text;
  for (int start = 0; start < 3; ++start) {
    HoldStopSignals();
    raise(SIGTERM);
    CHECK(RunApp(words, out, err) == 0);
    text = ReadFile(folder / "results");
  }
  CHECK(err.str().empty());
  const std::size_t end = text.find('\n');
  REQUIRE(end != std::string::npos);
  CHECK(text.find('\n', end + 1) == text.size() - 1);
  const JsonDocument first(text.substr(0, end), "line 1", "kind");
  JsonObject good = first.Root();
  CHECK(good.String("image") == "good.png");
  CHECK(good.Objects("top").at(0).Int("index") == 3);
  const JsonDocument second(text.substr(end + 1), "line 2", "kind");
  JsonObject bad = second.Root();
  CHECK(bad.String("image") == "bad.png");
  CHECK(Contains(bad.Object("error").String("message"), "not a JPEG or PNG image"));

  std::filesystem::remove(folder / "preprocess.json");
  WritePhoto(folder / "in" / "new.png", 1);
  CHECK(RunApp(words, out, err) == 5);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace edgepack::testing
