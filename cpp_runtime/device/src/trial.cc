#include "trial.h"

#include <array>
#include <climits>
#include <cmath>
#include <cstdio>
#include <fcntl.h>
#include <initializer_list>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "confine.h"
#include "error.h"
#include "faults.h"
#include "health.h"
#include "layout.h"
#include "lock.h"
#include "trial_pictures.h"

namespace edgepack::device {
namespace {

constexpr char kFile[] = "trial.json";
constexpr char kRunLock[] = "lock";
constexpr std::size_t kMaxBytes = std::size_t{64} << 10U;
// An activation that is under way is waited for.
constexpr double kStopS = 600;
constexpr double kPollS = 0.1;

Error NoTrial(const std::string& what) {
  return {kExitDevice, "no-trial", what, "`edgepack deploy --shadow 2h` begins one"};
}

std::string Percent(double share) {
  std::array<char, 32> text = {};
  (void)std::snprintf(text.data(), text.size(), "%.2f %%", 100 * share);
  return text.data();
}

std::string Short(double value) {
  std::array<char, 32> text = {};
  (void)std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

/// The process that runs the trial: it outlives this one and its link.
void Spawn(const Site& site) {
  std::array<char, PATH_MAX> self = {};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) < 0) ThrowErrno("find", kTool);
  const pid_t child = fork();
  if (child < 0) ThrowErrno("start", kTool);
  if (child == 0) {
    setsid();
    const pid_t own = fork();
    if (own != 0) _exit(own < 0 ? 1 : 0);
    const int null = open("/dev/null", O_RDWR);  // NOLINT(*-vararg)
    for (const int fd : {0, 1, 2}) {
      if (dup2(null, fd) < 0) _exit(1);
    }
    std::array<std::string, 5> words = {kTool, "trial", "run", "--root", site.root.path()};
    std::array<char*, 6> argv = {};
    for (std::size_t i = 0; i < words.size(); ++i) argv.at(i) = words.at(i).data();
    execv(self.data(), argv.data());
    _exit(1);
  }
  int status = 0;
  Retry([&] { return waitpid(child, &status, 0); });
}

void WriteNumber(const char* key, const std::optional<double>& value, JsonWriter* json) {
  json->Key(key);
  value ? json->Number(*value) : json->Null();
}

}  // namespace

void TrialRules::Check() const {
  const auto need = [](bool holds, const char* what) {
    if (!holds) throw Error(kExitUsage, "usage", std::string("a trial's ") + what);
  };
  constexpr double kMostS = 30 * 86400.0;
  need(seconds > 0 && seconds <= kMostS, "time is more than 0 and at most 30 days");
  need(share > 0 && share <= 1, "share is more than 0 and at most 1");
  need(split >= 0 && split <= share, "split is at most its share");
  need(min_agreement >= 0 && min_agreement <= 1, "agreement is between 0 and 1");
  need(max_latency > 0 && std::isfinite(max_latency), "latency ratio is more than 0");
  need(min_pictures >= 1, "number of pictures is at least 1");
  need(keep_disagreements >= 0 && keep_disagreements <= kMostPictures,
       "number of kept pictures is at most 100");
}

void TrialRules::Write(JsonWriter* json) const {
  json->BeginObject().Key("seconds").Number(seconds).Key("share").Number(share);
  json->Key("min_agreement").Number(min_agreement).Key("max_latency").Number(max_latency);
  json->Key("min_pictures").Int(min_pictures).Key("split").Number(split);
  json->Key("keep_disagreements").Int(keep_disagreements).EndObject();
}

TrialRules TrialRules::Read(JsonObject* object) {
  TrialRules rules;
  rules.seconds = object->Number("seconds");
  rules.share = object->Number("share");
  rules.min_agreement = object->Number("min_agreement");
  rules.max_latency = object->Number("max_latency");
  rules.min_pictures = object->Int("min_pictures");
  // Not known to older ones.
  if (object->Has("keep_disagreements")) {
    rules.keep_disagreements = object->Int("keep_disagreements");
  }
  if (object->Has("split")) rules.split = object->Number("split");
  rules.Check();
  return rules;
}

std::optional<double> Trial::Agreement() const {
  if (pictures == 0) return std::nullopt;
  return agreed / static_cast<double>(pictures);
}

