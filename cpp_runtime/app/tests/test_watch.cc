#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <opencv2/imgcodecs.hpp>

#include "common/fd.h"
#include "common/json.h"
#include "photos.h"
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
  CHECK(photos.Arrived(kNow).empty());
  CHECK(Contains(photos.lost(), "cannot be read: "));
  CHECK_FALSE(photos.Look());
  std::filesystem::create_directory(folder / "gone");
  CHECK(photos.Look());
  CHECK(photos.lost().empty());
}

namespace {

/// What comes within some looks, until something does.
std::vector<std::string> Soon(PhotoFolder* photos) {
  for (int look = 0; look < 20; ++look) {
    const std::vector<PhotoFolder::Key> keys = photos->Arrived(PhotoFolder::kLook);
    if (!keys.empty()) return Names(keys);
  }
  return {};
}

/// Removes a folder and the photos of these tests. A 32-bit program cannot list a folder
/// everywhere.
void Clear(const std::filesystem::path& folder) {
  for (const char* name : {"before.jpg", "1.jpg", "2.jpg"}) std::filesystem::remove(folder / name);
  std::filesystem::remove(folder);
}

}  // namespace

TEST_CASE("a folder is lost and comes back, and no photo is missed or given twice") {
  const TempFolder folder;
  const std::filesystem::path in = folder / "in";
  const std::filesystem::path other = folder / "other";
  std::filesystem::create_directory(in);
  WriteFile(in / "before.jpg", "x");
  // Each way to lose it, and to have it back with a photo that came meanwhile.
  const std::vector<std::pair<std::function<void()>, std::function<void()>>> ways = {
      {[&] { std::filesystem::rename(in, other); },
       [&] {
         std::filesystem::create_directory(in);
         WriteFile(in / "1.jpg", "x");
       }},
      {[&] { Clear(in); },
       [&] {
         std::filesystem::create_directory(in);
         WriteFile(in / "1.jpg", "x");
       }},
      {[&] { std::filesystem::rename(in, other); },
       [&] {
         WriteFile(other / "1.jpg", "x");
         std::filesystem::rename(other, in);
       }},
      {[&] {
         std::filesystem::rename(in, other);
         WriteFile(in, "a file");
       },
       [&] {
         std::filesystem::remove(in);
         std::filesystem::create_directory_symlink(other, in);
         WriteFile(other / "1.jpg", "x");
       }},
  };
  for (const auto& [lose, find] : ways) {
    PhotoFolder photos(in);
    lose();
    CHECK_FALSE(photos.Look());
    CHECK(photos.Arrived(kNow).empty());
    find();
    CHECK(Soon(&photos) == std::vector<std::string>{"1.jpg"});
    CHECK(photos.Arrived(kNow).empty());
    CHECK(photos.lost().empty());
    WriteFile(in / "2.jpg", "x");
    CHECK(Names(photos.Arrived(kNow)) == std::vector<std::string>{"2.jpg"});
    // Ready for the next way.
    if (std::filesystem::is_symlink(in)) std::filesystem::remove(in);
    Clear(in);
    Clear(other);
    std::filesystem::create_directory(in);
  }
}

TEST_CASE("a folder in whose place another one is, without a word of inotify") {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "above" / "in");
  std::filesystem::create_directories(folder / "next" / "in");
  std::filesystem::create_directory_symlink(folder / "above", folder / "link");
  PhotoFolder above(folder / "above" / "in");
  PhotoFolder linked(folder / "link" / "in");
  // Of the folder itself nothing has changed: the one above it was renamed, and the link points
  // elsewhere.
  std::filesystem::remove(folder / "link");
  std::filesystem::create_directory_symlink(folder / "next", folder / "link");
  std::filesystem::rename(folder / "above", folder / "was");
  std::filesystem::create_directories(folder / "above" / "in");
  WriteFile(folder / "above" / "in" / "a.png", "x");
  WriteFile(folder / "next" / "in" / "b.png", "x");
  CHECK(Soon(&above) == std::vector<std::string>{"a.png"});
  CHECK(Soon(&linked) == std::vector<std::string>{"b.png"});
}

