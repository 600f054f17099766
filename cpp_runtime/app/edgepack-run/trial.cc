#include "trial.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>

#include "common/json.h"
#include "platform/opencv/draw.h"

namespace edgepack {
namespace {

constexpr std::chrono::seconds kLook{1};
// Of a photo; what is larger is not handed over.
constexpr std::uintmax_t kMaxPhotoBytes = std::uintmax_t{32} << 20U;

// Of small pictures.
constexpr int kMostSide = 1024;
constexpr std::size_t kMostThumbnailBytes = std::size_t{64} << 10U;

// An answer of the candidate's is waited for so many times as long as the own one took.
constexpr double kWaits = 4;
constexpr double kLeastWaitMs = 100;
constexpr double kMostWaitMs = 2000;

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = Retry([&] { return write(fd, bytes.data(), bytes.size()); });
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

// What stands for a candidate's line if it gave none.
constexpr std::string_view kNoReply = "-";

/// Whether a message that begins so is no request.
bool IsReply(char first) { return first == '{' || first == kNoReply[0]; }

const char* NameOf(FrameFormat format) {
  switch (format) {
    case FrameFormat::kRgb24:
      return "rgb24";
    case FrameFormat::kBgr24:
      return "bgr24";
    case FrameFormat::kGray:
      return "gray";
    case FrameFormat::kYuyv:
      return "yuyv";
    default:
      return "mjpeg";
  }
}

/// One message, and with it a descriptor; false if it cannot be sent at once.
bool SendWith(int socket, std::string_view text, int fd) {
  iovec part = {const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  return Retry([&] { return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL); }) >= 0;
}

}  // namespace

TrialTap::TrialTap(const std::filesystem::path& release, bool may_split)
    : may_split_(may_split),
      random_(static_cast<unsigned>(Clock::now().time_since_epoch().count())) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::canonical(release, error);
  const std::filesystem::path releases = whole.parent_path();
  if (!error && releases.filename() == "releases") {
    folder_ = (releases.parent_path() / "trial").string();
  }
}

void TrialTap::Look() {
  if (folder_.empty()) return;
  if (!socket_) {
    const Clock::time_point now = Clock::now();
    if (looked_ && now - *looked_ < kLook) return;
    looked_ = now;
    Connect();
    return;
  }
  if (wanted_.load(std::memory_order_relaxed)) return;
  for (;;) {
    std::array<char, 128> text = {};
    const ssize_t count =
        Retry([&] { return recv(socket_.get(), text.data(), text.size() - 1, MSG_DONTWAIT); });
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) HangUp();
    if (count <= 0) return;
    if (IsReply(text[0])) continue;  // it came too late
    ReadRequest(text.data());
    return;
  }
}

void TrialTap::ReadRequest(const char* text) {
  char* end = nullptr;
  share_ = std::strtod(text, &end);
  const std::int64_t side = std::strtol(end, &end, 10);
  side_ = static_cast<int>(std::clamp<std::int64_t>(side, 0, kMostSide));
  const double split = std::strtod(end, &end);
  const std::string release = *end == ' ' ? end + 1 : "";
  const bool splits = may_split_ && split > 0 && split <= share_ && !release.empty();
  split_ = splits ? static_cast<float>(split) : 0.0F;
  if (splits && release != release_) {
    release_ = release;
    counts_.Begin(release);
  }
  wanted_.store(true, std::memory_order_release);
}

void TrialTap::HangUp() {
  socket_.Close();
  split_ = 0;
}

void TrialTap::Connect() {
  const Fd folder(open(folder_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder) return;
  // A path of any length fits so.
  const std::string path = "/proc/self/fd/" + std::to_string(folder.get()) + "/frames";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return;
  }
  wanted_ = false;
  socket_ = std::move(fd);
}

bool TrialTap::Picks() {
  const bool wanted = wanted_.load(std::memory_order_acquire);
  const float split = split_;
  if (!wanted && split == 0) return false;
  const auto drawn = std::generate_canonical<double, 24>(random_);
  for_split_ = drawn < split;
  if (!wanted) {
    if (for_split_) counts_.Add(SplitCounts::Missed::kBusy);
    return false;
  }
  if (drawn >= share_) return false;
  wanted_ = false;
  return true;
}

void TrialTap::GiveUp() {
  if (for_split_) counts_.Add(SplitCounts::Missed::kUnfit);
  wanted_ = true;
}

std::optional<SharedPicture> TrialTap::Share(std::string_view bytes, FrameFormat format,
                                             const std::optional<ImageSize>& size) {
  // By number: older C libraries have no function for it.
  SharedPicture picture;
  picture.memory = Fd(static_cast<int>(syscall(SYS_memfd_create, "edgepack-trial", 1U)));
  if (!picture.memory || !WriteAll(picture.memory.get(), bytes)) {
    GiveUp();
    return std::nullopt;
  }
  picture.bytes = bytes.size();
  picture.format = format;
  picture.size = size;
  picture.split = for_split_;
  return picture;
}