void Trial::Write(JsonWriter* json) const {
  json->BeginObject().Key("release").String(release).Key("before").String(before);
  json->Key("by").String(by).Key("began_at").String(began_at).Key("ended_at").String(ended_at);
  json->Key("phase").String(phase).Key("reason").String(reason).Key("rules");
  rules.Write(json);
  json->Key("elapsed_s").Number(elapsed_s).Key("pictures").Int(pictures);
  WriteNumber("agreement", Agreement(), json);
  json->Key("agreed").Number(agreed).Key("differing").Int(differing);
  json->Key("incomparable").Int(incomparable).Key("crashes").Int(crashes);
  json->Key("kept").Int(kept).Key("answered").Int(answered);
  json->Key("scored").Int(scored).Key("difference").Number(difference);
  json->Key("largest_difference").Number(largest_difference);
  json->Key("current_ms").Number(current_ms).Key("candidate_ms").Number(candidate_ms);
  WriteNumber("latency_ratio", latency_ratio, json);
  json->Key("peak_bytes").Int(static_cast<std::int64_t>(peak_bytes)).EndObject();
}

Trial Trial::Read(JsonObject* object) {
  Trial trial;
  trial.release = object->String("release");
  trial.before = object->String("before");
  trial.by = object->String("by");
  trial.began_at = object->String("began_at");
  trial.ended_at = object->String("ended_at");
  trial.phase = object->String("phase");
  trial.reason = object->String("reason");
  JsonObject rules = object->Object("rules");
  trial.rules = TrialRules::Read(&rules);
  trial.elapsed_s = object->Number("elapsed_s");
  trial.pictures = object->Int("pictures", 0);
  trial.agreed = object->Number("agreed");
  trial.differing = object->Int("differing", 0);
  trial.incomparable = object->Int("incomparable", 0);
  trial.crashes = object->Int("crashes", 0);
  if (object->Has("kept")) trial.kept = object->Int("kept", 0, kMostPictures);
  if (object->Has("answered")) trial.answered = object->Int("answered", 0);
  trial.scored = object->Int("scored", 0);
  trial.difference = object->Number("difference");
  trial.largest_difference = object->Number("largest_difference");
  trial.current_ms = object->Number("current_ms");
  trial.candidate_ms = object->Number("candidate_ms");
  trial.latency_ratio = object->OptionalNumber("latency_ratio");
  trial.peak_bytes = object->Size("peak_bytes");
  return trial;
}

std::optional<Trial> FindTrial(const Folder& root) {
  if (!root.Has(kState)) return std::nullopt;
  try {
    const std::optional<File> file = root.Sub(kState).Find(kFile);
    if (!file) return std::nullopt;
    const JsonDocument document(file->ReadAll(kMaxBytes), file->path(), "damaged");
    JsonObject object = document.Root();
    return Trial::Read(&object);
  } catch (const Error&) {
    return std::nullopt;  // a trial that cannot be read decides nothing
  }
}

void SaveTrial(const Folder& root, const Trial& trial) {
  JsonWriter json;
  trial.Write(&json);
  root.MakeSub(kState).Replace(kFile, json.text() + "\n", "trial");
}

std::optional<TrialLock> TrialLock::Take(const Folder& root) {
  constexpr mode_t kOwnersAlone = 0600;
  File file = root.MakeSub(kTrial).Create(kRunLock, kOwnersAlone);
  if (!TryLock(file)) return std::nullopt;
  return TrialLock(std::move(file));
}

Health StartTrial(const Site& site, const Progress& progress, const std::string& release,
                  const TrialRules& rules, const std::string& by) {
  rules.Check();
  if (!IsReleaseId(release) || !site.releases.Has(release)) {
    throw Error(kExitDevice, "no-release", "there is no release " + release,
                "edgepack-device status lists them");
  }
  const std::optional<std::string> current = site.releases.Named(kCurrent);
  if (!current) {
    throw Error(kExitDevice, "no-release", "no release is current: there is nothing to compare to",
                "deploy the first one without a trial");
  }
  if (*current == release) {
    throw Error(kExitUsage, "usage", "release " + release + " is current: it needs no trial");
  }
  {
    const std::optional<TrialLock> lock = TrialLock::Take(site.root);
    const std::optional<Trial> last = FindTrial(site.root);
    if (!lock && last) {
      // The same deploy again, after its link was lost.
      if (last->release == release && last->by == by) {
        return CheckHealth(site.releases, release, Timestamp(site.trust.Now()));
      }
      throw Error(kExitUsage, "usage", "a trial of release " + last->release + " runs",
                  "edgepack trial stop ends it");
    }
  }
  if (!CanConfine()) {
    throw Error(kExitDevice, "no-seccomp",
                "this kernel lacks seccomp filters: it cannot confine the candidate of a trial",
                "deploy without --shadow");
  }
  progress("verify");
  site.releases.Verify(release);
  progress("health");
  Health health = CheckHealth(site.releases, release, Timestamp(site.trust.Now()));
  Trial trial;
  trial.release = release;
  trial.before = *current;
  trial.by = by;
  trial.began_at = health.at;
  trial.rules = rules;
  progress("trial");
  Step("trial.begin");
  site.root.MakeSub(kTrial).Remove(kTrialStop);
  RemovePictures(site.root);
  SaveTrial(site.root, trial);
  Step("trial.spawn");
  Spawn(site);
  return health;
}

