#include "sources.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "archive.h"
#include "error.h"
#include "file.h"
#include "manifest_reader.h"
#include "releases.h"

namespace edgepack::device {
namespace {

constexpr std::size_t kCopyBlock = std::size_t{64} << 10U;

/// Writes one blob from the beginning, from whatever gives its bytes, and checks its hash.
template <typename Read>
void Copy(const FileEntry& file, const std::string& shown_as, const Store& store, Read read) {
  if (store.PartSize(file.sha256) > 0) store.Begin(file.sha256).Discard();
  Part part = store.Begin(file.sha256);
  std::vector<char> block(kCopyBlock);
  while (const std::size_t count = read(part.size(), block.data(), block.size())) {
    if (count > file.size - part.size()) {
      part.Discard();
      throw Refused("damaged", shown_as + " is longer than the manifest says");
    }
    part.Write(block.data(), count);
  }
  if (!part.Finish()) {
    throw Refused("damaged", shown_as + " is not what the manifest says", "fetch the bundle again");
  }
}

/// An unpacked bundle.
class FolderSource final : public BundleSource {
 public:
  explicit FolderSource(const std::string& path) : folder_(Folder::Open(path)) {}

  std::string Manifest() override {
    return folder_.OpenFile(kManifestName).ReadAll(kMaxManifestBytes);
  }

  std::optional<std::string> Signature() override {
    const std::optional<File> file = folder_.Find(kSignatureName);
    if (!file) return std::nullopt;
    return file->ReadAll(kMaxSignatureBytes);
  }

  void Fill(const Plan& plan, const Site& site) override {
    for (const Need& need : plan.needs) {
      const File file = folder_.OpenFile(need.file.path);
      Copy(need.file, file.path(), site.store,
           [&](std::uint64_t offset, char* data, std::size_t size) {
             return file.ReadAt(offset, data, size);
           });
    }
  }

 private:
  Folder folder_;
};

/// A bundle as .tar.gz, read twice: once for its manifest, and once for what is needed. Nothing is
/// written before the manifest was found to be good.
class ArchiveSource final : public BundleSource {
 public:
  explicit ArchiveSource(File file) : file_(std::move(file)) {}

  std::string Manifest() override {
    BundleArchive archive = Rewound();
    bool found = false;
    while (const std::optional<BundleArchive::Member> member = archive.Next()) {
      if (member->path == kManifestName) {
        manifest_ = Text(&archive, *member, kMaxManifestBytes);
        found = true;
      } else if (member->path == kSignatureName) {
        signature_ = Text(&archive, *member, kMaxSignatureBytes);
      }
    }
    if (!found) throw Refused("damaged", file_.path() + " has no " + kManifestName);
    return manifest_;
  }

  std::optional<std::string> Signature() override { return signature_; }

  void Fill(const Plan& plan, const Site& site) override {
    std::map<std::string, const FileEntry*> needed;
    for (const FileEntry& file : plan.files) needed[file.path] = nullptr;
    for (const Need& need : plan.needs) needed[need.file.path] = &need.file;
    BundleArchive archive = Rewound();
    while (const std::optional<BundleArchive::Member> member = archive.Next()) {
      if (member->path == kManifestName || member->path == kSignatureName) continue;
      const auto found = needed.find(member->path);
      if (found == needed.end()) {
        throw Refused("damaged", file_.path() + ": " + member->path + " is not in the manifest");
      }
      if (found->second == nullptr) continue;
      Copy(*found->second, file_.path() + ": " + member->path, site.store,
           [&](std::uint64_t /*offset*/, char* data, std::size_t size) {
             return archive.Read(data, size);
           });
    }
  }

 private:
  BundleArchive Rewound() {
    if (lseek(file_.fd(), 0, SEEK_SET) != 0) ThrowErrno("rewind", file_.path());
    return {file_.fd(), file_.path()};
  }

  std::string Text(BundleArchive* archive, const BundleArchive::Member& member,
                   std::size_t limit) const {
    if (member.size > limit) {
      throw Refused("damaged", file_.path() + ": " + member.path + " is too long");
    }
    std::string text(static_cast<std::size_t>(member.size), '\0');
    std::size_t size = 0;
    while (size < text.size()) {
      const std::size_t count = archive->Read(text.data() + size, text.size() - size);
      if (count == 0) break;
      size += count;
    }
    text.resize(size);
    return text;
  }

  File file_;
  std::string manifest_;
  std::optional<std::string> signature_;
};

}  // namespace

std::unique_ptr<BundleSource> OpenBundle(const std::string& path) {
  Fd fd = OpenPath(path, O_RDONLY | O_NONBLOCK);
  if (!fd) ThrowErrno("open", path);
  File file(std::move(fd), path);
  const mode_t mode = file.Status().st_mode;
  if (S_ISDIR(mode)) return std::make_unique<FolderSource>(path);
  if (S_ISREG(mode)) return std::make_unique<ArchiveSource>(std::move(file));
  throw Refused("damaged", path + " is neither a folder nor a .tar.gz");
}

}  // namespace edgepack::device
