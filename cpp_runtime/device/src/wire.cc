#include "wire.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "error.h"
#include "file.h"

namespace edgepack::device {
namespace {

constexpr std::size_t kMaxLine = std::size_t{64} << 10U;
constexpr int kPatienceMs = 10'000;

Error LinkLost(const std::string& how) {
  return {kExitDevice, "io", "the link was lost: " + how, "deploy again: what has arrived is kept"};
}

}  // namespace

bool WireInput::Refill() {
  while (true) {
    struct pollfd polled = {fd_, POLLIN, 0};
    const int ready = poll(&polled, 1, static_cast<int>(silence_s_ * 1e3));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) ThrowErrno("wait for", "stdin");
    if (ready == 0) throw LinkLost("nothing came for a long time");
    const ssize_t count = read(fd_, buffer_.data(), buffer_.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) throw LinkLost(std::strerror(errno));
    begin_ = 0;
    end_ = static_cast<std::size_t>(count);
    return count > 0;
  }
}

std::string WireInput::ReadLine() {
  std::string line;
  while (begin_ < end_ || Refill()) {
    const auto first = buffer_.begin() + static_cast<std::ptrdiff_t>(begin_);
    const auto last = buffer_.begin() + static_cast<std::ptrdiff_t>(end_);
    const auto newline = std::find(first, last, '\n');
    line.append(first, newline);
    begin_ += static_cast<std::size_t>(newline - first) + (newline == last ? 0 : 1);
    if (newline != last) return line;
    if (line.size() > kMaxLine) throw LinkLost("a line has no end");
  }
  if (!line.empty()) throw LinkLost("in the middle of a line");
  return line;
}

void WireInput::Read(void* data, std::size_t size) {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    if (begin_ == end_ && !Refill()) throw LinkLost("it ended early");
    const std::size_t count = std::min(size, end_ - begin_);
    std::memcpy(next, buffer_.data() + begin_, count);
    begin_ += count;
    next += count;
    size -= count;
  }
}

std::string WireInput::ReadText(std::size_t size) {
  std::string text(size, '\0');
  Read(text.data(), size);
  return text;
}

void WireOutput::WriteLine(const std::string& text) {
  const std::string line = text + "\n";
  for (std::size_t done = 0; done < line.size() && !lost_;) {
    // A reader that hangs must not make us hang: a pipe that poll finds ready takes PIPE_BUF bytes.
    struct pollfd polled = {fd_, POLLOUT, 0};
    const int ready = poll(&polled, 1, kPatienceMs);
    if (ready < 0 && errno == EINTR) continue;
    const std::size_t size = std::min<std::size_t>(line.size() - done, 4096);
    const ssize_t count = ready == 1 ? write(fd_, line.data() + done, size) : -1;
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (ready != 1 || (errno != EINTR && errno != EAGAIN)) {
      lost_ = true;
    }
  }
}

}  // namespace edgepack::device
