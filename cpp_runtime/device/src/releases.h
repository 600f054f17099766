#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "folder.h"
#include "manifest_reader.h"
#include "store.h"

namespace edgepack::device {

/// Longer ones are not read: a signature has some 300 bytes.
inline constexpr std::size_t kMaxSignatureBytes = std::size_t{64} << 10U;

/// A manifest as it was signed, and what it says.
struct SignedManifest {
  std::string bytes;
  std::optional<std::string> signature;
  Manifest manifest;

  [[nodiscard]] std::string Sha256() const;
};

/// releases/<id>/: folders of links into the store; and the links `current` and `previous`.
class Releases {
 public:
  Releases(const Folder& root, const Store& store);

  /// All ids, sorted. Unfinished folders are none.
  [[nodiscard]] std::vector<std::string> Ids() const;
  [[nodiscard]] bool Has(const std::string& id) const { return releases_.Has(id); }
  /// Throws Error "bad-manifest" or "damaged".
  [[nodiscard]] SignedManifest Load(const std::string& id) const;
  [[nodiscard]] std::string PathOf(const std::string& id) const { return releases_.PathOf(id); }
  [[nodiscard]] Folder Open(const std::string& id) const { return releases_.Sub(id); }

  /// What is wrong with a release, every byte of it read; nothing for a whole one.
  [[nodiscard]] std::vector<std::string> Problems(const std::string& id) const;
  /// Throws Error "damaged" with the first problems.
  void Verify(const std::string& id) const;

  /// Makes a release whose blobs are all in the store, or links anew what is damaged of one.
  void Publish(const SignedManifest& bundle) const;
  /// Links anew every file that is not the store's own.
  void Repair(const std::string& id) const;
  /// Writes the manifest and the signature of a release anew.
  void Restore(const std::string& id, const std::string& manifest,
               const std::optional<std::string>& signature) const;
  void Remove(const std::string& id) const;
  /// Removes what was being made or removed when somebody was interrupted.
  void RemoveLeftovers() const;
  /// Every blob that a release here needs. Nothing if one cannot be read: then nobody can tell.
  [[nodiscard]] std::optional<std::set<std::string>> Needed() const;

  /// The release that kCurrent or kPrevious names; nothing if there is none such.
  [[nodiscard]] std::optional<std::string> Named(const char* link) const;
  /// Points a link at a release, or removes it.
  void Point(const char* link, const std::optional<std::string>& id) const;

 private:
  void LinkFiles(const Manifest& manifest, const Folder& folder) const;
  static void WriteManifest(const SignedManifest& bundle, const Folder& folder);

  Folder root_;
  Folder releases_;
  const Store* store_;
};

/// The folder that holds `path` below `folder`, and the last part of `path`; the folders on the way
/// are made.
struct Place {
  Folder folder;
  std::string name;
};
Place MakePlace(const Folder& folder, const std::string& path);

}  // namespace edgepack::device
