#include "spool.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <sys/file.h>
#include <sys/stat.h>
#include <utility>

#include "common/error.h"

namespace edgepack::sinks {
namespace {

constexpr std::size_t kMostInMemory = 200;
constexpr std::size_t kMostBytesInMemory = 1U << 20U;
/// Of a line that is longer the memory goes with it.
constexpr std::size_t kMostKept = 16U << 10U;
constexpr std::uint64_t kLeastSegment = 64U << 10U;
constexpr std::uint64_t kMostSegment = 4U << 20U;
constexpr std::size_t kMostLine = 1U << 20U;
constexpr std::size_t kBlock = 16U << 10U;
constexpr int kLockTries = 50;
constexpr useconds_t kLockPause = 100000;

[[noreturn]] void Fail(const std::string& what, const std::string& path) {
  throw UsageError("buffer: cannot " + what + " " + path + ": " + std::strerror(errno),
                   "make the folder on the device, for the account of the service");
}

/// Lines between two places of a file.
std::uint64_t CountLines(int fd, std::uint64_t from, std::uint64_t to) {
  std::array<char, kBlock> block;  // NOLINT(*-member-init): filled by the read
  std::uint64_t lines = 0;
  while (from < to) {
    const std::size_t most = std::min<std::uint64_t>(block.size(), to - from);
    const ssize_t size =
        Retry([&] { return pread(fd, block.data(), most, static_cast<off_t>(from)); });
    if (size <= 0) break;
    lines += static_cast<std::uint64_t>(std::count(block.data(), block.data() + size, '\n'));
    from += static_cast<std::uint64_t>(size);
  }
  return lines;
}

/// The end of the last whole line of a file.
std::uint64_t EndOfLines(int fd, std::uint64_t size) {
  std::array<char, kBlock> block;  // NOLINT(*-member-init): filled by the read
  while (size > 0) {
    const std::uint64_t from = size > block.size() ? size - block.size() : 0;
    const auto most = static_cast<std::size_t>(size - from);
    if (Retry([&] { return pread(fd, block.data(), most, static_cast<off_t>(from)); }) !=
        static_cast<ssize_t>(most)) {
      return 0;
    }
    for (std::size_t i = most; i > 0; --i) {
      if (block[i - 1] == '\n') return from + i;
    }
    size = from;
  }
  return 0;
}

}  // namespace

Spool::Spool(std::string folder, std::uint64_t most_bytes)
    : folder_(std::move(folder)),
      most_bytes_(most_bytes),
      segment_bytes_(std::clamp(most_bytes / 16, kLeastSegment, kMostSegment)) {
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) Fail("make", folder_);
  const std::string name = folder_ + "/lock";
  lock_ = Fd(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) Fail("write", name);
  Lock();
  Find();
}

