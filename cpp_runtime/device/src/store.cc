#include "store.h"

#include <sys/statvfs.h>

#include "error.h"
#include "faults.h"
#include "layout.h"
#include "sha256.h"

namespace edgepack::device {
namespace {

// Card and link then work at the same time, and the last flush is short.
constexpr std::uint64_t kFlushBytes = std::uint64_t{4} << 20U;

std::string PartName(const std::string& sha256) { return sha256 + ".part"; }

constexpr mode_t kBlobMode = 0444;
constexpr mode_t kExecutable = 0111;

}  // namespace

Part::Part(const Folder& incoming, const Folder& store, std::string sha256)
    : incoming_(&incoming),
      store_(&store),
      sha256_(std::move(sha256)),
      file_(incoming.Create(PartName(sha256_), 0644)),
      size_(file_.Size()) {}

void Part::Write(const void* data, std::size_t size) {
  Step("blob.write");
  file_.WriteAt(size_, data, size);
  size_ += size;
  unflushed_ += size;
  if (unflushed_ >= kFlushBytes) {
    Step("blob.flush");
    file_.StartWriting(size_ - unflushed_, unflushed_);
    unflushed_ = 0;
  }
}

bool Part::Finish() {
  Step("blob.fsync");
  file_.Sync();
  Step("blob.hash");
  // Read from the descriptor that was written, which is the file that is renamed.
  if (file_.Sha256() != sha256_) {
    Discard();
    return false;
  }
  Step("blob.rename");
  incoming_->Rename(PartName(sha256_), *store_, sha256_);
  // Not earlier: the rest of a cut upload could not be written.
  Step("blob.mode");
  file_.SetMode(kBlobMode);
  Step("blob.fsync-folder");
  store_->Sync();
  return true;
}

void Part::Discard() {
  Step("blob.discard");
  incoming_->Remove(PartName(sha256_));
}

Store::Store(const Folder& root)
    : store_(root.MakeSub(kStore)), incoming_(root.MakeSub(kIncoming)) {
  const dev_t device = store_.Status().st_dev;
  for (const Folder& other : {incoming_.Clone(), root.MakeSub(kReleases)}) {
    if (other.Status().st_dev != device) {
      throw Error(kExitDevice, "cross-device",
                  other.path() + " and " + store_.path() + " are on two file systems",
                  "hard links cannot cross them: put the whole folder on one");
    }
  }
}

Store::Condition Store::Check(const std::string& sha256) const {
  store_.SetFolderAside(sha256);
  const std::optional<File> file = store_.Find(sha256);
  if (!file) return Condition::kMissing;
  return file->Sha256() == sha256 ? Condition::kWhole : Condition::kDamaged;
}

Store::Total Store::Sum() const {
  Total total;
  for (const std::string& name : store_.Names()) {
    ++total.blobs;
    total.bytes += static_cast<std::uint64_t>(store_.Status(name)->st_size);
  }
  return total;
}

std::uint64_t Store::PartSize(const std::string& sha256) const {
  const std::optional<struct stat> status = incoming_.Status(PartName(sha256));
  return status ? static_cast<std::uint64_t>(status->st_size) : 0;
}

void Store::FinishParts() const {
  constexpr std::size_t kHashDigits = 64;
  for (const std::string& name : incoming_.Names()) {
    const std::string sha256 = name.substr(0, kHashDigits);
    if (name != PartName(sha256) || Check(sha256) == Condition::kWhole) continue;
    (void)Begin(sha256).Finish();
  }
}

void Store::RemoveParts() const {
  for (const std::string& name : incoming_.Names()) {
    Step("prune.part");
    incoming_.RemoveTree(name);
  }
}

void Store::LinkTo(const std::string& sha256, bool executable, const Folder& folder,
                   const std::string& name) const {
  const File blob = Open(sha256);
  const mode_t mode = blob.Status().st_mode & 0777U;
  // What one release runs, another may only have as a file.
  const mode_t wanted = kBlobMode | (executable ? kExecutable : mode & kExecutable);
  if (mode != wanted) {
    Step("release.mode");
    blob.SetMode(wanted);
    blob.Sync();
  }
  const std::string fresh = name + ".new";
  folder.RemoveTree(fresh);
  folder.SetFolderAside(name);
  store_.Link(sha256, folder, fresh);
  folder.Rename(fresh, name);
  // Renaming one link of a file to another does nothing and leaves both.
  folder.Remove(fresh);
}

void Store::Adopt(const Folder& folder, const std::string& name, const std::string& sha256) const {
  if (Has(sha256)) return;
  const File file = folder.OpenFile(name);
  file.SetMode(kBlobMode | (file.Status().st_mode & kExecutable));
  file.Sync();
  folder.Link(name, store_, sha256);
}

void Store::Collect(const std::set<std::string>& needed) const {
  for (const std::string& name : store_.Names()) {
    if (needed.count(name) != 0) continue;
    Step("prune.blob");
    store_.RemoveTree(name);
  }
}

bool Store::LinksAreCopies() const {
  // No names of uploads: whoever clears incoming/ takes them, too.
  const std::string file = "file.new";
  const std::string link = "link.new";
  incoming_.Remove(link);
  (void)incoming_.Create(file, 0600);
  const bool linked = incoming_.TryLink(file, incoming_, link);
  for (const std::string& name : {file, link}) incoming_.Remove(name);
  return !linked;
}

std::uint64_t Store::FreeBytes() const {
  struct statvfs system = {};
  const int done = Retry([&] { return statvfs(store_.path().c_str(), &system); });
  if (done != 0) ThrowErrno("look at", store_.path());
  return std::uint64_t{system.f_bavail} * system.f_frsize;
}

}  // namespace edgepack::device
