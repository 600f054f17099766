#pragma once

#include <optional>
#include <string>
#include <vector>

#include "site.h"

namespace edgepack::device {

/// Changes which release is current. Whoever calls holds the lock.
class Switch {
 public:
  Switch(const Site& site, Progress progress) : site_(&site), progress_(std::move(progress)) {}

  /// Makes a release current, if every byte of it is right, and tests it. If the test fails, what
  /// was current is so again, and the error says that.
  /// Throws Error "damaged", and what `CheckHealth` throws.
  // NOLINTNEXTLINE(modernize-use-nodiscard): what counts is what it does
  Health Activate(const std::string& release, const std::string& by) const;

  /// Ends what was interrupted: a release that is being tested is tested again, or given up if that
  /// was tried before. Also removes leftovers, and takes over the releases of earlier versions.
  void Recover() const;

  /// Removes releases that are neither current, previous nor one of the `keep` newest, and then
  /// what no release needs. Returns the ids of those removed.
  // NOLINTNEXTLINE(modernize-use-nodiscard): what counts is what it does
  std::vector<std::string> Prune(int keep) const;
  /// Those that `Prune` would remove if `release` were current.
  [[nodiscard]] std::vector<std::string> Removable(int keep, const std::string& release) const;

  /// Makes the device tool of `release` the one in bin/, if that is older, damaged, or does not
  /// run.
  void UpdateTool(const std::string& release) const;

 private:
  // NOLINTNEXTLINE(modernize-use-nodiscard): what counts is what it does
  Health Test(const Pending& pending) const;
  void GoBack(const Pending& pending) const;
  void Commit(const Pending& pending, const Health& health) const;
  void Adopt() const;
  [[nodiscard]] std::optional<Pending> ReadPending() const;

  const Site* site_;
  Progress progress_;
};

}  // namespace edgepack::device
