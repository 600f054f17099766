#include "releases.h"

#include <algorithm>
#include <map>

#include "error.h"
#include "faults.h"
#include "layout.h"
#include "sha256.h"

namespace edgepack::device {
namespace {

constexpr std::size_t kShownProblems = 4;

/// Paths of all plain entries below `folder`, with `prefix` before them.
void Walk(const Folder& folder, const std::string& prefix, std::set<std::string>* paths) {
  for (const std::string& name : folder.Names()) {
    if (S_ISDIR(folder.Status(name)->st_mode)) {
      Walk(folder.Sub(name), prefix + name + "/", paths);
    } else {
      paths->insert(prefix + name);
    }
  }
}

/// Flushes `folder` and all folders below it.
void SyncFolders(const Folder& folder) {
  for (const std::string& name : folder.Names()) {
    if (S_ISDIR(folder.Status(name)->st_mode)) SyncFolders(folder.Sub(name));
  }
  folder.Sync();
}

std::optional<std::string> ProblemOf(const Folder& folder, const FileEntry& entry) {
  std::optional<File> file;
  try {
    file = folder.Find(entry.path);
  } catch (const Error& error) {
    return error.message;
  }
  if (!file) return entry.path + " is missing";
  const struct stat status = file->Status();
  if (static_cast<std::uint64_t>(status.st_size) != entry.size) {
    return entry.path + ": " + std::to_string(status.st_size) + " bytes instead of " +
           std::to_string(entry.size);
  }
  if (entry.executable && (status.st_mode & S_IXUSR) == 0) {
    return entry.path + " cannot be executed";
  }
  if (file->Sha256() != entry.sha256) return entry.path + ": its content was changed";
  return std::nullopt;
}

}  // namespace

std::string SignedManifest::Sha256() const { return Sha256Hex(bytes); }

Place MakePlace(const Folder& folder, const std::string& path) {
  const std::size_t slash = path.find('/');
  if (slash == std::string::npos) return {folder.Clone(), path};
  return MakePlace(folder.MakeSub(path.substr(0, slash)), path.substr(slash + 1));
}

Releases::Releases(const Folder& root, const Store& store)
    : root_(root.Clone()), releases_(root.MakeSub(kReleases)), store_(&store) {}

std::vector<std::string> Releases::Ids() const {
  std::vector<std::string> ids;
  for (std::string& name : releases_.Names()) {
    if (IsReleaseId(name)) ids.push_back(std::move(name));
  }
  return ids;
}

SignedManifest Releases::Load(const std::string& id) const {
  const Folder folder = releases_.Sub(id);
  SignedManifest bundle;
  bundle.bytes = folder.OpenFile(kManifestName).ReadAll(kMaxManifestBytes);
  if (const std::optional<File> file = folder.Find(kSignatureName)) {
    bundle.signature = file->ReadAll(kMaxSignatureBytes);
  }
  bundle.manifest = ParseManifest(bundle.bytes);
  if (bundle.manifest.release != id) {
    throw Refused("release-mismatch", folder.PathOf(kManifestName) +
                                          " is the manifest of release " + bundle.manifest.release);
  }
  return bundle;
}

std::vector<std::string> Releases::Problems(const std::string& id) const {
  std::vector<std::string> problems;
  try {
    const Folder folder = releases_.Sub(id);
    const Manifest manifest = Load(id).manifest;
    std::set<std::string> found;
    Walk(folder, "", &found);
    found.erase(kManifestName);
    found.erase(kSignatureName);
    for (const FileEntry& entry : manifest.files) {
      found.erase(entry.path);
      if (std::optional<std::string> problem = ProblemOf(folder, entry)) {
        problems.push_back(std::move(*problem));
      }
    }
    for (const std::string& path : found) problems.push_back(path + " is not in the manifest");
  } catch (const Error& error) {
    problems.push_back(error.message);
  }
  return problems;
}

void Releases::Verify(const std::string& id) const {
  const std::vector<std::string> problems = Problems(id);
  if (problems.empty()) return;
  std::string message = "release " + id + " is damaged";
  for (std::size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i) {
    message += (i == 0 ? ": " : "; ") + problems[i];
  }
  if (problems.size() > kShownProblems) {
    message += "; and " + std::to_string(problems.size() - kShownProblems) + " more";
  }
  throw Refused("damaged", message, "install its bundle again: what is damaged is replaced");
}

void Releases::LinkFiles(const Manifest& manifest, const Folder& folder) const {
  for (const FileEntry& entry : manifest.files) {
    const Place place = MakePlace(folder, entry.path);
    const std::optional<struct stat> there = place.folder.Status(place.name);
    if (there && there->st_ino == store_->Open(entry.sha256).Status().st_ino &&
        (!entry.executable || (there->st_mode & S_IXUSR) != 0)) {
      continue;
    }
    if (there && S_ISDIR(there->st_mode)) place.folder.RemoveTree(place.name);
    Step("release.link");
    store_->LinkTo(entry.sha256, entry.executable, place.folder, place.name);
  }
}

void Releases::WriteManifest(const SignedManifest& bundle, const Folder& folder) {
  folder.Replace(kManifestName, bundle.bytes, "release.manifest");
  if (bundle.signature) {
    folder.Replace(kSignatureName, *bundle.signature, "release.signature");
  }
}

void Releases::Publish(const SignedManifest& bundle) const {
  const std::string& id = bundle.manifest.release;
  if (Has(id)) {
    const Folder folder = releases_.Sub(id);
    WriteManifest(bundle, folder);
    Repair(id);
    return;
  }
  const std::string fresh = id + ".new";
  releases_.RemoveTree(fresh);
  Step("release.folder");
  try {
    const Folder folder = releases_.MakeSub(fresh);
    LinkFiles(bundle.manifest, folder);
    WriteManifest(bundle, folder);
    Step("release.fsync");
    SyncFolders(folder);
  } catch (const Error& error) {
    // The device needs the space to live: copies take some.
    if (error.kind == "disk-full") releases_.RemoveTree(fresh);
    throw;
  }
  Step("release.rename");
  releases_.Rename(fresh, id);
  Step("release.fsync-folder");
  releases_.Sync();
}

void Releases::Restore(const std::string& id, const std::string& manifest,
                       const std::optional<std::string>& signature) const {
  SignedManifest bundle;
  bundle.bytes = manifest;
  bundle.signature = signature;
  WriteManifest(bundle, releases_.Sub(id));
}

void Releases::Repair(const std::string& id) const {
  const Folder folder = releases_.Sub(id);
  const Manifest manifest = Load(id).manifest;
  LinkFiles(manifest, folder);
  std::set<std::string> unlisted;
  Walk(folder, "", &unlisted);
  unlisted.erase(kManifestName);
  unlisted.erase(kSignatureName);
  for (const FileEntry& entry : manifest.files) unlisted.erase(entry.path);
  for (const std::string& path : unlisted) {
    Step("release.unlisted");
    folder.Remove(path);
  }
  SyncFolders(folder);
}

void Releases::Remove(const std::string& id) const {
  const std::string old = id + ".old";
  releases_.RemoveTree(old);
  Step("prune.rename");
  releases_.Rename(id, old);
  releases_.Sync();
  Step("prune.remove");
  releases_.RemoveTree(old);
}

void Releases::RemoveLeftovers() const {
  for (const std::string& name : releases_.Names()) {
    const std::string id = name.substr(0, name.find('.'));
    const std::string rest = name.substr(id.size());
    if (IsReleaseId(id) && (rest == ".new" || rest == ".old" || rest == ".part")) {
      Step("recover.leftover");
      releases_.RemoveTree(name);
    }
  }
  for (const char* link : {kCurrent, kPrevious}) root_.Remove(std::string(link) + ".new");
}

std::optional<std::set<std::string>> Releases::Needed() const {
  std::set<std::string> needed;
  try {
    for (const std::string& id : Ids()) {
      for (const FileEntry& entry : Load(id).manifest.files) needed.insert(entry.sha256);
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return needed;
}

std::optional<std::string> Releases::Named(const char* link) const {
  const std::optional<std::string> target = root_.ReadLink(link);
  const std::string prefix = std::string(kReleases) + "/";
  if (!target || target->compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  std::string id = target->substr(prefix.size());
  if (!IsReleaseId(id) || !Has(id)) return std::nullopt;
  return id;
}

void Releases::Point(const char* link, const std::optional<std::string>& id) const {
  if (Named(link) == id && (id || !root_.Has(link))) return;
  if (id) {
    root_.ReplaceLink(link, std::string(kReleases) + "/" + *id, link);
    return;
  }
  Step((std::string(link) + ".remove").c_str());
  root_.Remove(link);
  root_.Sync();
}

}  // namespace edgepack::device