void ResumeTrial(const Site& site) {
  const std::optional<Trial> trial = FindTrial(site.root);
  if (!trial || trial->IsOver()) throw NoTrial("no trial was interrupted here");
  Spawn(site);
}

Trial StopTrial(const Site& site) {
  std::optional<Trial> trial = FindTrial(site.root);
  if (!trial || trial->IsOver()) throw NoTrial("no trial runs here");
  const Folder folder = site.root.MakeSub(kTrial);
  (void)folder.Create(kTrialStop, 0600);
  const double deadline = Monotonic() + kStopS;
  for (;;) {
    if (const std::optional<TrialLock> lock = TrialLock::Take(site.root)) {
      folder.Remove(kTrialStop);
      trial = FindTrial(site.root);
      if (trial && !trial->IsOver()) {  // nobody ran it
        trial->phase = "stopped";
        trial->reason = "stopped by the operator";
        trial->ended_at = Timestamp(site.trust.Now());
        SaveTrial(site.root, *trial);
      }
      if (trial) return *trial;
      throw NoTrial("the trial's record is damaged");
    }
    if (Monotonic() > deadline) {
      throw Error(kExitDevice, "io", "the process of the trial does not end", "reboot the device");
    }
    Sleep(kPollS);
  }
}

std::string TrialJson(const Site& site) {
  const std::optional<Trial> trial = FindTrial(site.root);
  if (!trial) throw NoTrial("there was no trial here");
  JsonWriter json;
  json.BeginObject().Key("trial");
  trial->Write(&json);
  const bool runs = !trial->IsOver() && !TrialLock::Take(site.root);
  return json.Key("runs").Bool(runs).EndObject().text();
}

std::string TrialText(const Site& site) {
  const std::optional<Trial> trial = FindTrial(site.root);
  if (!trial) throw NoTrial("there was no trial here");
  const bool runs = !trial->IsOver() && !TrialLock::Take(site.root);
  std::string text;
  const auto add = [&](std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts) text += part;
  };
  const auto count = [](std::int64_t number) { return std::to_string(number); };
  add({"trial of release ", trial->release, " beside ", trial->before, ": "});
  const bool interrupted = !trial->IsOver() && !runs;
  add({interrupted ? "interrupted: edgepack-device trial resume goes on" : trial->phase,
       trial->reason.empty() ? "" : ", ", trial->reason});
  add({"\ntime       ", Short(trial->elapsed_s), " of ", Short(trial->rules.seconds)});
  add({" s\npictures   ", count(trial->pictures), " compared, ", count(trial->differing)});
  add({" differ"});
  if (trial->incomparable > 0) add({", ", count(trial->incomparable), " cannot be compared"});
  if (trial->kept > 0) add({", ", count(trial->kept), " kept in trial/pictures"});
  if (trial->rules.split > 0) add({"\nanswered   ", count(trial->answered), " by the candidate"});
  if (const std::optional<double> agreement = trial->Agreement()) {
    add({"\nagreement  ", Percent(*agreement), ", needed ", Percent(trial->rules.min_agreement)});
  }
  if (trial->scored > 0) {
    const double mean = trial->difference / static_cast<double>(trial->scored);
    add({"\nscores     differ by ", Short(mean), " on average, "});
    add({Short(trial->largest_difference), " at most"});
  }
  if (trial->latency_ratio) {
    add({"\nlatency    ", Short(*trial->latency_ratio), " x that of ", trial->before});
    add({", allowed ", Short(trial->rules.max_latency), " x"});
  }
  add({"\nmemory     ", Short(static_cast<double>(trial->peak_bytes) / 1e6), " MB at most\n"});
  if (trial->crashes > 0) add({"crashes    ", count(trial->crashes), "\n"});
  return text;
}

}  // namespace edgepack::device
