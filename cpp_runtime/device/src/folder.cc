#include "folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <unistd.h>

#include "error.h"
#include "faults.h"

namespace edgepack::device {
namespace {

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

}  // namespace

Folder Folder::Open(const std::string& path) {
  Fd fd(Retry([&] { return open(path.c_str(), kFolderFlags); }));
  if (!fd) ThrowErrno("open folder", path);
  return {std::move(fd), path};
}

Folder Folder::Sub(const std::string& name) const {
  Fd fd(Retry([&] { return openat(fd_.get(), name.c_str(), kFolderFlags | O_NOFOLLOW); }));
  if (!fd) ThrowErrno("open folder", PathOf(name));
  return {std::move(fd), PathOf(name)};
}

Folder Folder::MakeSub(const std::string& name, mode_t mode) const {
  // Who only looks needs no disk that takes anything.
  if (Status(name)) return Sub(name);
  if (mkdirat(fd_.get(), name.c_str(), mode) == 0) {
    Sync();
  } else if (errno != EEXIST) {
    ThrowErrno("make folder", PathOf(name));
  }
  return Sub(name);
}

Folder Folder::Clone() const {
  Fd fd(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd) ThrowErrno("open folder", path_);
  return {std::move(fd), path_};
}

struct stat Folder::Status() const {
  struct stat status = {};
  if (fstat(fd_.get(), &status) != 0) ThrowErrno("look at", path_);
  return status;
}

std::optional<struct stat> Folder::Status(const std::string& name) const {
  struct stat status = {};
  if (fstatat(fd_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return status;
  if (errno != ENOENT && errno != ENOTDIR) ThrowErrno("look at", PathOf(name));
  return std::nullopt;
}

std::vector<std::string> Folder::Names() const {
  // A descriptor of its own: reading moves a position that duplicates would share.
  Fd fd(Retry([&] { return openat(fd_.get(), ".", kFolderFlags); }));
  if (!fd) ThrowErrno("list", path_);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(fd.get()), closedir);
  if (!entries) ThrowErrno("list", path_);
  fd.Release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(entries.get())) {  // NOLINT(concurrency-mt-unsafe)
    std::string name = static_cast<const char*>(entry->d_name);
    if (name != "." && name != "..") names.push_back(std::move(name));
    errno = 0;
  }
  if (errno != 0) ThrowErrno("list", path_);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> Folder::ReadLink(const std::string& name) const {
  std::array<char, PATH_MAX> target;  // NOLINT(*-member-init): filled by the read
  const ssize_t size = readlinkat(fd_.get(), name.c_str(), target.data(), target.size());
  if (size >= 0) return std::string(target.data(), static_cast<std::size_t>(size));
  if (errno != ENOENT && errno != EINVAL) ThrowErrno("read link", PathOf(name));
  return std::nullopt;
}

std::optional<File> Folder::Find(const std::string& name) const {
  // A pipe would wait for a writer.
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  Fd fd(Retry([&] { return openat(fd_.get(), name.c_str(), kFlags); }));
  if (!fd) {
    if (errno == ENOENT) return std::nullopt;
    if (errno == ELOOP) throw Refused("damaged", PathOf(name) + " is a link");
    ThrowErrno("open", PathOf(name));
  }
  File file(std::move(fd), PathOf(name));
  if (!S_ISREG(file.Status().st_mode)) {
    throw Refused("damaged", file.path() + " is no plain file");
  }
  return file;
}

File Folder::OpenFile(const std::string& name) const {
  std::optional<File> file = Find(name);
  if (!file) throw Refused("damaged", PathOf(name) + " is missing");
  return std::move(*file);
}

File Folder::Create(const std::string& name, mode_t mode) const {
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  Fd fd(Retry([&] { return openat(fd_.get(), name.c_str(), kFlags, mode); }));
  if (!fd) ThrowErrno("write", PathOf(name));
  return {std::move(fd), PathOf(name)};
}

void Folder::Replace(const std::string& name, std::string_view content, const std::string& step,
                     mode_t mode) const {
  const std::string fresh = name + ".new";
  RemoveTree(fresh);
  SetFolderAside(name);
  const File file = Create(fresh, mode);
  Step((step + ".write").c_str());
  file.WriteAt(0, content.data(), content.size());
  file.SetMode(mode);
  file.Sync();
  Step((step + ".rename").c_str());
  Rename(fresh, name);
  Sync();
}

void Folder::ReplaceLink(const std::string& name, const std::string& target,
                         const std::string& step) const {
  const std::string fresh = name + ".new";
  RemoveTree(fresh);
  SetFolderAside(name);
  Step((step + ".link").c_str());
  if (symlinkat(target.c_str(), fd_.get(), fresh.c_str()) != 0) {
    if (errno == EPERM || errno == EOPNOTSUPP) {
      throw Error(kExitDevice, "io", "no symbolic link can be made in " + path_,
                  "put the releases on a file system with links, such as ext4");
    }
    ThrowErrno("make link", PathOf(fresh));
  }
  Step((step + ".rename").c_str());
  Rename(fresh, name);
  Sync();
}

bool Folder::SetFolderAside(const std::string& name) const {
  const std::optional<struct stat> there = Status(name);
  if (!there || !S_ISDIR(there->st_mode)) return false;
  const std::string aside = name + ".damaged";
  RemoveTree(aside);
  Rename(name, aside);
  return true;
}

void Folder::Rename(const std::string& name, const Folder& to, const std::string& new_name) const {
  if (renameat(fd_.get(), name.c_str(), to.fd_.get(), new_name.c_str()) != 0) {
    ThrowErrno("rename to " + to.PathOf(new_name), PathOf(name));
  }
}

bool Folder::TryLink(const std::string& name, const Folder& to, const std::string& new_name) const {
  if (linkat(fd_.get(), name.c_str(), to.fd_.get(), new_name.c_str(), 0) == 0) return true;
  // Android's policy forbids hard links to all but the system; some file systems have none.
  if (errno != EACCES && errno != EPERM && errno != EOPNOTSUPP && errno != EMLINK) {
    ThrowErrno("link to " + to.PathOf(new_name), PathOf(name));
  }
  return false;
}

void Folder::Link(const std::string& name, const Folder& to, const std::string& new_name) const {
  if (!TryLink(name, to, new_name)) Copy(name, to, new_name);
}

void Folder::Copy(const std::string& name, const Folder& to, const std::string& new_name) const {
  const std::string fresh = new_name + ".new";
  to.RemoveTree(fresh);
  const File from = OpenFile(name);
  const File file = to.Create(fresh, 0600);
  std::array<char, std::size_t{1} << 16U> block;  // NOLINT(*-member-init): filled by the read
  std::uint64_t done = 0;
  while (const std::size_t count = from.ReadAt(done, block.data(), block.size())) {
    file.WriteAt(done, block.data(), count);
    done += count;
  }
  file.SetMode(from.Status().st_mode & 0777U);
  Step("copy.fsync");
  file.Sync();
  Step("copy.rename");
  to.Rename(fresh, new_name);
}

bool Folder::Remove(const std::string& name) const {
  if (unlinkat(fd_.get(), name.c_str(), 0) == 0) return true;
  if (errno != ENOENT) ThrowErrno("remove", PathOf(name));
  return false;
}

void Folder::RemoveTree(const std::string& name) const {
  const std::optional<struct stat> status = Status(name);
  if (!status) return;
  if (!S_ISDIR(status->st_mode)) {
    Remove(name);
    return;
  }
  {
    const Folder folder = Sub(name);
    for (const std::string& below : folder.Names()) folder.RemoveTree(below);
  }
  if (unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR) != 0) ThrowErrno("remove", PathOf(name));
}

void Folder::RemoveUnfinished() const {
  constexpr std::string_view kEnd = ".new";
  for (const std::string& name : Names()) {
    const std::size_t size = std::min(name.size(), kEnd.size());
    if (name.compare(name.size() - size, size, kEnd) == 0) RemoveTree(name);
  }
}

void Folder::Sync() const {
  if (SyncsAreLeftOut()) return;
  if (Retry([&] { return fsync(fd_.get()); }) != 0) ThrowErrno("flush", path_);
}

}  // namespace edgepack::device
