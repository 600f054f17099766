#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace edgepack::device {

struct Account {
  uid_t uid;
  gid_t gid;
  std::string name;
  std::vector<gid_t> groups = {};  ///< beside its own
  bool low_ports = false;          ///< may listen on those below 1024
};

/// Of /etc/passwd alone: a static program has no other directory of names.
/// Throws Error "no-user".
Account AccountOf(const std::string& name);

/// The same in the groups that /etc/group has it in, and in those `named`, for their devices.
/// Throws Error "no-group".
Account InGroups(Account account, const std::vector<std::string>& named);

/// Gives up root, and all groups but the account's, for ever. Nobody of that account can look
/// into this process afterwards, and no program it starts gets more rights than it has.
/// Throws Error "io".
void Become(const Account& account);

/// Throws Error "wrong-user" if anybody but root could put another folder in the place of
/// `path`: before root runs what lies in it.
void NeedRootsOwn(const std::string& path);

/// Throws Error "no-access", naming the first part of the way to `folder` that this account
/// may not enter.
void NeedWayTo(const std::string& folder);

}  // namespace edgepack::device
