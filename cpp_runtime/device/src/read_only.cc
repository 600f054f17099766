#include "read_only.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "file.h"

namespace edgepack::device {
namespace {

/// uintptr_t is as wide as the unsigned long that mount(2) takes.
struct MountPoint {
  std::string path;
  std::uintptr_t flags;
};

/// The mount points of this process, those of /proc/self/mountinfo.
std::vector<MountPoint> MountPoints() {
  std::vector<MountPoint> points;
  std::FILE* const file = std::fopen("/proc/self/mountinfo", "re");
  if (file == nullptr) return points;
  std::array<char, 8192> line;  // NOLINT(*-member-init): filled by the read
  std::array<char, 4097> path;  // NOLINT(*-member-init): filled by the scan
  while (std::fgets(line.data(), line.size(), file) != nullptr) {
    if (std::sscanf(line.data(), "%*d %*d %*s %*s %4096s", path.data()) != 1) continue;
    struct statvfs status = {};
    if (statvfs(path.data(), &status) != 0) continue;
    // A remount sets all flags anew; those that are there have to stay.
    std::uintptr_t flags = 0;
    if ((status.f_flag & ST_NOSUID) != 0) flags |= MS_NOSUID;
    if ((status.f_flag & ST_NODEV) != 0) flags |= MS_NODEV;
    if ((status.f_flag & ST_NOEXEC) != 0) flags |= MS_NOEXEC;
    if ((status.f_flag & ST_NOATIME) != 0) flags |= MS_NOATIME;
    if ((status.f_flag & ST_NODIRATIME) != 0) flags |= MS_NODIRATIME;
    if ((status.f_flag & ST_RELATIME) != 0) flags |= MS_RELATIME;
    points.push_back({path.data(), flags});
  }
  (void)std::fclose(file);
  return points;
}

bool IsBelow(const std::string& path, const std::string& folder) {
  return path == folder || path.compare(0, folder.size() + 1, folder + "/") == 0;
}

/// The kernel's own trees, in which nothing is stored. (Of /dev its devices can be written to all
/// the same, and /dev/shm must not be.)
bool IsKernels(const std::string& path) { return IsBelow(path, "/proc") || IsBelow(path, "/sys"); }

}  // namespace

bool MakeReadOnly(const std::vector<std::string>& writable) {
  for (const std::string& folder : writable) {
    if (access(folder.c_str(), F_OK) != 0) ThrowErrno("write to", folder);
  }
  if (unshare(CLONE_NEWNS) != 0) return false;
  // What is mounted later, a stick, is seen here as well where the system shares its mounts.
  if (mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return false;
  // A folder becomes a mount of its own, which then stays as it is.
  for (const std::string& folder : writable) {
    if (mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
      return false;
    }
  }
  bool all = true;
  for (const MountPoint& point : MountPoints()) {
    if (IsKernels(point.path)) continue;
    if (std::any_of(writable.begin(), writable.end(),
                    [&](const std::string& folder) { return IsBelow(point.path, folder); })) {
      continue;
    }
    const std::uintptr_t flags = point.flags | MS_REMOUNT | MS_BIND | MS_RDONLY;
    all = mount("none", point.path.c_str(), nullptr, flags, nullptr) == 0 && all;
  }
  // The working folder is still reached by way of the old mount.
  return chdir("/") == 0 && all;
}

}  // namespace edgepack::device
