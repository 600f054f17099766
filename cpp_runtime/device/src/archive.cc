#include "archive.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <unistd.h>
#include <utility>
#include <zlib.h>

#include "error.h"
#include "manifest_reader.h"

namespace edgepack::device {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kMaxPath = 255;
using Block = std::array<char, kBlock>;

// Fields of a ustar header (POSIX.1-1988, pax(1)): offset and size.
struct Field {
  size_t offset;
  size_t size;
};
constexpr Field kName{0, 100};
constexpr Field kMode{100, 8};
constexpr Field kSize{124, 12};
constexpr Field kChecksum{148, 8};
constexpr size_t kType = 156;
constexpr Field kMagic{257, 6};
constexpr Field kPrefix{345, 155};

std::string TextOf(const Block& block, Field field) {
  const char* start = block.data() + field.offset;
  return {start, strnlen(start, field.size)};
}

// Octal digits, ended by a space, a NUL or the field; nothing if there is anything else.
std::optional<uint64_t> OctalOf(const Block& block, Field field) {
  const char* start = block.data() + field.offset;
  const char* const end = start + field.size;
  while (start < end && *start == ' ') ++start;
  uint64_t value = 0;
  bool any = false;
  for (; start < end && *start >= '0' && *start <= '7'; ++start) {
    value = value * 8 + static_cast<uint64_t>(*start - '0');
    any = true;
  }
  const bool clean = std::all_of(start, end, [](char c) { return c == ' ' || c == '\0'; });
  if (!any || !clean) return std::nullopt;
  return value;
}

bool IsZero(const char* data, size_t size) {
  return std::all_of(data, data + size, [](char c) { return c == '\0'; });
}

const char* KindOf(char type) {
  switch (type) {
    case '1':
      return "a hard link";
    case '2':
      return "a symbolic link";
    case '3':
      return "a character device";
    case '4':
      return "a block device";
    case '6':
      return "a named pipe";
    default:
      return "of an unknown kind";
  }
}

// For messages: names come from a file that is not trusted and go to a terminal.
std::string Quoted(const std::string& name) {
  std::string text = "'";
  for (const char c : name) text += c >= 0x20 && c < 0x7f ? c : '?';
  return text + "'";
}

size_t ReadFile(int fd, void* out, size_t size, const std::string& name) {
  for (;;) {
    const ssize_t count = ::read(fd, out, size);
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR) {
      throw Error(kExitDevice, "io", name + ": cannot be read: " + std::strerror(errno));
    }
  }
}

}  // namespace

// One gzip stream with nothing behind it.
class BundleArchive::Gzip {
 public:
  Gzip(ReadFunction read, std::string name) : read_(std::move(read)), name_(std::move(name)) {
    // 16: a gzip header is required and its checksum compared.
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  ~Gzip() { inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  // Fewer than `size` bytes only at the end, where the checksum was right and nothing follows.
  size_t Read(void* out, size_t size) {
    stream_.next_out = static_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0 && !Fill()) {
        throw Refused("truncated", name_ + ": it ends too early", "copy the bundle again");
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        ended_ = true;
        if (stream_.avail_in > 0 || Fill()) Damaged("bytes after its end");
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        Damaged(stream_.msg == nullptr ? "not gzip" : stream_.msg);
      }
    }
    return size - stream_.avail_out;
  }

  [[noreturn]] void Damaged(const std::string& problem) const {
    throw Refused("damaged", name_ + ": damaged or no bundle: " + problem,
                  "copy or make the bundle again");
  }

 private:
  bool Fill() {
    const size_t count = read_(buffer_.data(), buffer_.size());
    stream_.next_in = buffer_.data();
    stream_.avail_in = static_cast<uInt>(count);
    return count > 0;
  }

  ReadFunction read_;
  std::string name_;
  z_stream stream_{};
  std::array<Bytef, 65536> buffer_;
  bool ended_ = false;
};

BundleArchive::BundleArchive(int fd, const std::string& name)
    : BundleArchive([fd, name](void* out, size_t size) { return ReadFile(fd, out, size, name); },
                    name, Limits()) {}

BundleArchive::BundleArchive(ReadFunction read, std::string name, Limits limits)
    : name_(std::move(name)),
      limits_(limits),
      gzip_(std::make_unique<Gzip>(std::move(read), name_)) {}

BundleArchive::BundleArchive(BundleArchive&&) noexcept = default;
BundleArchive::~BundleArchive() = default;

void BundleArchive::Unsafe(const std::string& problem) const {
  throw Refused("unsafe-archive", name_ + ": unsafe archive: " + problem,
                "a bundle holds plain files and folders only; do not use this one");
}

