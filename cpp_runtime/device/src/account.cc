#include "account.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <grp.h>
#include <memory>
#include <optional>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "file.h"

namespace edgepack::device {
namespace {

[[noreturn]] void ThrowNotRootsOwn(const std::string& part, const std::string& path) {
  throw Error(kExitDevice, "wrong-user",
              "others than root can change " + part + ", so root runs nothing of " + path,
              "deploy as root to a folder that is root's alone, such as /opt/edgepack; "
              "or as another login");
}

}  // namespace

Account AccountOf(const std::string& name) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/etc/passwd", "re"),
                                                             std::fclose);
  if (!file) ThrowErrno("open", "/etc/passwd");
  while (const passwd* const entry = fgetpwent(file.get())) {  // NOLINT(concurrency-mt-unsafe)
    if (name == entry->pw_name) return {entry->pw_uid, entry->pw_gid, name};
  }
  throw Error(kExitUsage, "no-user", "there is no account " + name,
              "adduser --system makes one, or name another as the service's user");
}

void Become(const Account& account) {
  if (setgroups(0, nullptr) != 0 || setgid(account.gid) != 0 || setuid(account.uid) != 0 ||
      prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
    ThrowErrno("become", account.name);
  }
}

void NeedRootsOwn(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  if (!real) ThrowErrno("find", path);
  const std::string whole = real.get();
  for (std::size_t at = 0; at != std::string::npos;) {
    at = whole.find('/', at + 1);
    const std::string part = whole.substr(0, at);
    struct stat status = {};
    if (lstat(part.c_str(), &status) != 0) ThrowErrno("look at", part);
    const bool last = at == std::string::npos;
    const bool shared = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    const bool sticky = !last && (status.st_mode & S_ISVTX) != 0;
    if (status.st_uid != 0 || (shared && !sticky)) {
      ThrowNotRootsOwn(part, path);
    }
  }
}

void NeedWayTo(const std::string& folder) {
  for (std::size_t at = 0; at != std::string::npos;) {
    at = folder.find('/', at + 1);
    const std::string part = folder.substr(0, at);
    if (access(part.c_str(), X_OK) == 0) continue;
    const int reason = errno;
    throw Error(
        kExitDevice, "no-access",
        "user " + std::to_string(getuid()) + " cannot enter " + part + ": " + std::strerror(reason),
        reason == EACCES ? "chmod o+x " + part +
                               " there, or deploy to another --root, such as "
                               "/opt/edgepack/NAME"
                         : "");
  }
}

}  // namespace edgepack::device
