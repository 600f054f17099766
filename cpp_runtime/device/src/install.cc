#include "install.h"

#include <algorithm>
#include <set>

#include "clock.h"
#include "compatible.h"
#include "error.h"
#include "faults.h"
#include "layout.h"

namespace edgepack::device {
namespace {

// Records, links, and what the device itself needs to go on living.
constexpr std::uint64_t kMarginBytes = std::uint64_t{1} << 20U;

const FileEntry& EntryOf(const Manifest& manifest, const std::string& path) {
  const auto found = std::find_if(manifest.files.begin(), manifest.files.end(),
                                  [&](const FileEntry& entry) { return entry.path == path; });
  if (found == manifest.files.end()) throw Refused("bad-manifest", "files lacks " + path);
  return *found;
}

std::string Megabytes(std::uint64_t bytes) {
  return std::to_string((bytes + 99'999) / 1'000'000) + "." +
         std::to_string((bytes + 99'999) / 100'000 % 10) + " MB";
}

}  // namespace

void InstallReport::Write(JsonWriter* json) const {
  json->BeginObject().Key("outcome").String(outcome).Key("release").String(release);
  json->Key("before").StringOrNull(before).Key("previous").StringOrNull(previous);
  json->Key("removed").BeginArray();
  for (const std::string& id : removed) json->String(id);
  json->EndArray().Key("received_bytes").Int(static_cast<std::int64_t>(received_bytes));
  json->Key("copied_bytes").Int(static_cast<std::int64_t>(copied_bytes)).Key("health");
  if (health) {
    health->Write(json);
  } else {
    json->Null();
  }
  json->Key("health_fresh").Bool(health_fresh);
  json->Key("same_version").StringOrNull(same_version);
  json->Key("signer").StringOrNull(signer).Key("pinned").StringOrNull(pinned).EndObject();
}

Installer::Checked Installer::Check(BundleSource* source) const {
  progress_("check");
  Checked checked;
  SignedManifest& bundle = checked.bundle;
  bundle.bytes = source->Manifest();
  bundle.signature = source->Signature();
  // First of all: nothing in an unsigned or wrongly signed manifest is worth a look.
  CheckSignersAreThere();
  checked.verdict =
      site_->trust.Check(bundle.bytes, bundle.signature, request_.signers, request_.time);
  bundle.manifest = ParseManifest(bundle.bytes);
  CheckName(bundle.manifest);
  site_->trust.CheckProduct(bundle.manifest);
  site_->trust.CheckBoard(bundle.manifest);
  site_->trust.CheckTime(bundle.manifest, request_.time);
  CheckMachine(bundle.manifest);
  CheckVersion(bundle.manifest);
  return checked;
}

void Installer::CheckSignersAreThere() const {
  if (site_->trust.signers()) return;
  for (const Record& record : site_->state.Records()) {
    if (record.signer.empty()) continue;
    throw Refused("damaged",
                  "signed bundles were taken here (" + record.signer +
                      "), and the list of who may sign is gone",
                  "edgepack trust set FILE; or on the device: edgepack-device trust set FILE");
  }
}

std::optional<std::string> Installer::Name() const {
  if (std::optional<std::string> name = site_->trust.name()) return name;
  // Lost, or of a tool that noted none.
  std::vector<std::string> ids = site_->releases.Ids();
  if (const auto current = site_->releases.Named(kCurrent)) ids.insert(ids.begin(), *current);
  for (const std::string& id : ids) {
    try {
      return site_->releases.Load(id).manifest.name;
    } catch (const Error&) {
      continue;  // damaged: it says nothing
    }
  }
  return std::nullopt;
}

void Installer::CheckName(const Manifest& manifest) const {
  for (const std::optional<std::string>& name : {request_.name, Name()}) {
    if (!name || *name == manifest.name) continue;
    throw Refused("wrong-name",
                  "the bundle is " + manifest.name + ", and releases of " + *name +
                      " are kept in " + site_->root.path(),
                  "each model has a folder of its own: --root");
  }
}

std::optional<std::string> Installer::SameVersion(const Manifest& manifest) const {
  if (!site_->trust.signers()) return std::nullopt;
  const std::optional<std::string> current = site_->releases.Named(kCurrent);
  std::optional<std::string> same;
  for (const Record& record : site_->state.Records()) {
    const bool counts = !record.activated_at.empty() && record.version == manifest.version;
    if (!counts || record.release == manifest.release) continue;
    if (!same || record.release == current) same = record.release;
  }
  return same;
}

void Installer::CheckVersion(const Manifest& manifest) const {
  const std::optional<std::int64_t> highest = site_->state.highest(manifest.name);
  if (request_.allow_downgrade || !highest || manifest.version >= *highest) return;
  // One that was gone back to stays welcome, and where nobody is trusted the number says nothing.
  if (site_->releases.Named(kCurrent) == manifest.release || !site_->trust.signers()) return;
  throw Refused("downgrade",
                "the bundle is version " + std::to_string(manifest.version) + ", version " +
                    std::to_string(*highest) + " was active here",
                "go back with `edgepack rollback`, or give --allow-downgrade");
}

Plan Installer::PlanOf(const SignedManifest& bundle) const {
  Plan plan;
  plan.release = bundle.manifest.release;
  plan.files = bundle.manifest.files;
  plan.current = site_->releases.Named(kCurrent);
  plan.previous = site_->releases.Named(kPrevious);
  plan.same_version = SameVersion(bundle.manifest);
  std::set<std::string> seen;
  for (const FileEntry& file : bundle.manifest.files) {
    if (!seen.insert(file.sha256).second ||
        site_->store.Check(file.sha256) == Store::Condition::kWhole) {
      continue;
    }
    plan.needs.push_back({file, site_->store.PartSize(file.sha256)});
  }
  if (plan.current == plan.release && plan.needs.empty() && !request_.retest) {
    const std::optional<Record> record = site_->state.Find(plan.release);
    // In this order: a damaged manifest cannot be loaded.
    plan.unchanged = record && record->health && record->health->system == SystemName() &&
                     site_->releases.Problems(plan.release).empty() &&
                     site_->releases.Load(plan.release).bytes == bundle.bytes &&
                     !site_->state.pending();
  }
  plan.remove = Switch(*site_, progress_).Removable(request_.keep, plan.release);
  return plan;
}

Plan Installer::MakePlan(BundleSource* source) const { return PlanOf(Check(source).bundle); }

void Installer::CheckSpace(const Plan& plan) const {
  if (plan.unchanged) return;
  std::uint64_t bytes = 0;
  for (const Need& need : plan.needs) bytes += need.file.size - std::min(need.file.size, need.part);
  const std::uint64_t free = site_->store.FreeBytes();
  // Whether there are links is only asked where it matters: that writes.
  const std::uint64_t copies = CopiedBytes(plan);
  const bool copied = bytes + copies + kMarginBytes > free && site_->store.LinksAreCopies();
  if (copied) bytes += copies;
  if (bytes > 0 && bytes + kMarginBytes > free) {
    throw Error(kExitDevice, "disk-full",
                Megabytes(bytes) + " are to be stored in " + site_->root.path() + ", " +
                    Megabytes(free) + " are free" +
                    (copied ? "; there are no hard links there: a release is a copy" : ""),
                "make room there, or choose another folder with --root");
  }
}

std::uint64_t Installer::CopiedBytes(const Plan& plan) const {
  std::uint64_t all = 0;
  std::uint64_t largest = 0;
  for (const FileEntry& file : plan.files) {
    all += file.size;
    largest = std::max(largest, file.size);
  }
  // Of one that is there, each file is replaced by itself.
  return site_->releases.Has(plan.release) ? largest : all;
}

void Installer::Fill(const SignedManifest& bundle, const Plan& plan, BundleSource* source) const {
  CheckSpace(plan);
  std::set<std::string> damaged;
  for (const Need& need : plan.needs) {
    if (site_->store.Has(need.file.sha256)) damaged.insert(need.file.sha256);
    // Not the beginning of this content, whatever it is.
    if (need.part > need.file.size) site_->store.Begin(need.file.sha256).Discard();
  }
  try {
    source->Fill(plan, *site_);
  } catch (const Error& error) {
    // The device needs the space to live.
    if (error.kind == "disk-full") site_->store.RemoveParts();
    throw;
  }
  for (const Need& need : plan.needs) {
    if (!site_->store.Has(need.file.sha256)) {
      throw Refused("damaged", need.file.path + " is missing in the bundle");
    }
  }
  if (damaged.empty()) return;
  // Other releases link to the damaged content, which the store has just replaced.
  for (const std::string& id : site_->releases.Ids()) {
    if (id == bundle.manifest.release) continue;
    try {
      site_->releases.Repair(id);
    } catch (const Error& error) {
      if (error.exit_code == kExitDevice) throw;
      progress_("release " + id + ": " + error.message);  // no worse than it was
    }
  }
}

void Installer::Publish(const Checked& checked) const {
  const SignedManifest& bundle = checked.bundle;
  const std::string& id = bundle.manifest.release;
  if (!bundle.manifest.IsStatic()) {
    for (const char* path : {kApp, kLibrary}) {
      CheckLibc(site_->store.Open(EntryOf(bundle.manifest, path).sha256), path);
    }
  }
  std::optional<Record> record = site_->state.Find(id);
  const std::string sha256 = bundle.Sha256();
  if (record && site_->releases.Has(id) && record->manifest_sha256 != sha256) {
    throw Refused("release-mismatch",
                  "release " + id + " is here with another manifest: two bundles have one name",
                  "make the bundle again");
  }
  if (!record || !site_->releases.Has(id)) {
    record.emplace();
    record->serial = site_->state.NextSerial();
    record->installed_at = Timestamp(site_->trust.Now());
    record->by = request_.by;
  }
  record->release = id;
  record->manifest_sha256 = sha256;
  record->version = bundle.manifest.version;
  if (!checked.verdict.signers.empty()) record->signer.clear();
  for (const Signer& signer : checked.verdict.signers) {
    record->signer +=
        (record->signer.empty() ? "" : ", ") + signer.principal + " " + signer.fingerprint;
  }
  progress_("publish");
  // First of all: with a record of a signer and no list of them, nothing is taken any more.
  site_->trust.Pin(checked.verdict, bundle.manifest);
  site_->state.Save(*record);
  site_->releases.Publish(bundle);
}

InstallReport Installer::Install(BundleSource* source) const {
  const Checked checked = Check(source);
  const SignedManifest& bundle = checked.bundle;
  if (!checked.verdict.signers.empty()) site_->trust.TakeTime(request_.time);
  const Plan plan = PlanOf(bundle);
  InstallReport report;
  report.release = plan.release;
  report.before = plan.current;
  report.same_version = plan.same_version;
  const bool there = plan.needs.empty() && site_->releases.Has(plan.release);
  Fill(bundle, plan, source);
  if (plan.unchanged) {
    report.outcome = "unchanged";
    report.health = site_->state.Find(plan.release)->health;
  } else {
    Publish(checked);
    report.outcome = !request_.activate ? "installed" : there ? "activated" : "deployed";
    if (request_.activate) {
      report.health = Switch(*site_, progress_).Activate(plan.release, request_.by);
      report.health_fresh = true;
    }
  }
  if (request_.activate) report.removed = Switch(*site_, progress_).Prune(request_.keep);
  report.previous = site_->releases.Named(kPrevious);
  if (const std::optional<Record> record = site_->state.Find(plan.release)) {
    if (!record->signer.empty()) report.signer = record->signer;
  }
  report.pinned = checked.verdict.pin;
  return report;
}

}  // namespace edgepack::device
