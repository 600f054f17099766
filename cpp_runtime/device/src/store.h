#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "file.h"
#include "folder.h"

namespace edgepack::device {

/// A blob on its way into the store. What was written stays for the next try, unless `Discard`ed.
class Part {
 public:
  Part(const Folder& incoming, const Folder& store, std::string sha256);

  /// How much is there, from an earlier try or this one.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  void Write(const void* data, std::size_t size);
  /// Flushes it, reads it again and moves it into the store. False if its hash is another: then it
  /// is removed.
  bool Finish();
  void Discard();

 private:
  const Folder* incoming_;
  const Folder* store_;
  std::string sha256_;
  File file_;
  std::uint64_t size_;
  std::uint64_t unflushed_ = 0;
};

/// Content by its SHA-256: store/<sha256>, and incoming/<sha256>.part for what is not whole.
class Store {
 public:
  struct Total {
    std::size_t blobs = 0;
    std::uint64_t bytes = 0;
  };
  enum class Condition { kWhole, kMissing, kDamaged };

  /// Throws Error "cross-device" if the two folders and `releases` are not on one file
  /// system.
  explicit Store(const Folder& root);

  [[nodiscard]] bool Has(const std::string& sha256) const { return store_.Has(sha256); }
  /// Reads all of it.
  [[nodiscard]] Condition Check(const std::string& sha256) const;
  [[nodiscard]] File Open(const std::string& sha256) const { return store_.OpenFile(sha256); }
  [[nodiscard]] Total Sum() const;

  [[nodiscard]] std::uint64_t PartSize(const std::string& sha256) const;
  [[nodiscard]] Part Begin(const std::string& sha256) const { return {incoming_, store_, sha256}; }
  /// Takes those uploads that are whole, unless the store has their content.
  void FinishParts() const;
  /// All unfinished uploads.
  void RemoveParts() const;

  /// Makes `name` in `folder` a link to the blob, whatever was there before.
  void LinkTo(const std::string& sha256, bool executable, const Folder& folder,
              const std::string& name) const;
  /// Takes in a file that lies somewhere else on this file system, whose hash is known to be right.
  void Adopt(const Folder& folder, const std::string& name, const std::string& sha256) const;
  /// Removes what is not `needed`.
  void Collect(const std::set<std::string>& needed) const;
  /// Whether what is linked is a copy that takes its own room: there can be no hard links.
  [[nodiscard]] bool LinksAreCopies() const;
  /// Bytes that an ordinary user can still write.
  [[nodiscard]] std::uint64_t FreeBytes() const;
  void Sync() const { store_.Sync(); }

 private:
  Folder store_;
  Folder incoming_;
};

}  // namespace edgepack::device
