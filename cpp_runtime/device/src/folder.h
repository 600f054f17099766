#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <vector>

#include "file.h"

namespace edgepack::device {

/// A folder that is held open, so that what lies below it is reached whatever happens to its path.
/// Names are relative to it.
class Folder {
 public:
  /// Follows links: the path is the user's.
  static Folder Open(const std::string& path);

  /// The folder `name` below this one; a link is refused.
  [[nodiscard]] Folder Sub(const std::string& name) const;
  /// The same, made if it is not there.
  [[nodiscard]] Folder MakeSub(const std::string& name, mode_t mode = 0755) const;
  [[nodiscard]] Folder Clone() const;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string PathOf(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] struct stat Status() const;

  /// Of the entry itself, not of what a link names; nothing if it is not there.
  [[nodiscard]] std::optional<struct stat> Status(const std::string& name) const;
  [[nodiscard]] bool Has(const std::string& name) const { return Status(name).has_value(); }
  /// All names but "." and "..", sorted.
  [[nodiscard]] std::vector<std::string> Names() const;
  [[nodiscard]] std::optional<std::string> ReadLink(const std::string& name) const;

  /// A plain file; nothing if it is not there. Links and anything else are refused.
  [[nodiscard]] std::optional<File> Find(const std::string& name) const;
  /// The same, but it has to be there.
  [[nodiscard]] File OpenFile(const std::string& name) const;
  /// For reading and writing, made if it is not there, its content left as it is.
  [[nodiscard]] File Create(const std::string& name, mode_t mode) const;

  /// All old or all new, also after a power cut: written to <name>.new, flushed, renamed.
  /// Two steps that can fail go by `step`.write and `step`.rename.
  void Replace(const std::string& name, std::string_view content, const std::string& step,
               mode_t mode = 0644) const;
  /// The same for a link.
  void ReplaceLink(const std::string& name, const std::string& target,
                   const std::string& step) const;

  /// Moves a folder that stands where a file or link belongs to <name>.damaged, replacing what is
  /// there; returns whether there was one.
  // NOLINTNEXTLINE(modernize-use-nodiscard): what counts is what it does
  bool SetFolderAside(const std::string& name) const;

  void Rename(const std::string& name, const Folder& to, const std::string& new_name) const;
  void Rename(const std::string& from, const std::string& to) const { Rename(from, *this, to); }
  /// Makes a hard link; returns false where there can be none. `new_name` must be free.
  [[nodiscard]] bool TryLink(const std::string& name, const Folder& to,
                             const std::string& new_name) const;
  /// A hard link, or where there can be none a copy, whole or not there. `new_name` must be free.
  void Link(const std::string& name, const Folder& to, const std::string& new_name) const;
  /// Returns whether it was there.
  // NOLINTNEXTLINE(modernize-use-nodiscard): what counts is what it does
  bool Remove(const std::string& name) const;
  /// A folder with all below it, or whatever it is.
  void RemoveTree(const std::string& name) const;
  /// What `Replace` and `ReplaceLink` did not come to the end of.
  void RemoveUnfinished() const;
  void Sync() const;

 private:
  Folder(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  void Copy(const std::string& name, const Folder& to, const std::string& new_name) const;

  Fd fd_;
  std::string path_;
};

}  // namespace edgepack::device
