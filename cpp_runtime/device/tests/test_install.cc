// Install, switch, test, go back, recover and prune, with edgepack-run played by a shell script.
#include <cstdio>
#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "install.h"
#include "sha256.h"
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

constexpr char kFirst[] = "000000000001";
constexpr char kSecond[] = "000000000002";

/// A device of its own in a folder, and bundles to install.
class Bench {
 public:
  InstallReport Install(const TestBundle& bundle, InstallRequest request = {}) {
    const std::string folder = temp_ / ("bundle-" + bundle.release);
    Folder::Open(temp_.path()).RemoveTree("bundle-" + bundle.release);
    bundle.WriteTo(folder);
    return InstallFrom(folder, std::move(request));
  }
  InstallReport InstallFrom(const std::string& path, InstallRequest request = {}) {
    request.by = "tester";
    return Installer(site(), Quiet, std::move(request)).Install(OpenBundle(path).get());
  }

  [[nodiscard]] const Site& site() const { return site_; }
  [[nodiscard]] Switch switcher() const { return {site_, Quiet}; }
  [[nodiscard]] std::string Path(const std::string& name) const { return root_ + "/" + name; }
  [[nodiscard]] std::string Current() const { return LinkAt(Path("current")); }
  [[nodiscard]] std::string Previous() const { return LinkAt(Path("previous")); }
  [[nodiscard]] const TempFolder& temp() const { return temp_; }

 private:
  TempFolder temp_;
  std::string root_ = temp_ / "home/edgepack/tiny";
  Site site_ = Site::Make(root_);
};

TestBundle Second() {
  TestBundle bundle;
  bundle.release = kSecond;
  bundle.files["model/params.bin"] = "other weights";
  return bundle;
}

/// The second bundle with another edgepack-run.
TestBundle WithApp(const std::string& script) {
  TestBundle bundle = Second();
  bundle.release = Sha256Hex(script).substr(0, 12);
  bundle.files["bin/edgepack-run"] = "#!/bin/sh\n" + script;
  return bundle;
}

std::string HealthAnswer(const std::string& error, const std::string& run_ms = "2") {
  return "echo '{\"expected\":{\"max_abs_error\":" + error +
         ",\"max_abs_reference\":2,\"tolerance\":1e-4},\"run_ms\":" + run_ms +
         ",\"rss_peak_bytes\":9000000}'\n";
}

TEST_CASE("the first install, the same again, and the next") {
  Bench bench;
  const InstallReport first = bench.Install(TestBundle());
  CHECK(first.outcome == "deployed");
  CHECK_FALSE(first.before.has_value());
  CHECK(bench.Current() == "releases/000000000001");
  CHECK(bench.Previous().empty());
  REQUIRE(first.health.has_value());
  CHECK(first.health->latency_ms == 2.5);
  CHECK(first.health->max_rss_mb == 3);

  const InstallReport again = bench.Install(TestBundle());
  CHECK(again.outcome == "unchanged");
  CHECK_FALSE(again.health_fresh);

  const InstallReport second = bench.Install(Second());
  CHECK(second.outcome == "deployed");
  CHECK(second.before == kFirst);
  CHECK(bench.Current() == "releases/000000000002");
  CHECK(bench.Previous() == "releases/000000000001");
  // What both have is there once: the store's name, and one in each release.
  struct stat status = {};
  CHECK(stat(bench.Path("current/bin/edgepack-run").c_str(), &status) == 0);
  CHECK(status.st_nlink == 3);
  CHECK((status.st_mode & 0777U) == 0555);
  CHECK(bench.site().releases.Problems(kSecond).empty());
  CHECK(Contains(StatusJson(bench.site()), R"("current":{"release":"000000000002")"));
}

