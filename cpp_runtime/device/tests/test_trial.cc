#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "confine.h"
#include "support.h"
#include "trial.h"
#include "trial_compare.h"
#include "trial_pictures.h"

namespace edgepack::device {
namespace {

std::string Top(const std::string& classes) { return R"({"run_ms":1,"top":[)" + classes + "]}\n"; }
std::string Boxes(const std::string& boxes) { return R"({"boxes":[)" + boxes + "]}\n"; }

constexpr double kTolerance = 0.01;

double AgreementOf(const std::string& current, const std::string& candidate) {
  const std::optional<Compared> compared = CompareAnswers(current, candidate, kTolerance);
  REQUIRE(compared);
  return compared->agreement;
}

}  // namespace

TEST_CASE("classes agree by name, or by number where there is none") {
  const std::string dog = Top(R"({"index":1,"label":"dog","score":0.9})");
  CHECK(AgreementOf(dog, Top(R"({"index":7,"label":"dog","score":0.6})")) == 1);
  CHECK(AgreementOf(dog, Top(R"({"index":1,"label":"cat","score":0.9})")) == 0);
  CHECK(AgreementOf(dog, Top(R"({"index":1,"score":0.9})")) == 1);
  CHECK(AgreementOf(dog, R"({"error":{"code":2,"message":"no"}})") == 0);
  CHECK(AgreementOf(dog, "no JSON") == 0);
  CHECK(AgreementOf(dog, Boxes("")) == 0);  // an answer of another kind

  // What the current release sees first comes second.
  const std::optional<Compared> second = CompareAnswers(
      dog, Top(R"({"index":0,"label":"cat","score":0.7},{"index":1,"label":"dog","score":0.25})"),
      kTolerance);
  REQUIRE(second);
  CHECK(second->agreement == 0);
  CHECK(second->difference == doctest::Approx(0.65));
}

TEST_CASE("boxes agree by class and by half of their area") {
  const std::string two = Boxes(R"({"index":0,"score":0.9,"box":[0,0,10,10]},)"
                                R"({"index":1,"score":0.8,"box":[20,20,30,30]})");
  CHECK(AgreementOf(two, two) == 1);
  CHECK(AgreementOf(Boxes(""), Boxes("")) == 1);
  CHECK(AgreementOf(Boxes(""), two) == 0);
  // 10 x 5 of 10 x 10: an IoU of exactly 0.5 counts; 10 x 4.9 does not.
  const std::string one = Boxes(R"({"index":0,"score":0.9,"box":[0,0,10,10]})");
  CHECK(AgreementOf(one, Boxes(R"({"index":0,"score":0.5,"box":[0,0,10,5]})")) == 1);
  CHECK(AgreementOf(one, Boxes(R"({"index":0,"score":0.5,"box":[0,0,10,4.9]})")) == 0);
  CHECK(AgreementOf(one, Boxes(R"({"index":1,"score":0.9,"box":[0,0,10,10]})")) == 0);
  // One of two, and one of one, is shared: 2 * 1 / 3.
  CHECK(AgreementOf(two, one) == doctest::Approx(2.0 / 3));
  // A box is matched once.
  CHECK(AgreementOf(Boxes(R"({"index":0,"score":0.9,"box":[0,0,10,10]},)"
                          R"({"index":0,"score":0.8,"box":[0,0,10,9]})"),
                    one) == doctest::Approx(2.0 / 3));
  // The closest counts, not the first.
  const std::optional<Compared> close =
      CompareAnswers(one,
                     Boxes(R"({"index":0,"score":0.3,"box":[0,0,10,6]},)"
                           R"({"index":0,"score":0.7,"box":[0,0,10,10]})"),
                     kTolerance);
  REQUIRE(close);
  CHECK(close->difference == doctest::Approx(0.2));
}

TEST_CASE("answers of other kinds are not compared") {
  CHECK_FALSE(CompareAnswers(R"({"run_ms":1})", Top(""), kTolerance));
  CHECK_FALSE(CompareAnswers(R"({"run_ms":1})", "no JSON", kTolerance));
  CHECK_FALSE(CompareAnswers(R"({"error":{"code":2}})", Top(""), kTolerance));
  CHECK(AgreementOf(R"({"text":[{"text":"a b","score":1}]})",
                    R"({"text":[{"text":"a b","score":0.5}]})") == 1);
  CHECK(AgreementOf(R"({"text":[{"text":"a b","score":1}]})",
                    R"({"text":[{"text":"a d","score":1}]})") == 0);
}

TEST_CASE("key points agree that are near, by the size of what they are of") {
  const auto points = [](const std::string& all) { return R"({"keypoints":[)" + all + "]}"; };
  const auto point = [](int index, double x, double y) {
    return R"({"index":)" + std::to_string(index) + R"(,"score":0.5,"point":[)" +
           std::to_string(x) + "," + std::to_string(y) + "]}";
  };
  // Around them is a box of 30 x 40, with a diagonal of 50: a tenth is 5.
  const std::string two = points(point(0, 0, 0) + "," + point(1, 30, 40));
  CHECK(AgreementOf(two, two) == 1);
  CHECK(AgreementOf(two, points(point(0, 3, 4) + "," + point(1, 30, 40))) == 1);
  CHECK(AgreementOf(two, points(point(0, 3, 4.1) + "," + point(1, 30, 40))) == 0.5);
  CHECK(AgreementOf(two, points(point(1, 0, 0) + "," + point(0, 30, 40))) == 0);
  CHECK(AgreementOf(two, points(point(0, 0, 0))) == doctest::Approx(2.0 / 3));
  CHECK(AgreementOf(points(""), points("")) == 1);
  CHECK(AgreementOf(two, Top("")) == 0);

  // Those of a box count by its diagonal, here 50, too.
  const auto pose = [](const std::string& of) {
    return Boxes(R"({"index":0,"score":0.9,"box":[0,0,30,40],"points":[)" + of + "]}");
  };
  CHECK(AgreementOf(pose("[1,1],[2,2]"), pose("[4,5],[2,2]")) == 1);
  CHECK(AgreementOf(pose("[1,1],[2,2]"), pose("[4,5.1],[2,2]")) == 0.5);
  CHECK(AgreementOf(pose("[1,1],[2,2]"), pose("")) == 0);
  CHECK(AgreementOf(pose("[1,1]"), pose("[1,1],[9,9]")) == 0.5);
}

TEST_CASE("areas agree by their pixels") {
  const auto areas = [](const std::string& all) { return R"({"areas":[)" + all + "]}"; };
  const std::string cat = R"({"index":1,"label":"cat","pixels":12,"runs":[0,4,10,8]})";
  CHECK(AgreementOf(areas(cat), areas(cat)) == 1);
  // Of 12 and 8 pixels 6 are in both: 2 to 4, and 10 to 14.
  CHECK(
      AgreementOf(areas(cat), areas(R"({"index":7,"label":"cat","pixels":8,"runs":[2,4,10,4]})")) ==
      doctest::Approx(2.0 * 6 / 20));
  CHECK(AgreementOf(areas(cat), areas(R"({"index":1,"label":"dog","runs":[0,4,10,8]})")) == 0);
  CHECK(AgreementOf(areas(""), areas("")) == 1);
  CHECK(AgreementOf(areas(cat), areas("")) == 0);
  // What is no mask is another answer, however large it says that it is.
  for (const char* runs : {"4,4,0,2", "0,-1", "0,9000000000000000000", "-5,2"}) {
    CHECK(AgreementOf(areas(cat), areas(R"({"index":1,"label":"cat","runs":[)" + std::string(runs) +
                                        "]}")) == 0);
  }
}

TEST_CASE("boxes agree only if their masks do") {
  const auto masked = [](const std::string& counts) {
    return Boxes(R"({"index":0,"score":0.9,"box":[0,0,9,7],"mask":{"size":[7,9],"counts":")" +
                 counts + R"("}})");
  };
  // By pycocotools 2.0.11, of pixels of a picture of 7 x 9, column by column: 10 to 30, 10 to 24
  // (IoU 0.7), 24 to 40 (IoU 6/30), and 10 to 20 and 22 to 30 and 40 to 45 (IoU 18/25).
  const std::string whole = masked(":d0Q1");
  CHECK(AgreementOf(whole, whole) == 1);
  CHECK(AgreementOf(whole, masked(":>W1")) == 1);
  CHECK(AgreementOf(whole, masked("h0`0g0")) == 0);
  CHECK(AgreementOf(whole, masked("::2N8M8")) == 1);
  CHECK(AgreementOf(masked("h0`0g0"), masked("::2N8M8")) == 0);
  for (const char* counts : {"P", "oooooooooooooooooooooooo0", "!", "0O", ""}) {
    CHECK(AgreementOf(whole, masked(counts)) == 0);
  }
}