void Spool::Lock() const {
  for (int i = 0; i < kLockTries; ++i) {
    if (flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return;
    usleep(kLockPause);
  }
  throw UsageError("buffer: another program uses " + folder_);
}

std::string Spool::NameOf(std::uint64_t number) const {
  std::array<char, 32> name = {};
  (void)std::snprintf(name.data(), name.size(), "%012" PRIu64 ".lines", number);
  return folder_ + "/" + name.data();
}

/// What an earlier program left.
void Spool::Find() {
  struct Close {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  const std::unique_ptr<DIR, Close> listing(opendir(folder_.c_str()));
  if (!listing) Fail("list", folder_);
  while (const dirent* const entry = readdir(listing.get())) {  // NOLINT(concurrency-mt-unsafe)
    std::uint64_t number = 0;
    int length = 0;
    if (std::sscanf(entry->d_name, "%12" SCNu64 ".lines%n", &number, &length) != 1) continue;
    if (length == 0 || entry->d_name[length] != '\0') continue;
    if (NameOf(number) == folder_ + "/" + entry->d_name) segments_.push_back({number, 0});
  }
  std::sort(segments_.begin(), segments_.end(),
            [](const Segment& a, const Segment& b) { return a.number < b.number; });
  for (Segment& segment : segments_) {
    const Fd fd(open(NameOf(segment.number).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    struct stat status = {};
    if (!fd || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    // A power cut may have left half a line.
    segment.size = EndOfLines(fd.get(), static_cast<std::uint64_t>(status.st_size));
    if (segment.size != static_cast<std::uint64_t>(status.st_size) &&
        ftruncate(fd.get(), static_cast<off_t>(segment.size)) != 0) {
      Fail("write", NameOf(segment.number));
    }
    disk_bytes_ += segment.size;
  }
  if (!segments_.empty()) next_number_ = segments_.back().number + 1;
  const Fd fd(open((folder_ + "/position").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::array<char, 64> text = {};
  Place place;
  if (fd && Retry([&] { return read(fd.get(), text.data(), text.size() - 1); }) > 0) {
    if (std::sscanf(text.data(), "%" SCNu64 " %" SCNu64, &place.number, &place.offset) != 2) {
      place = {};
    }
  }
  while (!segments_.empty() && segments_.front().number < place.number) {
    disk_bytes_ -= segments_.front().size;
    unlink(NameOf(segments_.front().number).c_str());
    segments_.pop_front();
  }
  if (segments_.empty()) return;
  done_ = {segments_.front().number, 0};
  if (done_.number == place.number && place.offset <= segments_.front().size) {
    const Fd first(open(NameOf(done_.number).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    // Only where a line begins.
    if (first) done_.offset = EndOfLines(first.get(), place.offset);
  }
  sent_ = saved_ = done_;
  while (disk_bytes_ > most_bytes_ && segments_.size() > 1) DropOldest();
  Forget();
}

void Spool::Push(std::string_view line) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (line.empty()) return;
  if (line.size() >= kMostLine || line.find('\n') != std::string_view::npos) {
    ++dropped_;
    return;
  }
  if (segments_.empty() && memory_.size() < kMostInMemory &&
      memory_bytes_ + line.size() < kMostBytesInMemory) {
    memory_.Add().assign(line);
    memory_bytes_ += line.size() + 1;
    return;
  }
  SpillLocked();
  Append(line);
}

void Spool::Spill() {
  const std::lock_guard<std::mutex> guard(mutex_);
  SpillLocked();
}

void Spool::SpillLocked() {
  const std::size_t sent = std::exchange(memory_sent_, 0);
  for (std::size_t i = 0; !memory_.empty(); ++i) {
    Append(memory_.front());
    ForgetFirst();
    if (i >= sent || segments_.empty()) continue;
    sent_ = {segments_.back().number, segments_.back().size};
    flying_.Add() = sent_;
  }
}

/// The first line in memory goes. Its place stays, with the memory of a line that is not very long.
void Spool::ForgetFirst() {
  std::string& line = memory_.front();
  memory_bytes_ -= line.size() + 1;
  if (line.capacity() > kMostKept) std::string().swap(line);
  memory_.pop_front();
}

void Spool::Append(std::string_view line) {
  while (disk_bytes_ + line.size() + 1 > most_bytes_ && segments_.size() > 1) DropOldest();
  if (Write(line)) return;
  // A full disk: the oldest makes room.
  while (segments_.size() > 1) {
    DropOldest();
    if (Write(line)) return;
  }
  ++dropped_;
}

bool Spool::Write(std::string_view line) {
  if (segments_.empty() || segments_.back().size + line.size() + 1 > segment_bytes_ || !last_) {
    const std::uint64_t number = next_number_;
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
    Fd fd(open(NameOf(number).c_str(), flags, 0600));
    if (!fd) {
      if (errno == EEXIST) ++next_number_;
      return false;
    }
    ++next_number_;
    if (last_) fdatasync(last_.get());
    last_ = std::move(fd);
    if (segments_.empty()) sent_ = done_ = {number, 0};
    segments_.push_back({number, 0});
  }
  Segment& segment = segments_.back();
  text_.assign(line);
  text_ += '\n';
  const ssize_t written = Retry([&] { return write(last_.get(), text_.data(), text_.size()); });
  if (written != static_cast<ssize_t>(text_.size())) {
    // Half a line would spoil the next one.
    if (written > 0 && ftruncate(last_.get(), static_cast<off_t>(segment.size)) != 0) last_.Close();
    return false;
  }
  segment.size += text_.size();
  disk_bytes_ += text_.size();
  dirty_ = true;
  return true;
}

void Spool::DropOldest() {
  const Segment oldest = segments_.front();
  segments_.pop_front();
  const Place next = {segments_.front().number, 0};
  const Fd fd(open(NameOf(oldest.number).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (fd && sent_.number == oldest.number) {
    dropped_ += CountLines(fd.get(), sent_.offset, oldest.size);
  }
  while (!flying_.empty() && flying_.front().number <= oldest.number) {
    flying_.pop_front();
    ++orphans_;
  }
  if (sent_.number <= oldest.number) sent_ = next;
  if (done_.number <= oldest.number) done_ = next;
  disk_bytes_ -= oldest.size;
  unlink(NameOf(oldest.number).c_str());
}

bool Spool::ReadLine(Place* from, std::string* line) {
  while (!segments_.empty()) {
    const auto segment = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& one) {
      return one.number == from->number;
    });
    if (segment == segments_.end()) return false;
    if (from->offset >= segment->size) {
      if (std::next(segment) == segments_.end()) return false;
      *from = {std::next(segment)->number, 0};
      continue;
    }
    if (!first_ || first_number_ != from->number) {
      first_ = Fd(open(NameOf(from->number).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      first_number_ = from->number;
      if (!first_) return false;
    }
    line->clear();
    std::uint64_t at = from->offset;
    buffer_.resize(kBlock);
    while (at < segment->size) {
      const std::size_t most = std::min<std::uint64_t>(buffer_.size(), segment->size - at);
      const ssize_t size =
          Retry([&] { return pread(first_.get(), buffer_.data(), most, static_cast<off_t>(at)); });
      if (size <= 0) return false;
      const std::string_view block(buffer_.data(), static_cast<std::size_t>(size));
      const std::size_t end = block.find('\n');
      line->append(block.substr(0, end));
      if (end != std::string_view::npos) {
        from->offset = at + end + 1;
        return true;
      }
      at += block.size();
    }
    return false;
  }
  return false;
}

bool Spool::Next(std::string* line) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (segments_.empty()) {
    if (memory_sent_ >= memory_.size()) return false;
    *line = memory_[memory_sent_++];
    return true;
  }
  if (!ReadLine(&sent_, line)) return false;
  flying_.Add() = sent_;
  return true;
}

void Spool::Acknowledge() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (orphans_ > 0) {
    --orphans_;
  } else if (memory_sent_ > 0) {
    --memory_sent_;
    ForgetFirst();
  } else if (!flying_.empty()) {
    done_ = flying_.front();
    flying_.pop_front();
    Forget();
  }
}

/// Removes files of which all has arrived.
void Spool::Forget() {
  while (!segments_.empty()) {
    const Segment& front = segments_.front();
    if (done_.number == front.number && done_.offset < front.size) return;
    const bool last = segments_.size() == 1;
    if (last && !flying_.empty()) return;
    disk_bytes_ -= front.size;
    unlink(NameOf(front.number).c_str());
    if (last) last_.Close();
    segments_.pop_front();
    if (!segments_.empty() && done_.number < segments_.front().number) {
      done_ = {segments_.front().number, 0};
      if (sent_.number < done_.number) sent_ = done_;
    }
  }
}

void Spool::Rewind() {
  const std::lock_guard<std::mutex> guard(mutex_);
  memory_sent_ = 0;
  flying_.clear();
  sent_ = done_;
  dropped_ += std::exchange(orphans_, 0);
}

void Spool::Save() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (std::exchange(dirty_, false) && last_) fdatasync(last_.get());
  if (segments_.empty() || (saved_.number == done_.number && saved_.offset == done_.offset)) return;
  const Fd fd(
      open((folder_ + "/position").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  std::array<char, 64> text = {};
  // Of one length, so that a shorter one leaves nothing of the one before.
  const int size = std::snprintf(text.data(), text.size(), "%020" PRIu64 " %020" PRIu64 "\n",
                                 done_.number, done_.offset);
  if (fd && pwrite(fd.get(), text.data(), static_cast<std::size_t>(size), 0) == size)
    saved_ = done_;
}

Spool::Counts Spool::counts() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  const std::uint64_t read =
      !segments_.empty() && done_.number == segments_.front().number ? done_.offset : 0;
  return {dropped_, memory_bytes_ + disk_bytes_ - read};
}

}  // namespace edgepack::sinks
