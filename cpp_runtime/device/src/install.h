#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "site.h"
#include "switch.h"

namespace edgepack::device {

/// A blob that is not in the store. `part` bytes of it are in incoming/.
struct Need {
  FileEntry file;
  std::uint64_t part;
};

/// What an install has to do, and would.
struct Plan {
  std::string release;
  /// All files of the bundle.
  std::vector<FileEntry> files;
  std::optional<std::string> current;
  std::optional<std::string> previous;
  std::vector<Need> needs;
  /// It is current, whole, and passed its test on this very system.
  bool unchanged = false;
  /// Another release that has the same version, where the number counts: nobody raised it.
  std::optional<std::string> same_version;
  std::vector<std::string> remove;
};

/// Where the bytes of a bundle come from.
class BundleSource {
 public:
  BundleSource() = default;
  BundleSource(const BundleSource&) = delete;
  BundleSource& operator=(const BundleSource&) = delete;
  BundleSource(BundleSource&&) = delete;
  BundleSource& operator=(BundleSource&&) = delete;
  virtual ~BundleSource() = default;

  virtual std::string Manifest() = 0;
  virtual std::optional<std::string> Signature() = 0;
  /// Puts everything that `plan` needs into the store. Throws Error if it cannot, or if the
  /// content is not what the manifest says.
  virtual void Fill(const Plan& plan, const Site& site) = 0;
};

struct InstallRequest {
  std::string by;
  std::optional<std::string> signers;
  /// What the clock of whoever sends it says; nothing if there is none but the device's.
  std::optional<std::time_t> time;
  int keep = 3;
  bool allow_downgrade = false;
  bool activate = true;
  /// Test it even if it passed before.
  bool retest = false;
  /// What the bundle has to be called; nothing: as here, or as whatever comes first.
  std::optional<std::string> name;
};

struct InstallReport {
  std::string outcome;  // "deployed", "activated", "installed", "unchanged"
  std::string release;
  std::optional<std::string> before;
  std::optional<std::string> previous;
  std::vector<std::string> removed;
  std::optional<Health> health;
  bool health_fresh = false;
  std::optional<std::string> signer;
  /// As in `Plan`.
  std::optional<std::string> same_version;
  /// The list of signers that was pinned now.
  std::optional<std::string> pinned;
  /// Of what came over a link: bytes in frames, and bytes taken from blobs that were there.
  std::uint64_t received_bytes = 0;
  std::uint64_t copied_bytes = 0;

  /// As an object for programs.
  void Write(JsonWriter* json) const;
};

/// The one way into the store, from whatever source. Whoever calls holds the lock.
class Installer {
 public:
  Installer(const Site& site, Progress progress, InstallRequest request)
      : site_(&site), progress_(std::move(progress)), request_(std::move(request)) {}

  /// Throws Error: what `Trust::Check`, `ParseManifest`, `CheckMachine`, `CheckLibc` and
  /// `Switch::Activate` throw, "wrong-name", "downgrade", "disk-full", "release-mismatch", and the
  /// source's own.
  InstallReport Install(BundleSource* source) const;

  /// What `Install` would do, after the same checks. Changes nothing.
  Plan MakePlan(BundleSource* source) const;

 private:
  struct Checked {
    SignedManifest bundle;
    Trust::Verdict verdict;
  };
  Checked Check(BundleSource* source) const;
  [[nodiscard]] Plan PlanOf(const SignedManifest& bundle) const;
  void CheckSignersAreThere() const;
  void CheckName(const Manifest& manifest) const;
  /// Of the bundles that are taken here: as pinned, or else as the releases have it.
  [[nodiscard]] std::optional<std::string> Name() const;
  [[nodiscard]] std::optional<std::string> SameVersion(const Manifest& manifest) const;
  void CheckVersion(const Manifest& manifest) const;
  void CheckSpace(const Plan& plan) const;
  /// What the release takes beside the store, where links are copies.
  [[nodiscard]] std::uint64_t CopiedBytes(const Plan& plan) const;
  void Fill(const SignedManifest& bundle, const Plan& plan, BundleSource* source) const;
  void Publish(const Checked& checked) const;

  const Site* site_;
  Progress progress_;
  InstallRequest request_;
};

}  // namespace edgepack::device
