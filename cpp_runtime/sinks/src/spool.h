#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "common/fd.h"
#include "ring.h"

namespace edgepack::sinks {

/// Lines that wait, oldest first: few of them in memory, the rest in files of a folder, of which
/// the oldest goes when they take too much. What was sent stays until it is acknowledged; after a
/// restart that is sent again, so a line may come twice, but none is lost below the bound.
/// Of any thread.
class Spool {
 public:
  struct Counts {
    std::uint64_t dropped = 0;        ///< lines, for want of room
    std::uint64_t waiting_bytes = 0;  ///< not acknowledged
  };

  /// What an earlier program left there comes first. Throws UsageError if the folder cannot be
  /// used, or another program still uses it after 5 s.
  Spool(std::string folder, std::uint64_t most_bytes);

  /// A line without its end.
  void Push(std::string_view line);
  /// The next line that was not sent; false if there is none.
  bool Next(std::string* line);
  /// The oldest line that was sent has arrived.
  void Acknowledge();
  /// What was sent and not acknowledged is sent again.
  void Rewind();
  /// All that is in memory goes into files.
  void Spill();
  /// Has the disk keep what is in files; to be called now and then.
  void Save();
  [[nodiscard]] Counts counts() const;

 private:
  struct Segment {
    std::uint64_t number;
    std::uint64_t size;
  };
  struct Place {
    std::uint64_t number = 0;
    std::uint64_t offset = 0;
  };

  void Lock() const;
  void Find();
  void SpillLocked();
  void ForgetFirst();
  void Append(std::string_view line);
  bool Write(std::string_view line);
  void DropOldest();
  bool ReadLine(Place* from, std::string* line);
  void Forget();
  [[nodiscard]] std::string NameOf(std::uint64_t number) const;

  std::string folder_;
  std::uint64_t most_bytes_;
  std::uint64_t segment_bytes_;
  Fd lock_;

  mutable std::mutex mutex_;
  Ring<std::string> memory_;  // empty while there are segments
  std::size_t memory_sent_ = 0;
  std::uint64_t memory_bytes_ = 0;

  std::deque<Segment> segments_;
  std::uint64_t disk_bytes_ = 0;
  Place done_;                 // acknowledged up to here
  Place sent_;                 // sent up to here
  Ring<Place> flying_;         // the ends of lines that were sent
  std::uint64_t orphans_ = 0;  // sent, and dropped before they were acknowledged
  Fd last_;                    // of the last segment, to write
  Fd first_;                   // of the segment that is read
  std::uint64_t first_number_ = 0;
  bool dirty_ = false;
  Place saved_;
  std::uint64_t next_number_ = 1;
  std::uint64_t dropped_ = 0;
  std::string buffer_;
  std::string text_;  // what is written
};

}  // namespace edgepack::sinks
