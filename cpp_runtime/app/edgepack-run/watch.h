#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"

namespace edgepack {

/// The photos of a folder, each given out once, when it is whole.
class PhotoFolder {
 public:
  /// A file by its name and its time of modification, in nanoseconds since 1970: a photo written
  /// again under an old name is a new one.
  using Key = std::pair<std::string, std::int64_t>;

  /// Watches `folder` from now on. Throws UsageError if it cannot be read.
  explicit PhotoFolder(std::filesystem::path folder);

  /// What is there already, oldest first.
  [[nodiscard]] std::vector<Key> Present() const;

  /// Photos (.jpg, .jpeg, .png) that were closed after writing, or moved here, since the last
  /// call. Waits at most `limit` for the first. Empty after that, or when `StopRequested`.
  [[nodiscard]] std::vector<Key> Arrived(std::optional<std::chrono::milliseconds> limit);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  [[nodiscard]] std::optional<Key> KeyOf(const std::string& name) const;

  std::filesystem::path path_;
  Fd fd_;
};

/// Photos (.jpg, .jpeg, .png) of a folder, by name. Throws UsageError.
std::vector<std::filesystem::path> PhotosIn(const std::filesystem::path& folder);

/// From here on SIGTERM and SIGINT are kept back until somebody waits in `PhotoFolder::Arrived`.
/// Call it before any thread is started: they inherit it.
void HoldStopSignals();
/// Whether one of them has come.
bool StopRequested();
/// Whether one of them has come, or waits to.
bool StopPending();
/// The mask with which a thread has to wait, so that one of them ends that.
sigset_t StopMask();

/// Lines of JSON for photos, to a file that says after a restart what was done, or to a stream.
class ResultLines {
 public:
  /// Above this size the file becomes `<file>.1`, replacing the one before: the disk stays free.
  static constexpr std::uintmax_t kMaxBytes = 16U << 20U;

  /// Appends to `file`, or writes to `out` without one. Throws UsageError.
  ResultLines(std::optional<std::filesystem::path> file, std::ostream& out);

  /// Whether an earlier run wrote a line for this photo. Always false without a file.
  [[nodiscard]] bool Done(const PhotoFolder::Key& key) const;
  /// Writes one line (with its end) for a photo. Throws std::runtime_error if the disk is full.
  void Write(const PhotoFolder::Key& key, const std::string& line);

 private:
  std::optional<std::filesystem::path> file_;
  std::ostream& out_;
  std::set<PhotoFolder::Key> done_;
};

/// Which photos were begun and not finished, and how often: in a file, so that whoever comes after
/// a crash does not begin with the same photo for ever.
class BegunPhotos {
 public:
  /// How often one is begun that is never finished.
  static constexpr int kMost = 2;

  /// Of what `file` says, that of `queue` counts: those are still to be done.
  BegunPhotos(const std::filesystem::path& file, const std::vector<PhotoFolder::Key>& queue);

  /// Notes that a photo is begun. False if it was kMost times before: then it must not be.
  [[nodiscard]] bool Begin(const PhotoFolder::Key& key);
  void Finish(const PhotoFolder::Key& key) { times_.erase(key); }

 private:
  Fd file_;
  std::map<PhotoFolder::Key, int> times_;
};

/// The line of a photo; of one that is given up, without a look at it.
using LineOf = std::function<std::string(const PhotoFolder::Key& photo, bool given_up)>;

/// Runs `line_of` on each photo that comes into `folder`, until SIGTERM or SIGINT. With a file
/// of results, photos that came while nobody watched are done first, and one that was begun twice
/// and never finished is given up; without, only new ones are done.
void Watch(const std::filesystem::path& folder, const std::optional<std::filesystem::path>& results,
           const LineOf& line_of, std::ostream& out);

}  // namespace edgepack