std::optional<SharedPicture> TrialTap::SharePhotoAt(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size <= kMaxPhotoBytes) {
    std::ifstream file(path, std::ios::binary);
    const std::istreambuf_iterator<char> begin(file);
    const std::istreambuf_iterator<char> end;
    const std::string bytes(begin, end);
    return SharePhoto(std::string_view{bytes});
  }
  GiveUp();
  return std::nullopt;
}

std::optional<SharedPicture> TrialTap::SharePhoto(std::string_view bytes) {
  if (bytes.substr(0, 3) == "\xff\xd8\xff") {
    return Share(bytes, FrameFormat::kMjpeg, std::nullopt);
  }
  GiveUp();
  return std::nullopt;
}

void TrialTap::AddThumbnail(const cv::Mat& pixels, SharedPicture* picture) const {
  const int side = side_;
  if (side == 0 || pixels.empty()) return;
  const double scale = static_cast<double>(side) / std::max(pixels.cols, pixels.rows);
  cv::Mat small = pixels;
  if (scale < 1) {
    const auto part = [&](int of) { return std::max(cvRound(of * scale), 1); };
    cv::resize(pixels, small, {part(pixels.cols), part(pixels.rows)}, 0, 0, cv::INTER_AREA);
  }
  picture->thumbnail = EncodeJpeg(small);
  if (picture->thumbnail.size() > kMostThumbnailBytes) picture->thumbnail.clear();
}

void TrialTap::Give(const SharedPicture& picture, std::string_view line) {
  if (!socket_) return;
  JsonWriter json;
  json.BeginObject().Key("format").String(NameOf(picture.format));
  json.Key("width").Int(picture.size ? picture.size->width : 0);
  json.Key("height").Int(picture.size ? picture.size->height : 0);
  json.Key("picture_bytes").Int(static_cast<std::int64_t>(picture.bytes));
  json.Key("answer_bytes").Int(static_cast<std::int64_t>(line.size()));
  if (!picture.thumbnail.empty()) {
    json.Key("thumbnail_bytes").Int(static_cast<std::int64_t>(picture.thumbnail.size()));
  }
  if (picture.split) json.Key("reply").Bool(true);
  if (used_) json.Key("used").Bool(true);
  used_ = false;
  json.EndObject();
  if (!WriteAll(picture.memory.get(), line) || !WriteAll(picture.memory.get(), picture.thumbnail) ||
      !SendWith(socket_.get(), json.text(), picture.memory.get())) {
    HangUp();
  }
}

bool TrialTap::WaitForReply(std::chrono::milliseconds limit) {
  using std::chrono::milliseconds;
  const Clock::time_point end = Clock::now() + limit;
  reply_.resize(kMostLineBytes);
  while (socket_) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    if (left.count() <= 0) break;
    pollfd wanted = {socket_.get(), POLLIN, 0};
    if (poll(&wanted, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t count = Retry([&] {
      return recv(socket_.get(), reply_.data(), reply_.size(), MSG_DONTWAIT | MSG_TRUNC);
    });
    if (count <= 0) {
      HangUp();
      break;
    }
    // What is cut off is no JSON.
    reply_.resize(std::min(reply_.size(), static_cast<std::size_t>(count)));
    return true;
  }
  return false;
}

const Report& TrialTap::Answer(const std::optional<SharedPicture>& picture, const Report& ours,
                               std::string* line) {
  using Missed = SplitCounts::Missed;
  if (picture) Give(*picture, *line);
  const auto own = [&]() -> const Report& {
    if (split_ > 0) counts_.AddOwn(TookMs(ours) / 1000);
    return ours;
  };
  const auto missed = [&](Missed why) -> const Report& {
    counts_.Add(why);
    return own();
  };
  if (!picture || !picture->split) return own();
  if (!CanSplit(ours)) return missed(Missed::kUnfit);
  if (!socket_) return missed(Missed::kFailed);
  const double wait_ms = std::clamp(kWaits * TookMs(ours), kLeastWaitMs, kMostWaitMs);
  if (!WaitForReply(std::chrono::milliseconds(static_cast<std::int64_t>(wait_ms)))) {
    return missed(socket_ ? Missed::kLate : Missed::kFailed);
  }
  if (reply_ == kNoReply) return missed(Missed::kFailed);
  try {
    candidate_.Read(reply_, ours);
  } catch (const Error&) {
    return missed(Missed::kInvalid);
  }
  candidate_.report.release = release_;
  used_ = true;
  counts_.AddCandidate(TookMs(candidate_.report) / 1000);
  *line = JsonLine(candidate_.report, std::move(*line));
  return candidate_.report;
}

}  // namespace edgepack
