#include "webhook.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace edgepack::sinks {
namespace {

constexpr double kAllS = 10;
constexpr std::size_t kMostHead = 4096;
constexpr int kAgain[] = {408, 425, 429};

struct Free {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};

bool IsForLater(int status) {
  for (const int one : kAgain) {
    if (status == one) return true;
  }
  return status >= 500;
}

}  // namespace

int ReadStatus(std::string_view answer) {
  constexpr std::string_view kProtocol = "HTTP/1.";
  const std::size_t common = std::min(answer.size(), kProtocol.size());
  if (answer.substr(0, common) != kProtocol.substr(0, common)) return -1;
  constexpr std::size_t kStatus = 9;  // after "HTTP/1.1 "
  if (answer.size() < kStatus + 4) return 0;
  if (answer[kStatus - 1] != ' ') return -1;
  int status = 0;
  for (const char digit : answer.substr(kStatus, 3)) {
    if (digit < '0' || digit > '9') return -1;
    status = 10 * status + (digit - '0');
  }
  const char after = answer[kStatus + 3];
  if (after != ' ' && after != '\r' && after != '\n') return -1;
  return status >= 100 ? status : -1;
}

void WebhookSender::Run() {
  std::string line;
  while (!stopping()) {
    if (!spool().Next(&line)) {
      Wait(1);
      continue;
    }
    std::string why;
    const int status = Post(line, &why);
    if (status >= 200 && status < 300) {
      Succeed();
      CountSent();
      spool().Acknowledge();
    } else if (status > 0 && !IsForLater(status)) {
      // It will not be wanted later either.
      Fail("answers " + std::to_string(status));
      CountRefused();
      spool().Acknowledge();
    } else {
      Fail(status > 0 ? "answers " + std::to_string(status) : why);
      spool().Rewind();
      spool().Spill();
      Pause();
    }
  }
  spool().Rewind();
  spool().Spill();
}

int WebhookSender::Post(const std::string& line, std::string* why) {
  const double until = Monotonic() + kAllS;
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(config().port);
  const int unknown = getaddrinfo(config().host.c_str(), port.c_str(), &wanted, &list);
  const std::unique_ptr<addrinfo, Free> found(list);
  if (unknown != 0) {
    *why = gai_strerror(unknown);
    return 0;
  }
  const auto wait_for = [&](int fd, short events) {
    while (Monotonic() < until && !stopping()) {
      if (Wait(until - Monotonic(), fd, events) != 0) return true;
    }
    *why = "no answer in time";
    return false;
  };
  Fd fd;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    fd = Fd(socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    int problem = connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (problem == EINPROGRESS) {
      if (!wait_for(fd.get(), POLLOUT)) return 0;
      socklen_t size = sizeof(problem);
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &problem, &size);
    }
    if (problem == 0) break;
    *why = std::strerror(problem);
    fd.Close();
  }
  if (!fd) return 0;
  const bool v6 = config().host.find(':') != std::string::npos;
  std::string request = "POST " + config().path +
                        " HTTP/1.1\r\nHost: " + (v6 ? "[" + config().host + "]" : config().host) +
                        ":" + port +
                        "\r\nUser-Agent: edgepack/" EDGEPACK_VERSION
                        "\r\nContent-Type: application/json\r\nConnection: close\r\n"
                        "Content-Length: " +
                        std::to_string(line.size()) + "\r\n\r\n" + line;
  for (std::string_view rest = request; !rest.empty();) {
    const ssize_t size = send(fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (size >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno == EAGAIN || errno == EINTR) {
      if (!wait_for(fd.get(), POLLOUT)) return 0;
    } else {
      break;  // an answer may be there all the same
    }
  }
  std::string head;
  std::array<char, 512> block = {};
  while (head.size() < kMostHead) {
    if (!wait_for(fd.get(), POLLIN)) return 0;
    const ssize_t size = recv(fd.get(), block.data(), block.size(), 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (size <= 0) break;
    head.append(block.data(), static_cast<std::size_t>(size));
    const int status = ReadStatus(head);
    if (status < 0) break;
    if (status >= 200) return status;  // what follows is of no interest, however long it is
    if (status >= 100) {
      const std::size_t end = head.find("\r\n\r\n");
      if (end != std::string::npos) head.erase(0, end + 4);
    }
  }
  *why = "its answer is not HTTP";
  return 0;
}

}  // namespace edgepack::sinks