TEST_CASE("tensors agree within the tolerance") {
  const auto tensor = [](const std::string& values) {
    return R"({"tensors":[{"name":"y","values":[)" + values + "]}]}";
  };
  CHECK(AgreementOf(tensor("10,-200"), tensor("12,-198")) == 1);
  CHECK(AgreementOf(tensor("10,-200"), tensor("12.1,-200")) == 0);
  CHECK(AgreementOf(tensor("10,-200"), tensor("10")) == 0);
  CHECK(AgreementOf(tensor("10"), R"({"tensors":[{"name":"z","values":[10]}]})") == 0);
  CHECK(AgreementOf(tensor("0"), tensor("0")) == 1);
  const std::optional<Compared> compared = CompareAnswers(tensor("1,2"), tensor("1,5"), kTolerance);
  REQUIRE(compared);
  CHECK(compared->difference == 3);
}

TEST_CASE("an answer with a NaN, which is written as null, agrees with nothing") {
  const std::string dog = Top(R"({"index":1,"label":"dog","score":0.9})");
  const std::string no_dog = Top(R"({"index":1,"label":"dog","score":null})");
  CHECK(AgreementOf(dog, no_dog) == 0);
  const std::string box = Boxes(R"({"index":0,"score":0.9,"box":[0,0,9,9]})");
  CHECK(AgreementOf(box, Boxes(R"({"index":0,"score":0.9,"box":[0,0,9,null]})")) == 0);
  CHECK(AgreementOf(box, Boxes(R"({"index":0,"score":null,"box":[0,0,9,9]})")) == 0);
  const std::string point = R"({"keypoints":[{"index":0,"score":0.5,"point":[1,2]}]})";
  CHECK(AgreementOf(point, R"({"keypoints":[{"index":0,"score":0.5,"point":[1,null]}]})") == 0);
  const std::string tensor = R"({"tensors":[{"name":"y","values":[1,2]}]})";
  const std::string no_tensor = R"({"tensors":[{"name":"y","values":[1,null]}]})";
  CHECK(AgreementOf(tensor, no_tensor) == 0);
  // One of the current release's says nothing about the candidate.
  CHECK_FALSE(CompareAnswers(no_dog, dog, kTolerance));
  CHECK_FALSE(CompareAnswers(no_tensor, no_tensor, kTolerance));
}