void BundleArchive::ReadExactly(void* out, size_t size) {
  total_ += size;
  if (total_ > limits_.bytes) Unsafe("more than " + std::to_string(limits_.bytes) + " bytes");
  if (gzip_->Read(out, size) != size) {
    throw Refused("truncated", name_ + ": it ends too early", "copy the bundle again");
  }
}

void BundleArchive::SkipRest() {
  std::array<char, 8192> buffer;
  while (left_ + padding_ > 0) {
    const size_t size = static_cast<size_t>(std::min<uint64_t>(left_ + padding_, buffer.size()));
    ReadExactly(buffer.data(), size);
    const uint64_t of_file = std::min<uint64_t>(left_, size);
    left_ -= of_file;
    padding_ -= size - of_file;
  }
}

// Only zeros up to the end of the stream, as tar writes them.
void BundleArchive::CheckEnd() {
  Block block;
  while (const size_t count = gzip_->Read(block.data(), block.size())) {
    total_ += count;
    if (total_ > limits_.bytes) Unsafe("more than " + std::to_string(limits_.bytes) + " bytes");
    if (!IsZero(block.data(), count)) gzip_->Damaged("bytes after the end of the archive");
  }
}

// The path below the top folder; empty for that folder itself.
std::string BundleArchive::CheckName(const std::string& name, bool folder, uint64_t size) {
  if (!IsSafePath(name, kMaxPath)) Unsafe(Quoted(name) + " is no safe relative path");
  const size_t slash = name.find('/');
  const std::string top = name.substr(0, slash);
  std::string path = slash == std::string::npos ? "" : name.substr(slash + 1);
  if (top_.empty()) top_ = top;
  if (top != top_ || (path.empty() && !folder)) {
    Unsafe(Quoted(name) + " is outside its top folder " + Quoted(top_));
  }
  if (folder && size != 0) Unsafe(Quoted(name) + " has an impossible size");
  const auto& same = folder ? folders_ : files_;
  const auto& other = folder ? files_ : folders_;
  if (other.count(path) != 0) Unsafe(Quoted(name) + " is a file and a folder");
  // A folder may have been implied by a file within it.
  if (!folder && same.count(path) != 0) Unsafe(Quoted(name) + " is there twice");
  for (size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1)) {
    if (files_.count(path.substr(0, end)) != 0) {
      Unsafe(Quoted(path.substr(0, end)) + " is a file and a folder");
    }
    folders_.insert(path.substr(0, end));
  }
  (folder ? folders_ : files_).insert(path);
  if (files_.size() + folders_.size() > limits_.members) {
    Unsafe("more than " + std::to_string(limits_.members) + " members");
  }
  return path;
}

std::optional<BundleArchive::Member> BundleArchive::Next() {
  while (!ended_) {
    SkipRest();
    Block block;
    ReadExactly(block.data(), block.size());
    if (IsZero(block.data(), block.size())) {
      CheckEnd();
      ended_ = true;
      if (files_.empty()) gzip_->Damaged("an empty archive");
      break;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      const bool own = i >= kChecksum.offset && i < kChecksum.offset + kChecksum.size;
      sum += own ? ' ' : static_cast<unsigned char>(block[i]);
    }
    const std::optional<uint64_t> checksum = OctalOf(block, kChecksum);
    if (checksum != sum) gzip_->Damaged("not a tar archive");
    std::string name = TextOf(block, kName);
    // GNU tar uses the place of the prefix for times.
    if (std::memcmp(block.data() + kMagic.offset, "ustar\0", kMagic.size) == 0) {
      const std::string prefix = TextOf(block, kPrefix);
      if (!prefix.empty()) name.insert(0, prefix + "/");
    }
    const char type = block[kType];
    const bool folder = type == '5';
    if (!folder && type != '0' && type != '\0') {
      Unsafe(Quoted(name) + " is " + KindOf(type));
    }
    if (folder && !name.empty() && name.back() == '/') name.pop_back();
    const std::optional<uint64_t> size = OctalOf(block, kSize);
    const std::optional<uint64_t> mode = OctalOf(block, kMode);
    if (!size || !mode) gzip_->Damaged("a header with a bad number");
    std::string path = CheckName(name, folder, *size);
    if (folder) continue;
    if (*size > limits_.bytes - std::min(total_, limits_.bytes)) {
      Unsafe("more than " + std::to_string(limits_.bytes) + " bytes");
    }
    left_ = *size;
    padding_ = (kBlock - *size % kBlock) % kBlock;
    return Member{std::move(path), *size, (*mode & 0100) != 0};
  }
  return std::nullopt;
}

size_t BundleArchive::Read(void* out, size_t size) {
  const auto count = static_cast<size_t>(std::min<uint64_t>(size, left_));
  if (count == 0) return 0;
  ReadExactly(out, count);
  left_ -= count;
  return count;
}

}  // namespace edgepack::device