TEST_CASE("status says what a model was compared on before it was packed") {
  struct Row {
    std::string record;
    std::string json;
    std::string text;
  };
  const std::string untold = R"("compared":null)";
  for (const auto& [record, json, text] : {
           Row{R"({"emulated":["golden"],"local":["random","zeros"],"tolerance":1e-4})",
               R"("compared":{"emulated":["golden"],"local":["random","zeros"]})",
               "golden (emulated); random, zeros (on the maker's machine)"},
           Row{R"({"emulated":[],"local":[],"tolerance":1e-4})",
               R"("compared":{"emulated":[],"local":[]})", "no: made with --no-verify"},
           Row{R"({"inputs":["golden"]})", untold, {}},  // as it was written once
           Row{"not JSON", untold, {}},
           Row{R"({"emulated":["\u001b[2J"],"local":[]})", untold, {}},
           Row{std::string(std::size_t{65} << 10U, ' '), untold, {}},
       }) {
    Bench bench;
    TestBundle bundle;
    bundle.files["verified.json"] = record;
    bench.Install(bundle);
    CHECK(Contains(StatusJson(bench.site()), json));
    CHECK(Contains(StatusText(bench.site()), "compared before it was packed: " + text) !=
          text.empty());
  }
  Bench bench;
  bench.Install(TestBundle());
  CHECK(Contains(StatusJson(bench.site()), untold));
}

TEST_CASE("the test is as exact as the manifest says") {
  Bench bench;
  const TestBundle asked =
      WithApp("[ \"$1 $2 $3\" = '--golden --tolerance 0.0001' ] || exit 9\n" + HealthAnswer("0"));
  bench.Install(asked);
  CHECK(bench.Current() == "releases/" + asked.release);
}

TEST_CASE("a release that does not work there is gone back from") {
  Bench bench;
  bench.Install(TestBundle());
  const auto error_of = [&](const TestBundle& bundle) {
    const std::string error = ErrorOf([&] { bench.Install(bundle); });
    CHECK(bench.Current() == "releases/000000000001");
    CHECK(bench.Previous().empty());
    CHECK_FALSE(bench.site().state.pending().has_value());
    CHECK(Contains(error, "release 000000000001 is current again"));
    return error;
  };
  CHECK(Contains(error_of(WithApp(HealthAnswer("0.5"))), "health-failed"));
  CHECK(Contains(error_of(WithApp(HealthAnswer("0.5"))),
                 "outputs differ by 0.5, allowed are 0.0001 of 2"));
  CHECK(Contains(error_of(WithApp(HealthAnswer("null"))), "the outputs are no numbers"));
  CHECK(Contains(error_of(WithApp("kill -SEGV $$")), "health-crashed"));
  CHECK(Contains(error_of(WithApp("echo broken >&2; exit 5")), "exit code 5: broken"));
  CHECK(Contains(error_of(WithApp("echo '{\"error\":{\"message\":\"no model\"}}'; exit 5")),
                 "exit code 5: no model"));
  CHECK(Contains(error_of(WithApp("echo nothing")), "health-failed"));
  TestBundle hangs = WithApp("sleep 60 & sleep 60");
  hangs.health = R"({"timeout_s":0.3,"max_latency_ms":null,"max_memory_mb":null})";
  CHECK(Contains(error_of(hangs), "health-timeout"));
  TestBundle slow = WithApp(HealthAnswer("0", "51"));
  slow.health = R"({"timeout_s":20,"max_latency_ms":50,"max_memory_mb":null})";
  CHECK(Contains(error_of(slow), "over-latency"));
  TestBundle large = WithApp(HealthAnswer("0"));
  large.health = R"({"timeout_s":20,"max_latency_ms":null,"max_memory_mb":8.5})";
  CHECK(Contains(error_of(large), "over-memory"));
  TestBundle blind;
  blind.release = kSecond;
  blind.files["golden/image.png"] = "a photo";
  blind.files["golden/expected.json"] = R"({"index":7,"label":"cup"})";
  CHECK(Contains(error_of(blind), "taken for class 1 instead of 7 (cup)"));
}

TEST_CASE("a failed first install leaves nothing current") {
  Bench bench;
  const std::string error = ErrorOf([&] { bench.Install(WithApp("exit 1")); });
  CHECK(Contains(error, "none is current now"));
  CHECK(bench.Current().empty());
}

TEST_CASE("what is not what the manifest says is refused before anything is switched") {
  Bench bench;
  bench.Install(TestBundle());
  const std::string folder = bench.temp() / "bad";
  Second().WriteTo(folder);
  const auto error = [&] {
    const std::string text = ErrorOf([&] { bench.InstallFrom(folder); });
    CHECK(bench.Current() == "releases/000000000001");
    CHECK_FALSE(bench.site().releases.Has(kSecond));
    return text;
  };
  const std::string params = folder + "/model/params.bin";
  WriteFile(params, "other weightz");
  CHECK(Contains(error(), "damaged: " + params + " is not what the manifest says"));
  WriteFile(params, "other");
  CHECK(Contains(error(), "is not what the manifest says"));
  WriteFile(params, "other weights and more");
  CHECK(Contains(error(), "is longer than the manifest says"));
  unlink(params.c_str());
  CHECK(Contains(error(), params + " is missing"));
  CHECK(symlink("/etc/passwd", params.c_str()) == 0);
  CHECK(Contains(error(), params));
  WriteFile(params, "other weights");
  CHECK(bench.InstallFrom(folder).outcome == "deployed");
}

TEST_CASE("another board, another machine, a CPU without the features") {
  Bench bench;
  bench.Install(TestBundle());
  TestBundle bundle = Second();
  bundle.board = "other";
  CHECK(Contains(ErrorOf([&] { bench.Install(bundle); }),
                 "wrong-board: the bundle is for board other, this device is a bench"));
  bundle = Second();
  bundle.triple = "riscv64-linux-gnu";
  CHECK(Contains(ErrorOf([&] { bench.Install(bundle); }), "wrong-cpu: the bundle is for riscv64"));
  bundle = Second();
  bundle.hwcaps = "\"warp\"";
  CHECK(Contains(ErrorOf([&] { bench.Install(bundle); }), "this device's CPU lacks warp"));
}

TEST_CASE("an older version is refused where signers are pinned") {
  Bench bench;
  TestBundle bundle;
  bundle.version = "5";
  bench.Install(bundle);
  TestBundle old = Second();
  old.version = "4";
  // Nobody is trusted here: the number could be anybody's.
  CHECK(bench.Install(old).outcome == "deployed");
  bench.switcher().Activate(kFirst, "tester");
  bench.site().trust.SetSigners(
      "ann ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n");
  CHECK(Contains(ErrorOf([&] { bench.Install(old); }), "unsigned: "));
}

TEST_CASE("what was damaged on the device is replaced by an install, in every release") {
  Bench bench;
  bench.Install(TestBundle());
  bench.Install(Second());
  const std::string shared = bench.Path("releases/000000000001/model/model.so");
  CHECK(chmod(shared.c_str(), 0644) == 0);
  {
    // In place: the store and both releases have the same bytes.
    FILE* const file = std::fopen(shared.c_str(), "r+");
    REQUIRE(file != nullptr);
    std::fputc('K', file);
    std::fclose(file);
  }
  WriteFile(bench.Path("releases/000000000002/stray"), "?");
  CHECK(bench.site().releases.Problems(kFirst).size() == 1);
  CHECK(bench.site().releases.Problems(kSecond).size() == 2);
  CHECK(Contains(ErrorOf([&] { bench.switcher().Activate(kFirst, "tester"); }),
                 "model/model.so: its content was changed"));
  CHECK(bench.Current() == "releases/000000000002");
  CHECK(bench.Install(Second()).outcome == "deployed");
  CHECK(bench.site().releases.Problems(kFirst).empty());
  CHECK(bench.site().releases.Problems(kSecond).empty());
}

TEST_CASE("two bundles of one name") {
  Bench bench;
  bench.Install(TestBundle());
  TestBundle other = Second();
  other.release = kFirst;
  CHECK(Contains(ErrorOf([&] { bench.Install(other); }), "release-mismatch"));
  CHECK(ReadFile(bench.Path("current/model/params.bin")) == "weights");
}

TEST_CASE("a switch that was interrupted is ended, or taken back") {
  Bench bench;
  bench.Install(TestBundle());
  InstallRequest request;
  request.activate = false;
  CHECK(bench.Install(Second(), request).outcome == "installed");
  CHECK(bench.Current() == "releases/000000000001");
  Pending pending;
  pending.release = kSecond;
  pending.fallback = kFirst;
  pending.attempts = 1;
  const Site& site = bench.site();

  // Before the link was changed.
  site.state.SetPending(pending);
  site.releases.Point("previous", std::string(kFirst));
  bench.switcher().Recover();
  CHECK(bench.Current() == "releases/000000000001");
  CHECK(bench.Previous().empty());
  CHECK_FALSE(site.state.pending().has_value());

  // After it: it is tested again, and stays.
  site.state.SetPending(pending);
  site.releases.Point("previous", std::string(kFirst));
  site.releases.Point("current", std::string(kSecond));
  bench.switcher().Recover();
  CHECK(bench.Current() == "releases/000000000002");
  CHECK(bench.Previous() == "releases/000000000001");
  CHECK(site.state.Find(kSecond)->health.has_value());

  // Twice begun and never ended.
  pending.attempts = 2;
  site.state.SetPending(pending);
  bench.switcher().Recover();
  CHECK(bench.Current() == "releases/000000000001");
  CHECK(bench.Previous().empty());
}

TEST_CASE("pruning keeps current, previous and the newest, and all that they need") {
  Bench bench;
  InstallRequest request;
  request.keep = 10;
  for (int i = 1; i <= 5; ++i) {
    TestBundle bundle;
    bundle.release = "00000000000" + std::to_string(i);
    bundle.files["model/params.bin"] = "weights " + std::to_string(i);
    bench.Install(bundle, request);
  }
  bench.switcher().Activate("000000000001", "tester");
  WriteFile(bench.Path("incoming/" + std::string(64, 'b') + ".part"), "cut");
  CHECK(bench.switcher().Prune(3) == std::vector<std::string>{"000000000003", "000000000002"});
  CHECK(bench.site().releases.Ids() ==
        std::vector<std::string>{"000000000001", "000000000004", "000000000005"});
  for (const std::string& id : bench.site().releases.Ids()) {
    CHECK(bench.site().releases.Problems(id).empty());
  }
  CHECK_FALSE(bench.site().store.Has(Sha256Hex("weights 2")));
  CHECK(bench.site().store.Has(Sha256Hex("weights 4")));
  CHECK(bench.site().store.PartSize(std::string(64, 'b')) == 0);
}

TEST_CASE("nothing is collected while nobody can tell what is needed") {
  Bench bench;
  bench.Install(TestBundle());
  bench.Install(Second());
  WriteFile(bench.Path("releases/000000000001/manifest.json"), "{");
  bench.switcher().Prune(1);
  CHECK(bench.site().store.Has(Sha256Hex("weights")));
}

TEST_CASE("releases of the first layout are taken over") {
  Bench bench;
  const std::string folder = bench.Path("releases/000000000001");
  TestBundle().WriteTo(folder);
  bench.site().releases.Point("current", std::string(kFirst));
  bench.switcher().Recover();
  CHECK(bench.site().store.Check(Sha256Hex("weights")) == Store::Condition::kWhole);
  CHECK(bench.Install(Second()).previous == kFirst);
  CHECK(bench.Install(TestBundle()).outcome == "activated");
}

TEST_CASE("somebody else's folder") {
  if (geteuid() != 0) return;  // only root can give a folder away
  const TempFolder temp;
  CHECK(chown(temp.path().c_str(), 12345, 12345) == 0);
  CHECK(Contains(ErrorOf([&] { Site::Open(temp.path()); }), "wrong-user: "));
}

}  // namespace
}  // namespace edgepack::device