TEST_CASE("of models in a row the last one's answers count") {
  const auto read = [](const std::string& answers) {
    return Boxes(R"({"index":0,"score":0.9,"box":[0,0,9,9],"answers":{)" + answers + "}}");
  };
  const std::string turned = R"("turn":{"top":[{"index":0,"score":1}]},)";
  const auto text = [](const std::string& word) {
    return R"("read":{"text":[{"text":")" + word + R"(","score":1}]})";
  };
  const std::string plate = read(turned + text("AB 12"));
  CHECK(AgreementOf(plate, plate) == 1);
  CHECK(AgreementOf(plate, read(text("AB 12"))) == 1);
  CHECK(AgreementOf(plate, read(turned + text("AB 17"))) == 0);
  CHECK(AgreementOf(plate, read(turned)) == 0);
  CHECK(AgreementOf(plate, read(R"("read":{"error":"no"})")) == 0);
  CHECK(AgreementOf(read(R"("read":{"error":"no"})"), plate) == 1);  // nothing to compare with
  // A candidate may nest as it likes.
  std::string deep = "\"boxes\":[]";
  for (int i = 0; i < 200; ++i) {
    deep = R"("boxes":[{"index":0,"score":1,"box":[0,0,9,9],"answers":{"read":{)" + deep + "}}}]";
  }
  CHECK(AgreementOf(plate, "{" + deep + "}") == 0);
}

TEST_CASE("pictures are kept for their owner, within bounds") {
  const testing::TempFolder temporary;
  const Folder root = Folder::Open(temporary.path());
  const Folder trial = root.MakeSub(kTrial);
  const std::string jpeg = "\xff\xd8\xff a picture";
  const Disagreement what = {jpeg, "{\"top\":[]}\n", "\"\xff\x01 no JSON", 0.5};
  REQUIRE(KeepPicture(trial, 3, what));
  REQUIRE(KeepPicture(trial, 3, what));  // in its place
  const Folder pictures = trial.Sub("pictures");
  CHECK((pictures.Status().st_mode & 0777U) == 0700);
  CHECK(pictures.Names() == std::vector<std::string>{"3.jpg", "3.json"});
  for (const std::string& name : pictures.Names()) {
    CHECK((pictures.OpenFile(name).Status().st_mode & 0777U) == 0600);
  }
  CHECK(pictures.OpenFile("3.jpg").ReadAll(100) == jpeg);
  const JsonDocument document(pictures.OpenFile("3.json").ReadAll(1000), "3.json", "damaged");
  JsonObject object = document.Root();
  CHECK(object.Number("agreement") == 0.5);
  CHECK(object.String("current") == what.current);

  CHECK_FALSE(KeepPicture(trial, 4, {"GIF89a", "", "", 0}));
  CHECK_FALSE(KeepPicture(trial, 4, {jpeg + std::string(kMaxThumbnail, 'x'), "", "", 0}));
  CHECK(pictures.Names().size() == 2);
  REQUIRE(KeepPicture(trial, 4, {jpeg, std::string(20000, 'x'), "{}", 0}));
  const std::string without = R"({"agreement":0,"current":null,"candidate":"{}"})";
  CHECK(pictures.OpenFile("4.json").ReadAll(1000) == without + "\n");

  REQUIRE(KeepPicture(trial, 4, {jpeg, "{}", std::string(5000, '\x01'), 0}));
  CHECK(pictures.OpenFile("4.json").Size() < 100);

  RemovePictures(root);
  CHECK_FALSE(trial.Has("pictures"));
  RemovePictures(root);
}

