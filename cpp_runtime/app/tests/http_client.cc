#include "http_client.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <thread>

#include <doctest/doctest.h>

namespace edgepack::testing {
namespace {

int Family(const HttpAddress& address) { return address.path.empty() ? AF_INET : AF_UNIX; }

bool Connect(int fd, const HttpAddress& to) {
  if (to.path.empty()) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(to.port));
    REQUIRE(inet_pton(AF_INET, to.host.c_str(), &address.sin_addr) == 1);
    return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string& name = to.path.native();
  REQUIRE(name.size() < sizeof(address.sun_path));
  std::copy(name.begin(), name.end(), address.sun_path);
  return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

bool HttpClient::Refused(const HttpAddress& address) {
  const Fd fd(socket(Family(address), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (Connect(fd.get(), address)) return false;
  if (errno != EINPROGRESS) return errno != EAGAIN;
  // On this machine it is let in at once, or hears nothing for a second.
  pollfd wanted = {fd.get(), POLLOUT, 0};
  constexpr int kMs = 100;
  return poll(&wanted, 1, kMs) == 0 || (wanted.revents & POLLERR) != 0;
}

HttpClient::HttpClient(const HttpAddress& address)
    : fd_(socket(Family(address), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  bool connected = false;
  for (int i = 0; i < 3000 && !connected; ++i) {
    connected = Connect(fd_.get(), address);
    if (!connected) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(connected);
  const timeval limit = {30, 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

void HttpClient::Send(const std::string& bytes) const {
  REQUIRE(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
}

bool HttpClient::ReadMore() {
  char buffer[4096];
  const ssize_t size = Retry([&] { return recv(fd_.get(), buffer, sizeof(buffer), 0); });
  if (size <= 0) return false;
  bytes_.append(buffer, static_cast<std::size_t>(size));
  return true;
}

std::string HttpClient::Receive() {
  std::size_t head = 0;
  while ((head = bytes_.find("\r\n\r\n")) == std::string::npos) {
    if (!ReadMore()) return std::exchange(bytes_, {});
  }
  std::size_t size = head + 4;
  const std::string kLength = "Content-Length: ";
  const std::size_t length = bytes_.find(kLength);
  if (length < head) size += std::stoul(bytes_.substr(length + kLength.size()));
  while (bytes_.size() < size && ReadMore()) {
  }
  std::string answer = bytes_.substr(0, size);
  bytes_.erase(0, size);
  return answer;
}

std::string HttpClient::Get(const std::string& path) {
  Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  return Receive();
}

std::string HttpClient::Post(const std::string& path, const std::string& body,
                             const std::string& content_type) {
  Send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + content_type +
       "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  return Receive();
}

bool HttpClient::Closed() { return bytes_.empty() && !ReadMore(); }

std::string BodyOf(const std::string& answer) {
  const std::size_t head = answer.find("\r\n\r\n");
  return head == std::string::npos ? "" : answer.substr(head + 4);
}

}  // namespace edgepack::testing
