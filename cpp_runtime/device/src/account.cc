#include "account.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <grp.h>
#include <linux/capability.h>
#include <memory>
#include <optional>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

Account InGroups(Account account, const std::vector<std::string>& named) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/etc/group", "re"),
                                                             std::fclose);
  if (!file) ThrowErrno("open", "/etc/group");
  std::vector<std::string> left = named;
  while (const group* const entry = fgetgrent(file.get())) {  // NOLINT(concurrency-mt-unsafe)
    const auto wanted = std::find(left.begin(), left.end(), entry->gr_name);
    bool member = wanted != left.end();
    if (member) left.erase(wanted);
    for (char** user = entry->gr_mem; !member && *user != nullptr; ++user) {
      member = account.name == *user;
    }
    if (member) account.groups.push_back(entry->gr_gid);
  }
  if (!left.empty()) {
    throw Error(kExitUsage, "no-group", "there is no group " + left.front(),
                "its devices belong to another one here: give the service a `user` that is in it");
  }
  return account;
}

namespace {

/// Of root's capabilities the one for low ports is left, to the programs that it starts, too.
bool KeepLowPorts() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  constexpr std::uint32_t kBind = 1U << CAP_NET_BIND_SERVICE;
  std::array<__user_cap_data_struct, 2> sets = {{{kBind, kBind, kBind}, {}}};
  return syscall(SYS_capset, &header, sets.data()) == 0 &&
         prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE, 0, 0) == 0;
}

}  // namespace

void Become(const Account& account) {
  if (setgroups(account.groups.size(), account.groups.data()) != 0 || setgid(account.gid) != 0 ||
      (account.low_ports && prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) || setuid(account.uid) != 0 ||
      (account.low_ports && !KeepLowPorts()) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
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