TEST_CASE("photos are looked for when the system gives no more watches") {
  const TempFolder folder;
  std::vector<Fd> all;
  while (Fd one{inotify_init1(IN_CLOEXEC)}) all.push_back(std::move(one));
  PhotoFolder photos(folder.path());
  all.clear();
  CHECK(Contains(photos.polled(), "no more watches"));
  WriteFile(folder / "a.jpg", "x");
  WriteFile(folder / "b.jpg.part", "x");
  CHECK(Soon(&photos) == std::vector<std::string>{"a.jpg"});
  CHECK(photos.Arrived(PhotoFolder::kLook).empty());
}

TEST_CASE("a name that is linked here is whole") {
  const TempFolder folder;
  const TempFolder other;
  PhotoFolder photos(folder.path());
  WriteFile(other / "a.jpg", "x");
  std::filesystem::create_hard_link(other / "a.jpg", folder / "hard.jpg");
  std::filesystem::create_symlink(other / "a.jpg", folder / "soft.jpg");
  std::filesystem::create_symlink(other / "none.jpg", folder / "nowhere.jpg");
  CHECK(Names(photos.Arrived(kNow)) == std::vector<std::string>{"hard.jpg", "soft.jpg"});
}

TEST_CASE("what a photo in a folder is") {
  const TempFolder folder;
  WriteFile(folder / "plain.jpg", "x");
  WriteFile(folder / "UPPER.JPEG", "x");
  WriteFile(folder / "no \xff utf.png", "x");
  WriteFile(folder / ".hidden.jpg", "x");
  WriteFile(folder / "._mac.jpg", "x");
  WriteFile(folder / "text.txt", "x");
  std::filesystem::create_directory(folder / "folder.jpg");
  REQUIRE(mkfifo((folder / "pipe.jpg").c_str(), 0600) == 0);
  std::filesystem::create_symlink(folder / "plain.jpg", folder / "link.jpg");
  std::filesystem::create_symlink(folder / "none", folder / "dangling.jpg");
  std::filesystem::create_symlink(folder / "loop.jpg", folder / "loop.jpg");
  std::filesystem::create_symlink("/dev/zero", folder / "device.jpg");
  const std::filesystem::path socket_path = folder / "socket.jpg";
  const Fd listener(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  REQUIRE(socket_path.native().size() < sizeof(address.sun_path));
  std::copy(socket_path.native().begin(), socket_path.native().end(), address.sun_path);
  REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  std::vector<std::string> names;
  for (const auto& path : PhotosIn("--images", folder.path())) names.push_back(path.filename());
  CHECK(names ==
        std::vector<std::string>{"UPPER.JPEG", "link.jpg", "no \xff utf.png", "plain.jpg"});
  CHECK_FALSE(IsPlainFile(folder / "pipe.jpg"));
  CHECK(Contains(MessageOf<UsageError>([&] { PhotosIn("--images", folder / "none"); }),
                 "--images: "));
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
  // Another name that is no UTF-8 either reads the same in the lines, and is another photo.
  const PhotoFolder::Key twin("a\n\xfe.png", poison.second);
  {
    BegunPhotos photos(file, {poison, twin});
    CHECK(photos.Begin(twin));
    CHECK_FALSE(photos.Begin(poison));
  }
  // Written anew it is another photo; and one that is done, or gone, is forgotten.
  CHECK(BegunPhotos(file, {{poison.first, 2}}).Begin({poison.first, 2}));
  CHECK(BegunPhotos(file, {poison}).Begin(poison));
  for (const char* const damaged :
       {"", "noise\n", R"({"image":"b.png","mtime_ns":1,"times":-7})",
        R"({"image":"b.png","image_hex":"zz","mtime_ns":1,"times":2})"}) {
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
  CHECK(ended_by() == -2);  // of all that came nothing could be used
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
  CHECK(err.str().empty());  // the first photo could be used: the second is not all that came
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
