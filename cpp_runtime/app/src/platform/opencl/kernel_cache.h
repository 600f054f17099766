#pragma once

#include <string>

namespace edgepack::opencl {

/// A program that a driver has compiled, kept from one start to the next: a file in the account's
/// own cache folder ($CACHE_DIRECTORY, as systemd gives it, else $XDG_CACHE_HOME or ~/.cache).
///
/// A file that is damaged, somebody else's, or of another key is as none; where none can be
/// written, nothing is kept.
class KernelCache {
 public:
  /// `key` is all that the compiled program depends on: the driver, the device, the text.
  explicit KernelCache(std::string key);

  /// What was kept, or nothing.
  [[nodiscard]] std::string Load() const;
  void Store(const std::string& program) const;

 private:
  std::string key_;
  std::string folder_;  ///< empty if there is none
  std::string name_;
};

}  // namespace edgepack::opencl