TEST_CASE("the worst pictures are kept, and of equally bad ones any") {
  const testing::TempFolder temporary;
  const Folder trial = Folder::Open(temporary.path());
  const auto agreements = [&] {
    std::vector<double> found;
    for (const std::string& name : trial.Sub("pictures").Names()) {
      if (name.find(".json") == std::string::npos) continue;
      const JsonDocument document(trial.Sub("pictures").OpenFile(name).ReadAll(1000), name,
                                  "damaged");
      found.push_back(document.Root().Number("agreement"));
    }
    std::sort(found.begin(), found.end());
    return found;
  };
  const auto picture = [](double agreement) {
    return Disagreement{"\xff\xd8\xff a picture", "{}", "{}", agreement};
  };
  KeptPictures kept(trial, 0, 3, 1);
  for (int i = 0; i < 100; ++i) kept.Keep(picture((i * 37 % 100 + 1) / 128.0));
  CHECK(kept.count() == 3);
  CHECK(agreements() == std::vector<double>{1 / 128.0, 2 / 128.0, 3 / 128.0});

  // Another process goes on with those that are there; one of them cannot be read.
  testing::WriteFile(trial.Sub("pictures").PathOf("1.json"), "no JSON");
  KeptPictures again(trial, 3, 3, 1);
  for (const double agreement : {0.75, 0.875, 0.9375}) again.Keep(picture(agreement));
  const std::vector<double> three = agreements();
  CHECK(three.back() == 0.75);
  CHECK(three.front() <= 2 / 128.0);

  // One of a hundred, 300 times: each tenth of them should have about 30 of the 300.
  std::array<int, 10> tenths = {};
  for (unsigned seed = 1; seed <= 300; ++seed) {
    KeptPictures one(trial, 0, 1, seed * 7919);
    for (int i = 0; i < 100; ++i) {
      one.Keep({"\xff\xd8\xff", std::to_string(i), "", 0.5});
    }
    const JsonDocument document(trial.Sub("pictures").OpenFile("0.json").ReadAll(1000), "0.json",
                                "damaged");
    ++tenths.at(std::stoul(document.Root().String("current")) / 10);
  }
  // 10 and 55 are more than three deviations away.
  for (const int count : tenths) CHECK((count > 10 && count < 55));
}

TEST_CASE("a trial's record is read as it was written") {
  Trial trial;
  trial.release = "0123456789ab";
  trial.before = "ba9876543210";
  trial.phase = "dropped";
  trial.reason = "why";
  trial.pictures = 4;
  trial.agreed = 3.5;
  trial.latency_ratio = 1.25;
  trial.peak_bytes = 1 << 20;
  trial.rules.share = 0.5;
  trial.rules.keep_disagreements = 7;
  trial.rules.split = 0.25;
  trial.kept = 5;
  trial.answered = 3;
  JsonWriter first;
  trial.Write(&first);
  const JsonDocument document(first.text(), "trial.json", "damaged");
  JsonObject object = document.Root();
  const Trial again = Trial::Read(&object);
  JsonWriter second;
  again.Write(&second);
  CHECK(first.text() == second.text());
  CHECK(again.Agreement() == doctest::Approx(0.875));
  CHECK(again.rules.split == 0.25);
  CHECK(again.answered == 3);
  CHECK(again.IsOver());
}

