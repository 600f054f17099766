#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
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
#include "photos.h"
#include "source_state.h"

namespace edgepack {

/// The photos of a folder, each given out once, when it is whole. The folder may go away (moved,
/// removed, unmounted, forbidden, another in its place) and come back: what came meanwhile is given
/// out then.
///
/// inotify tells of new ones. Where it does not, they are looked for: over a network, where only
/// what this machine does is told, and where the system gives no more watches. Then a photo is
/// whole when nothing of it has changed between two looks.
class PhotoFolder {
 public:
  using Key = PhotoKey;

  /// How often the folder itself, and what inotify does not tell of, is looked at.
  static constexpr std::chrono::milliseconds kLook{1000};

  /// Watches `folder` from now on. Throws UsageError if it cannot be read.
  explicit PhotoFolder(std::filesystem::path folder);

  /// What is there already, oldest first; none of that arrives later.
  [[nodiscard]] std::vector<Key> Present() const;

  /// Photos (`IsPhotoName`) that were closed after writing, or moved here, since the last call.
  /// Waits at most `limit`, and kLook, for the first. Empty after that, or when `StopRequested`.
  [[nodiscard]] std::vector<Key> Arrived(std::optional<std::chrono::milliseconds> limit);

  /// Looks whether the folder is the one that is watched, and watches the one that is there now.
  /// Whether there is one.
  bool Look();
  /// What is wrong with the folder, as `Look` found it; empty if nothing is.
  [[nodiscard]] const std::string& lost() const { return lost_; }
  /// How often another folder took the place of the one that was watched.
  [[nodiscard]] int changes() const { return changes_; }
  /// Why photos have to be looked for; empty if they need not be.
  [[nodiscard]] const std::string& polled() const { return polled_; }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  /// Which folder a path leads to.
  struct Place {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    bool mounted = false;  ///< something is mounted there

    bool operator==(const Place& other) const {
      return device == other.device && inode == other.inode;
    }
  };

  [[nodiscard]] std::optional<Place> PlaceNow() const;
  [[nodiscard]] std::string Reach();
  [[nodiscard]] bool Watch();
  void ReadEvents(std::vector<Key>* keys);
  void AddNew(std::vector<Key>* keys);
  void Forget();

  std::filesystem::path path_;
  Fd fd_;
  Place place_;
  std::string lost_;
  std::string polled_;
  int changes_ = 0;
  bool there_ = false;
  bool was_mounted_ = false;
  bool missed_ = false;  ///< photos may have come that nothing told of
  bool moved_ = false;   ///< the folder itself
  std::chrono::steady_clock::time_point looked_;
  std::set<Key> known_;         ///< given out, or there before
  std::size_t most_known_ = 0;  ///< then those that have gone are forgotten
  std::map<Key, std::int64_t> growing_;
};

/// From here on SIGTERM and SIGINT are kept back until somebody waits in `PhotoFolder::Arrived`.
/// Call it before any thread is started: they inherit it.
void HoldStopSignals();
/// Whether one of them has come.
bool StopRequested();
/// Whether one of them has come, or waits to.
bool StopPending();
/// The mask with which a thread has to wait, so that one of them ends that.
sigset_t StopMask();
/// Waits for bytes (of no file at all if `fd` is -1) or a stop signal, at most `limit`. Whether
/// there are bytes, or an end of them.
bool WaitFor(int fd, std::optional<std::chrono::milliseconds> limit);

/// Lines of JSON for photos, to a file that says after a restart what was done, or to a stream.
class ResultLines {
 public:
  /// Above this size the file becomes `<file>.1`, replacing the one before: the disk stays free.
  static constexpr std::uintmax_t kMaxBytes = 16U << 20U;

  /// Appends to `file`, or writes to `out` without one. Throws UsageError.
  ResultLines(std::optional<std::filesystem::path> file, std::ostream& out);

  /// Whether an earlier run wrote a line for this photo. Always false without a file.
  [[nodiscard]] bool Done(const PhotoFolder::Key& key) const;
  /// Whether an earlier run could use a photo.
  [[nodiscard]] bool used() const { return used_; }
  /// Writes one line (with its end) for a photo. Throws std::runtime_error if the disk is full.
  void Write(const PhotoFolder::Key& key, const std::string& line);

 private:
  std::optional<std::filesystem::path> file_;
  std::ostream& out_;
  std::set<PhotoFolder::Key> done_;
  bool used_ = false;
};

/// Which photos were begun and not finished, and how often: in a file, so that whoever comes after
/// a crash does not begin with the same photo for ever.
///
/// The file is open only while it is written: it may lie on a disk that is to be unmounted.
class BegunPhotos {
 public:
  /// How often one is begun that is never finished.
  static constexpr int kMost = 2;

  /// Of what `file` says, that of `queue` counts: those are still to be done.
  BegunPhotos(std::filesystem::path file, const std::vector<PhotoFolder::Key>& queue);

  /// Notes that a photo is begun. False if it was kMost times before: then it must not be.
  [[nodiscard]] bool Begin(const PhotoFolder::Key& key);
  void Finish(const PhotoFolder::Key& key) { times_.erase(key); }

 private:
  std::filesystem::path file_;
  std::map<PhotoFolder::Key, int> times_;
};

/// The line of a photo, and why it could not be used; empty if it could.
struct PhotoLine {
  std::string text;
  std::string problem;
};

/// The line of a photo; of one that is given up, without a look at it.
using LineOf = std::function<PhotoLine(const PhotoFolder::Key& photo, bool given_up)>;

/// Runs `line_of` on each photo that comes into `folder`, until SIGTERM or SIGINT. With a file
/// of results, photos that came while nobody watched are done first, and one that was begun twice
/// and never finished is given up; without, only new ones are done. A folder that goes away is
/// waited for; `state` says so. Throws UsageError in the end if photos came and none could be used.
void Watch(const std::filesystem::path& folder, const std::optional<std::filesystem::path>& results,
           const LineOf& line_of, SourceState* state, std::ostream& out);

}  // namespace edgepack
