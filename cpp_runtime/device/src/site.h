#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "folder.h"
#include "releases.h"
#include "state.h"
#include "store.h"
#include "trust.h"

namespace edgepack::device {

/// Told the name of what is begun: "verify", "activate", "health", ...
using Progress = std::function<void(const std::string& what)>;

/// A root folder with all that lies in it.
class Site {
 public:
  /// Makes what is not there. Throws Error "wrong-user" if the folder belongs to another
  /// user, "cross-device" as `Store`.
  static Site Make(const std::string& path);
  /// Throws Error "no-release" if there is no such folder.
  static Site Open(const std::string& path);

  Folder root;
  Store store;
  Releases releases;
  State state;
  Trust trust;

  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;
  Site(Site&&) = delete;
  Site& operator=(Site&&) = delete;
  ~Site() = default;

 private:
  explicit Site(Folder folder);
};

}  // namespace edgepack::device