TEST_CASE("rules out of range are refused") {
  const auto refused = [](const auto& change) {
    TrialRules rules;
    rules.Check();
    change(&rules);
    CHECK_THROWS_AS(rules.Check(), Error);
  };
  refused([](TrialRules* rules) { rules->seconds = 0; });
  refused([](TrialRules* rules) { rules->seconds = 31 * 86400.0; });
  refused([](TrialRules* rules) { rules->share = 0; });
  refused([](TrialRules* rules) { rules->keep_disagreements = -1; });
  refused([](TrialRules* rules) { rules->keep_disagreements = 101; });
  refused([](TrialRules* rules) { rules->share = 1.01; });
  refused([](TrialRules* rules) { rules->split = -0.1; });
  refused([](TrialRules* rules) { rules->split = rules->share + 0.01; });
  refused([](TrialRules* rules) { rules->min_agreement = -0.1; });
  refused([](TrialRules* rules) { rules->max_latency = 0; });
  refused([](TrialRules* rules) { rules->min_pictures = 0; });
}

TEST_CASE("root's process becomes nobody, or has no capability") {
  if (geteuid() != 0) {
    MESSAGE("only root gives up root");
    return;
  }
  const testing::TempFolder folder;
  const std::string secret = folder / "secret";
  testing::WriteFile(secret, "content");
  const std::string theirs = folder / "theirs";
  testing::WriteFile(theirs, "content");
  REQUIRE(chmod(secret.c_str(), 0600) == 0);
  REQUIRE(chmod(theirs.c_str(), 0600) == 0);
  REQUIRE(chown(theirs.c_str(), 12345, 12345) == 0);
  const auto ends_with = [](const std::function<bool()>& check) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) _exit(check() ? 0 : 1);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  const auto reads = [](const std::string& path) { return open(path.c_str(), O_RDONLY) >= 0; };
  CHECK(ends_with([&] {
    return GiveUpRoot("/bin/sh") && getuid() == 65534 && geteuid() == 65534 && getegid() == 65534 &&
           setuid(0) < 0 && !reads(secret) && !reads(theirs);
  }));
  // Nobody can start that one.
  CHECK(ends_with([&] {
    return GiveUpRoot(secret) && getuid() == 0 && reads(secret) && !reads(theirs) &&
           setuid(12345) < 0 && chown(secret.c_str(), 12345, 12345) < 0;
  }));
  // Nor has what it starts.
  CHECK(ends_with([&] {
    if (!GiveUpRoot(secret)) return false;
    execl("/bin/sh", "sh", "-c", "! cat \"$0\"", theirs.c_str(), nullptr);
    return false;
  }));
}

TEST_CASE("a confined process reads, and does nothing else") {
  const testing::TempFolder folder;
  const std::string there = folder / "there";
  testing::WriteFile(there, "content");
  const std::string fresh = folder / "new";
  // What each call must not do, beside what errno may be then.
  const std::vector<std::function<bool()>> calls = {
      [&] { return open(there.c_str(), O_WRONLY) < 0; },
      [&] { return open(there.c_str(), O_RDWR) < 0; },
      [&] { return open(there.c_str(), O_RDONLY | O_TRUNC) < 0; },
      [&] { return open(fresh.c_str(), O_RDONLY | O_CREAT, 0600) < 0; },
      [&] { return creat(fresh.c_str(), 0600) < 0; },
      [&] { return rename(there.c_str(), fresh.c_str()) < 0; },
      [&] { return unlink(there.c_str()) < 0; },
      [&] { return mkdir(fresh.c_str(), 0700) < 0; },
      [&] { return symlink(there.c_str(), fresh.c_str()) < 0; },
      [&] { return link(there.c_str(), fresh.c_str()) < 0; },
      [&] { return chmod(there.c_str(), 0777) < 0; },
      [&] { return fchmod(open(there.c_str(), O_RDONLY), 0777) < 0; },
      [&] { return truncate(there.c_str(), 0) < 0; },
      [&] { return socket(AF_INET, SOCK_STREAM, 0) < 0; },
      [&] { return socket(AF_UNIX, SOCK_STREAM, 0) < 0; },
      [&] { return kill(getppid(), 0) < 0; },
      // Without that it would be of no use.
      [&] { return open(there.c_str(), O_RDONLY) >= 0; },
      [&] {
        return mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, open(there.c_str(), O_RDONLY), 0) !=
               MAP_FAILED;
      },
  };
  const bool can = CanConfine();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (!Confine()) _exit(255);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!calls[i]()) _exit(static_cast<int>(i) + 1);
    }
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  const int first_wrong = WEXITSTATUS(status);
  CHECK(can == (first_wrong != 255));
  if (first_wrong == 255) {
    MESSAGE("this kernel, or qemu, has no seccomp filters");
    return;
  }
  CHECK(first_wrong == 0);
  CHECK(testing::ReadFile(there) == "content");
}

}  // namespace edgepack::device
