#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "notify.h"
#include "support.h"

namespace edgepack::testing {
namespace {

/// A datagram socket bound to `name`: what systemd puts into NOTIFY_SOCKET.
class Listener {
 public:
  explicit Listener(const std::string& name) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    REQUIRE(name.size() < sizeof(address.sun_path));
    name.copy(address.sun_path, name.size());
    if (name.front() == '@') address.sun_path[0] = '\0';
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    REQUIRE(bind(fd_, reinterpret_cast<const sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())) == 0);
  }
  ~Listener() { close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  Listener(Listener&&) = delete;
  Listener& operator=(Listener&&) = delete;

  [[nodiscard]] std::string Next() const {
    char buffer[256];
    const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
    return size < 0 ? "" : std::string(buffer, static_cast<std::size_t>(size));
  }

 private:
  int fd_;
};

}  // namespace

TEST_CASE("signs of life go to the socket") {
  const TempFolder folder;
  std::string name;
  SUBCASE("in a folder") { name = folder / "socket"; }
  SUBCASE("in the abstract namespace") { name = "@edgepack-test-" + std::to_string(getpid()); }
  const Listener listener(name);
  const Notifier notifier(name, std::chrono::seconds(3));
  notifier.Send("READY=1");
  notifier.Send("WATCHDOG=1");
  CHECK(listener.Next() == "READY=1");
  CHECK(listener.Next() == "WATCHDOG=1");
  CHECK(listener.Next().empty());
  CHECK(notifier.interval() == std::chrono::milliseconds(1500));
}

TEST_CASE("nobody listens") {
  const TempFolder folder;
  Notifier("", std::nullopt).Send("READY=1");
  Notifier(folder / "none", std::nullopt).Send("READY=1");
  Notifier(std::string(200, 'x'), std::nullopt).Send("READY=1");
  CHECK_FALSE(Notifier("", std::nullopt).interval());
}

TEST_CASE("what systemd puts into the environment") {
  setenv("WATCHDOG_USEC", "20000000", 1);
  CHECK(Notifier::FromEnvironment().interval() == std::chrono::seconds(10));
  setenv("WATCHDOG_USEC", "0", 1);
  CHECK_FALSE(Notifier::FromEnvironment().interval());
  unsetenv("WATCHDOG_USEC");
  CHECK_FALSE(Notifier::FromEnvironment().interval());
}

}  // namespace edgepack::testing
