#include "platform/opencl/kernel_cache.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace edgepack::opencl {

namespace {

constexpr char kMagic[] = "edgepack kernels 1\n";
constexpr std::size_t kMostBytes = std::size_t{64} << 20U;
/// Of models and drivers that are gone: the oldest files are removed.
constexpr std::size_t kMostFiles = 16;
constexpr char kEnding[] = ".kernels";

class File {
 public:
  explicit File(int number) : number_(number) {}
  ~File() {
    if (number_ >= 0) close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File(File&&) = delete;
  File& operator=(File&&) = delete;

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool ok() const { return number_ >= 0; }

 private:
  int number_;
};

/// Whether nobody else can change it.
bool IsOwn(const struct stat& found) {
  return found.st_uid == geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets any
  return value != nullptr && value[0] == '/' ? value : "";
}

/// The account's folder for what can be made again: that of another account, or one that others
/// may write to, is none.
std::string CacheFolder() {
  std::string folder = Variable("CACHE_DIRECTORY");
  folder.resize(std::min(folder.find(':'), folder.size()));
  if (folder.empty()) folder = Variable("XDG_CACHE_HOME");
  if (folder.empty()) {
    folder = Variable("HOME");
    struct stat home = {};
    if (folder.empty() || stat(folder.c_str(), &home) != 0 || !IsOwn(home)) return "";
    folder += "/.cache";
    mkdir(folder.c_str(), S_IRWXU);
  }
  struct stat found = {};
  if (stat(folder.c_str(), &found) != 0 || !IsOwn(found)) return "";
  return folder + "/edgepack-kernels";
}

std::string Number(std::uint64_t value) {
  std::array<char, 17> text = {};
  static_cast<void>(std::snprintf(text.data(), text.size(), "%016" PRIx64, value));
  return text.data();
}

/// FNV-1a with 64 bits, by its authors' description: a name, and a sum that shows damage. It does
/// not stand for what it is of; the whole key is compared, too.
std::string HashOf(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  }
  return Number(hash);
}

File OpenFolder(const std::string& folder) {
  return File(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool IsOwnFolder(const File& folder) {
  struct stat found = {};
  return folder.ok() && fstat(folder.number(), &found) == 0 && IsOwn(found);
}

bool WriteAll(int file, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(file, text.data() + done, text.size() - done);
    if (wrote <= 0) return false;
    done += static_cast<std::size_t>(wrote);
  }
  return true;
}

void RemoveOldest(const File& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(dup(folder.number())), closedir);
  if (listing == nullptr) return;
  std::vector<std::pair<std::int64_t, std::string>> files;
  while (const dirent* const entry = readdir(listing.get())) {  // NOLINT(concurrency-mt-unsafe)
    const std::string name = entry->d_name;
    struct stat found = {};
    if (name.size() > sizeof(kEnding) &&
        name.compare(name.size() - sizeof(kEnding) + 1, std::string::npos, kEnding) == 0 &&
        fstatat(folder.number(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) {
      files.emplace_back(found.st_mtime, name);
    }
  }
  std::sort(files.begin(), files.end());
  for (std::size_t i = 0; i + kMostFiles < files.size(); ++i) {
    unlinkat(folder.number(), files[i].second.c_str(), 0);
  }
}

}  // namespace

KernelCache::KernelCache(std::string key)
    : key_(std::move(key)), folder_(CacheFolder()), name_(HashOf(key_)) {}

std::string KernelCache::Load() const {
  if (folder_.empty()) return "";
  const File folder = OpenFolder(folder_);
  if (!IsOwnFolder(folder)) return "";
  const std::string name = name_ + kEnding;
  const File file(
      openat(folder.number(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat found = {};
  if (!file.ok() || fstat(file.number(), &found) != 0 || !S_ISREG(found.st_mode) || !IsOwn(found) ||
      found.st_size < 0 || static_cast<std::uint64_t>(found.st_size) > kMostBytes) {
    return "";
  }
  std::string text(static_cast<std::size_t>(found.st_size), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t got = read(file.number(), text.data() + done, text.size() - done);
    if (got <= 0) return "";
    done += static_cast<std::size_t>(got);
  }
  // The key has its length before it, so none is the beginning of another one.
  const std::string head = kMagic + Number(key_.size()) + key_;
  if (text.compare(0, head.size(), head) != 0) return "";
  const std::size_t sum = Number(0).size();
  if (text.size() < head.size() + sum) return "";
  std::string program = text.substr(head.size() + sum);
  return text.compare(head.size(), sum, HashOf(program)) == 0 ? program : "";
}

void KernelCache::Store(const std::string& program) const {
  if (folder_.empty() || program.size() + key_.size() > kMostBytes / 2) return;
  mkdir(folder_.c_str(), S_IRWXU);
  const File folder = OpenFolder(folder_);
  if (!IsOwnFolder(folder)) return;
  const std::string name = name_ + kEnding;
  const std::string part = name_ + ".part";
  bool whole = false;
  {
    const File file(openat(folder.number(), part.c_str(),
                           O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                           S_IRUSR | S_IWUSR));
    whole = file.ok() &&
            WriteAll(file.number(), kMagic + Number(key_.size()) + key_ + HashOf(program)) &&
            WriteAll(file.number(), program) && fsync(file.number()) == 0;
  }
  if (!whole || renameat(folder.number(), part.c_str(), folder.number(), name.c_str()) != 0) {
    unlinkat(folder.number(), part.c_str(), 0);
    return;
  }
  RemoveOldest(folder);
}

}  // namespace edgepack::opencl
