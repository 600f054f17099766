#include "switch.h"

#include <algorithm>
#include <fcntl.h>
#include <set>

#include "clock.h"
#include "compatible.h"
#include "error.h"
#include "faults.h"
#include "health.h"
#include "layout.h"
#include "process.h"
#include "sha256.h"
#include "trial.h"
#include "trial_pictures.h"

namespace edgepack::device {
namespace {

// A test that was begun twice and never ended took the device down with it, probably.
constexpr std::int64_t kMaxAttempts = 2;
constexpr double kVersionTimeoutS = 20;
constexpr std::size_t kMaxToolBytes = std::size_t{64} << 20U;

/// "edgepack-device 0.4.0 protocol 1" -> "0.4.0"; "" if it does not run.
std::string VersionOf(const std::string& tool) {
  const Ended ended = RunProgram({tool, "--version"}, kVersionTimeoutS);
  const std::string name = std::string(kTool) + " ";
  if (ended.exit_code != 0 || ended.out.compare(0, name.size(), name) != 0) return "";
  return ended.out.substr(name.size(), ended.out.find(' ', name.size()) - name.size());
}

std::string Now(const Site& site) { return Timestamp(site.trust.Now()); }

}  // namespace

Health Switch::Activate(const std::string& release, const std::string& by) const {
  progress_("verify");
  Step("activate.verify");
  site_->releases.Verify(release);
  const std::optional<std::string> current = site_->releases.Named(kCurrent);
  const std::optional<std::string> previous = site_->releases.Named(kPrevious);
  Pending pending;
  pending.release = release;
  pending.by = by;
  pending.attempts = 1;
  if (current == release) {
    pending.fallback = previous;
  } else {
    pending.fallback = current;
    pending.older = previous;
  }
  progress_("activate");
  site_->state.SetPending(pending);
  if (current && current != release) site_->releases.Point(kPrevious, current);
  site_->releases.Point(kCurrent, release);
  return Test(pending);
}

Health Switch::Test(const Pending& pending) const {
  progress_("health");
  try {
    Health health = CheckHealth(site_->releases, pending.release, Now(*site_));
    Commit(pending, health);
    return health;
  } catch (Error& error) {
    if (error.kind == "io" || error.kind == "disk-full") throw;  // says nothing about the release
    progress_("rollback");
    GoBack(pending);
    error.message = "health check of release " + pending.release + " failed: " + error.message +
                    (pending.fallback ? "; release " + *pending.fallback + " is current again"
                                      : "; there is no release before it, so none is current now");
    throw;
  }
}

void Switch::GoBack(const Pending& pending) const {
  Step("rollback.current");
  site_->releases.Point(kCurrent, pending.fallback);
  Step("rollback.previous");
  site_->releases.Point(kPrevious, pending.older);
  site_->state.ClearPending();
  // After all that matters: if the power is cut here, one is not counted.
  site_->state.CountRollback(pending.release, Now(*site_));
}

void Switch::Commit(const Pending& pending, const Health& health) const {
  const SignedManifest bundle = site_->releases.Load(pending.release);
  std::optional<Record> record = site_->state.Find(pending.release);
  if (!record) {
    record.emplace();
    record->release = pending.release;
    record->manifest_sha256 = bundle.Sha256();
    record->version = bundle.manifest.version;
    record->serial = site_->state.NextSerial();
    record->installed_at = health.at;
  }
  site_->state.KeepCopy(pending.release, bundle.bytes, bundle.signature);
  record->activated_at = health.at;
  record->by = pending.by;
  record->health = health;
  site_->state.Save(*record);
  site_->state.Raise(bundle.manifest.name, bundle.manifest.version);
  site_->trust.Tick();
  UpdateTool(pending.release);
  site_->state.ClearPending();
}

void Switch::UpdateTool(const std::string& release) const {
  const Folder bin = site_->root.MakeSub(kBin);
  const Manifest manifest = site_->releases.Load(release).manifest;
  const auto entry = std::find_if(manifest.files.begin(), manifest.files.end(),
                                  [](const FileEntry& one) { return one.path == kBundleTool; });
  if (entry == manifest.files.end()) {
    if (bin.Has(kTool)) return;
    // A bundle of the first schema brings none: this very program stays.
    const File self(OpenPath("/proc/self/exe", O_RDONLY), "/proc/self/exe");
    bin.Replace(kTool, self.ReadAll(kMaxToolBytes), "tool", 0755);
    return;
  }
  bin.SetFolderAside(kTool);
  const std::string there = bin.Has(kTool) ? VersionOf(bin.PathOf(kTool)) : "";
  const std::string brought = VersionOf(site_->releases.PathOf(release) + "/" + kBundleTool);
  const bool damaged = there == brought && bin.OpenFile(kTool).Sha256() != entry->sha256;
  if (brought.empty() || (!there.empty() && !damaged && !IsOlder(there, brought))) return;
  Step("tool.link");
  site_->store.LinkTo(entry->sha256, true, bin, kTool);
  bin.Sync();
}

/// If it cannot be read, something was being tested, or a card rots: what is current is tested
/// again.
std::optional<Pending> Switch::ReadPending() const {
  try {
    return site_->state.pending();
  } catch (const Error& error) {
    if (error.kind != "damaged") throw;
    progress_("what is being tested is damaged: " + error.message);
    const std::optional<std::string> current = site_->releases.Named(kCurrent);
    if (!current) {
      site_->state.ClearPending();
      return std::nullopt;
    }
    Pending pending;
    pending.release = *current;
    pending.fallback = site_->releases.Named(kPrevious);
    pending.by = kTool;
    site_->state.SetPending(pending);
    return pending;
  }
}

void Switch::Recover() const {
  site_->releases.RemoveLeftovers();
  site_->state.RemoveLeftovers();
  site_->trust.RemoveLeftovers();
  Adopt();
  std::optional<Pending> pending = ReadPending();
  if (!pending) return;
  progress_("recover");
  Step("recover.pending");
  const bool whole = site_->releases.Named(kCurrent) == pending->release &&
                     site_->releases.Problems(pending->release).empty();
  if (!whole || pending->attempts >= kMaxAttempts) {
    GoBack(*pending);
    return;
  }
  ++pending->attempts;
  site_->state.SetPending(*pending);
  try {
    Test(*pending);
  } catch (const Error& error) {
    // It went back, which is all that there was to do.
    if (error.exit_code == kExitDevice) throw;
  }
}

void Switch::Adopt() const {
  for (const std::string& id : site_->releases.Ids()) {
    if (site_->state.Find(id)) continue;
    SignedManifest bundle;
    try {
      bundle = site_->releases.Load(id);
    } catch (const Error&) {
      continue;
    }
    progress_("adopt");
    for (const FileEntry& entry : bundle.manifest.files) {
      const Folder folder = site_->releases.Open(id);
      const std::optional<File> file = folder.Find(entry.path);
      if (!file || site_->store.Has(entry.sha256) || file->Sha256() != entry.sha256) continue;
      Step("adopt.link");
      site_->store.Adopt(folder, entry.path, entry.sha256);
    }
    site_->store.Sync();
    Record record;
    record.release = id;
    record.manifest_sha256 = bundle.Sha256();
    record.version = bundle.manifest.version;
    record.installed_at = Timestamp(site_->releases.Open(id).Status().st_mtime);
    site_->state.Save(record);
  }
}

std::vector<std::string> Switch::Removable(int keep, const std::string& release) const {
  std::vector<std::pair<std::int64_t, std::string>> by_age;
  for (const std::string& id : site_->releases.Ids()) {
    const std::optional<Record> record = site_->state.Find(id);
    if (id != release) by_age.emplace_back(record ? -record->serial : 0, id);
  }
  std::sort(by_age.begin(), by_age.end());
  const std::optional<std::string> current = site_->releases.Named(kCurrent);
  std::set<std::optional<std::string>> kept = {
      current, current == release ? site_->releases.Named(kPrevious) : current};
  const std::optional<Trial> trial = FindTrial(site_->root);
  if (trial && !trial->IsOver()) kept.insert(trial->release);
  std::vector<std::string> removable;
  int others = 1;  // `release` itself
  for (const auto& [age, id] : by_age) {
    if (++others > keep && kept.count(id) == 0) removable.push_back(id);
  }
  return removable;
}

std::vector<std::string> Switch::Prune(int keep) const {
  const std::string current = site_->releases.Named(kCurrent).value_or("");
  std::vector<std::string> removed = Removable(keep, current);
  progress_("prune");
  for (const std::string& id : removed) site_->releases.Remove(id);
  // Those of releases, too, that went when the power was cut between these two.
  for (const std::string& id : site_->state.Releases()) {
    if (site_->releases.Has(id)) continue;
    Step("prune.record");
    site_->state.Remove(id);
  }
  const std::optional<Trial> trial = FindTrial(site_->root);
  if (!trial || trial->IsOver()) RemovePictures(site_->root);
  site_->store.RemoveParts();
  if (const std::optional<std::set<std::string>> needed = site_->releases.Needed()) {
    site_->store.Collect(*needed);
  }
  return removed;
}

}  // namespace edgepack::device
