#include "http_server.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <linux/filter.h>
#include <map>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string_view>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <system_error>
#include <tuple>
#include <unistd.h>

#include "common/error.h"
#include "common/json.h"
#include "watch.h"

namespace edgepack {
namespace {

constexpr std::size_t kReceiveBytes = std::size_t{64} << 10U;
constexpr int kBacklog = 1024;
/// So many are let in before those that are here go on.
constexpr int kAcceptedAtOnce = 64;
/// A client that has just connected gets this long to say something before it counts as slow.
constexpr std::chrono::milliseconds kGrace(500);
/// A client that was refused may still be sending: an answer that is followed by a reset is lost.
constexpr std::chrono::milliseconds kLinger(2000);
/// When the server stops: for a client that has just connected, or is about to have, to say what it
/// wants.
constexpr std::chrono::milliseconds kLastRequest(500);
constexpr std::chrono::milliseconds kNoDescriptors(200);

/// No page from elsewhere shows an answer as its own, or takes it for something else.
constexpr const char* kForBrowsers =
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n";

const char* ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Internal Server Error";
  }
}

const char* RefusalOf(int status) {
  switch (status) {
    case 408:
      return "the request took too long";
    case 413:
      return "the body is larger than this request's may be";
    case 415:
      return "Content-Encoding is not supported";
    case 417:
      return "Expect: nothing but 100-continue is supported";
    case 429:
      return "too many requests at a time";
    case 431:
      return "the headers, the trailers or the extensions of chunks are too large";
    case 501:
      return "neither CONNECT nor a Transfer-Encoding beside chunked is supported";
    case 505:
      return "only HTTP/1.0 and HTTP/1.1 are supported";
    default:
      return "not a request of HTTP/1.1";
  }
}

/// Who is at the other end: an address, of IPv6 the network, or the account behind a Unix socket.
std::string PeerOf(int fd) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return {};
  const auto bytes = [](const void* data, std::size_t count) {
    return std::string(static_cast<const char*>(data), count);
  };
  if (storage.ss_family == AF_INET) {
    return bytes(&reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, sizeof(in_addr));
  }
  if (storage.ss_family == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) return bytes(&address.s6_addr[12], sizeof(in_addr));
    return bytes(&address, sizeof(address) / 2);
  }
  ucred who = {};
  size = sizeof(who);
  getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
  return "account " + std::to_string(who.uid);
}

[[noreturn]] void FailToListen(const std::string& option, const std::string& where) {
  const std::string problem = std::error_code(errno, std::generic_category()).message();
  throw UsageError(option + ": cannot listen on " + where + ": " + problem);
}

/// Removes what a server that was killed left: a socket on which nobody listens.
void RemoveStale(const sockaddr_un& address, socklen_t size) {
  struct stat status = {};
  if (lstat(address.sun_path, &status) != 0 || !S_ISSOCK(status.st_mode)) return;
  const Fd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 &&
      errno == ECONNREFUSED) {
    unlink(address.sun_path);
  }
}

/// From now on nobody connects to `listener`; who has can still be accepted. To close it would
/// reset them, and those for whom the last packet of TCP's three is still on its way: so the kernel
/// drops packets without an ACK, which are the first of the three. Whoever sent one hears nothing,
/// asks again after a second, and is refused by then.
///
/// Plainer ways lose connections: shutdown() of a listening port resets those who wait, and after
/// listen(listener, 0) somebody gets in whenever nobody waits, whom close() resets.
void LetNobodyIn(int listener, bool tcp) {
  if (!tcp) {
    shutdown(listener, SHUT_RD);
    return;
  }
  constexpr std::uint32_t kFlags = 13;  // of TCP's header
  constexpr std::uint32_t kAck = 0x10;
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kFlags),
                        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kAck, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX), BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program = {std::size(code), code};
  // Without it, those who come until the listener is closed are served, too.
  setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

}  // namespace

HttpAnswer HttpError(int status, const std::string& message) {
  JsonWriter json;
  json.BeginObject().Key("error").String(message).EndObject();
  return {status, "application/json", json.text() + "\n"};
}

struct HttpServer::Connection {
  enum class State {
    kReading,    ///< a request, or waiting for one
    kWaiting,    ///< for its answer
    kWriting,    ///< the answer
    kStreaming,  ///< what is published
    kLingering,  ///< refused: what else comes is thrown away
    kClosed,
  };

  Connection(std::uint64_t number, Fd socket, const HttpHandler& handler)
      : id(number), fd(std::move(socket)), peer(PeerOf(fd.get())), parser(handler.most_body) {}

  [[nodiscard]] bool idle() const {
    return state == State::kReading && in.empty() && !parser.begun();
  }

  /// Whether it has sent what is to be looked at without waiting for more.
  [[nodiscard]] bool ready() const { return state == State::kReading && !in.empty(); }

  /// From now on its bytes count as those of something else.
  void Begin() {
    moved = 0;
    since = Clock::now();
  }

  /// The lower, the sooner it gives way.
  [[nodiscard]] double speed(Clock::time_point now) const {
    if (state == State::kLingering) return -1;  // it has had its answer
    const auto most = std::chrono::duration<double>(
        std::max<Clock::duration>(now - since, std::chrono::seconds(1)));
    return static_cast<double>(moved) / most.count();
  }

  std::uint64_t id;
  Fd fd;
  std::string peer;
  HttpParser parser;
  Clock::time_point came = Clock::now();
  Clock::time_point since = came;
  std::uint64_t moved = 0;  // bytes since then
  bool asked = false;       // a whole request, at some time
  State state = State::kReading;
  Clock::time_point deadline;
  std::string in;   // what the parser has not taken yet
  std::string out;  // what is to be sent
  std::size_t sent = 0;
  std::size_t held = 0;  // bytes of the body that waits for its answer
  bool keep_alive = false;
  bool head_only = false;
  bool stream = false;
  bool linger = false;
  std::uint64_t part = 0;  // the number of what was published and sent last
};

HttpServer::HttpServer(const std::string& option, const HttpAddress& address, HttpHandler handler,
                       HttpLimits limits, HttpAccess access)
    : handler_(std::move(handler)),
      guard_(std::move(access)),
      limits_(limits),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      buffer_(kReceiveBytes) {
  if (!wake_) FailToListen(option, "an eventfd");
  Listen(option, address);
}

HttpServer::~HttpServer() {
  if (!socket_path_.empty()) unlink(socket_path_.c_str());
}

void HttpServer::Listen(const std::string& option, const HttpAddress& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  sockaddr_storage storage = {};
  socklen_t size = 0;
  if (!address.path.empty()) {
    auto* const to = reinterpret_cast<sockaddr_un*>(&storage);
    to->sun_family = AF_UNIX;
    const std::string& path = address.path.native();  // short enough: see Parse
    std::copy(path.begin(), path.end(), to->sun_path);
    size = sizeof(*to);
    name_ = "unix:" + address.path.string();
    RemoveStale(*to, size);
  } else if (v6) {
    auto* const to = reinterpret_cast<sockaddr_in6*>(&storage);
    to->sin6_family = AF_INET6;
    to->sin6_port = htons(static_cast<std::uint16_t>(address.port));
    inet_pton(AF_INET6, address.host.c_str(), &to->sin6_addr);
    size = sizeof(*to);
    name_ = "http://[" + address.host + "]:";
  } else {
    auto* const to = reinterpret_cast<sockaddr_in*>(&storage);
    to->sin_family = AF_INET;
    to->sin_port = htons(static_cast<std::uint16_t>(address.port));
    inet_pton(AF_INET, address.host.c_str(), &to->sin_addr);
    size = sizeof(*to);
    name_ = "http://" + address.host + ":";
  }
  auto* const to = reinterpret_cast<sockaddr*>(&storage);
  listener_ = Fd(socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (address.path.empty()) {
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  } else {
    // Before it has a name: the owner's and the group's only.
    fchmod(listener_.get(), 0660);
  }
  if (!listener_ || bind(listener_.get(), to, size) != 0 ||
      listen(listener_.get(), kBacklog) != 0) {
    FailToListen(option, name_ + (address.path.empty() ? std::to_string(address.port) : ""));
  }
  if (!address.path.empty()) {
    socket_path_ = address.path;
    return;
  }
  getsockname(listener_.get(), to, &size);
  const std::uint16_t port = v6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                : reinterpret_cast<sockaddr_in*>(&storage)->sin_port;
  name_ += std::to_string(ntohs(port));
}

void HttpServer::Run(bool on_signal, std::optional<std::chrono::milliseconds> most) {
  for (;;) {
    ++rounds_;
    if (stop_) return;
    if (!draining_ && (ends_ || (on_signal && StopRequested()))) Drain();
    TakeAnswers();
    FeedStreams();
    Expire();
    Forget();
    if (draining_ && listener_ && Clock::now() >= last_accept_ && Accept()) listener_.Close();
    if (draining_ && !listener_ && connections_.empty()) return;
    Poll(on_signal, most);
  }
}

void HttpServer::Poll(bool on_signal, std::optional<std::chrono::milliseconds> most) {
  using State = Connection::State;
  std::vector<pollfd> wanted;
  wanted.reserve(connections_.size() + 2);
  bool waits = true;
  for (const auto& c : connections_) {
    unsigned events = c->sent < c->out.size() ? POLLOUT : 0;
    const bool reads = c->state == State::kReading || c->state == State::kLingering ||
                       c->state == State::kStreaming;
    if (reads && !c->ready()) events |= POLLIN;
    waits = waits && !c->ready();
    wanted.push_back({c->fd.get(), static_cast<decltype(pollfd::events)>(events), 0});
  }
  const std::size_t count = connections_.size();
  wanted.push_back({wake_.get(), POLLIN, 0});
  const bool accepts = listener_ && Clock::now() >= pause_ && HasRoom();
  if (accepts) wanted.push_back({listener_.get(), POLLIN, 0});

  std::optional<std::chrono::milliseconds> wait = UntilDeadline();
  if (most) wait = std::min(wait.value_or(*most), *most);
  if (!waits) wait = std::chrono::milliseconds(0);
  timespec limit = {};
  if (wait) {
    limit.tv_sec = static_cast<time_t>(wait->count() / 1000);
    limit.tv_nsec = static_cast<decltype(limit.tv_nsec)>(wait->count() % 1000) * 1000000;
  }
  const sigset_t mask = StopMask();
  const int ready =
      ppoll(wanted.data(), wanted.size(), wait ? &limit : nullptr, on_signal ? &mask : nullptr);
  if (ready < 0) return;
  for (std::size_t i = 0; i < count; ++i) {
    Connection* const connection = connections_[i].get();
    if (connection->state == State::kClosed) continue;  // for another one, meanwhile
    if (wanted[i].revents != 0) {
      Serve(connection, static_cast<unsigned>(wanted[i].revents));
    } else if (connection->ready()) {
      Advance(connection);
    }
  }
  std::uint64_t woken = 0;
  if (wanted[count].revents != 0 && read(wake_.get(), &woken, sizeof(woken)) < 0) errno = 0;
  if (accepts && wanted[count + 1].revents != 0) Accept();
}

/// Until the first deadline of a connection, or the end of a pause; nothing if there is none.
std::optional<std::chrono::milliseconds> HttpServer::UntilDeadline() const {
  const Clock::time_point now = Clock::now();
  Clock::time_point first = pause_ > now ? pause_ : Clock::time_point::max();
  if (draining_ && last_accept_ > now) first = std::min(first, last_accept_);
  for (const auto& c : connections_) {
    if (c->state != Connection::State::kWaiting) first = std::min(first, c->deadline);
  }
  if (first == Clock::time_point::max()) return std::nullopt;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(first - now);
  return std::max(left + std::chrono::milliseconds(1), std::chrono::milliseconds(0));
}

/// Lets in who has connected. Whether nobody else waits.
bool HttpServer::Accept() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    Forget();
    if (!HasRoom()) break;
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      // EINVAL is of a listener that lets nobody in.
      if (errno == EAGAIN || errno == EINVAL) return true;
      pause_ = Clock::now() + kNoDescriptors;
      return false;
    }
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // no error on a Unix socket
    connections_.push_back(std::make_unique<Connection>(next_id_++, std::move(fd), handler_));
    Connection* const connection = connections_.back().get();
    connection->deadline = Clock::now() + (draining_ ? kLastRequest : limits_.idle);
    MakeRoomFor(connection);
    open_ = static_cast<int>(connections_.size());
    // What it asks has mostly come with it: it is answered before the next one could push it out.
    Serve(connection, POLLIN);
  }
  return false;
}

/// Whether somebody can be let in: nobody gives way who waits for an answer.
bool HttpServer::HasRoom() const {
  if (connections_.size() < limits_.connections) return true;
  return !draining_ && std::any_of(connections_.begin(), connections_.end(), [](const auto& c) {
    return c->state != Connection::State::kWaiting;
  });
}

std::size_t HttpServer::CountOf(const std::string& peer) const {
  return static_cast<std::size_t>(std::count_if(
      connections_.begin(), connections_.end(),
      [&](const auto& c) { return c->peer == peer && c->state != Connection::State::kClosed; }));
}

/// Of those that count, whoever moved the fewest bytes for its time; who has only just connected
/// comes last.
HttpServer::Connection* HttpServer::PickSlowest(
    const std::function<bool(const Connection&)>& counts) const {
  const Clock::time_point now = Clock::now();
  const auto rank = [&](const Connection& c) {
    const bool new_here = !c.asked && now - c.came < kGrace;
    return std::make_tuple(new_here, c.speed(now), c.since);
  };
  Connection* slowest = nullptr;
  for (const auto& c : connections_) {
    if (c->state == Connection::State::kClosed || !counts(*c)) continue;
    if (slowest == nullptr || rank(*c) < rank(*slowest)) slowest = c.get();
  }
  return slowest;
}

/// Closes a connection if there are too many with the newest one.
void HttpServer::MakeRoomFor(const Connection* newest) {
  const auto evictable = [&](const Connection& c) {
    return &c != newest && c.state != Connection::State::kWaiting;
  };
  Connection* slowest = nullptr;
  if (CountOf(newest->peer) > limits_.connections_of_peer) {
    slowest =
        PickSlowest([&](const Connection& c) { return evictable(c) && c.peer == newest->peer; });
  } else if (connections_.size() > limits_.connections) {
    std::map<std::string_view, std::size_t> counts;
    for (const auto& c : connections_) ++counts[c->peer];
    std::size_t most = 0;
    for (const auto& c : connections_) {
      if (evictable(*c)) most = std::max(most, counts[c->peer]);
    }
    slowest =
        PickSlowest([&](const Connection& c) { return evictable(c) && counts[c.peer] == most; });
  }
  if (slowest == nullptr) return;
  Close(slowest);
  Forget();
}

/// Whether there may be one stream more: where there are as many as may be, the slowest ends of
/// whoever has most. Nobody gives up its only one.
bool HttpServer::MakeRoomForStream(const Connection* newest) {
  std::map<std::string_view, std::size_t> counts;
  std::size_t all = 0;
  const auto streams = [&](const Connection& c) {
    return &c != newest && c.stream && c.state != Connection::State::kClosed;
  };
  for (const auto& c : connections_) {
    if (!streams(*c)) continue;
    ++counts[c->peer];
    ++all;
  }
  if (all < limits_.streams) return true;
  std::size_t most = 0;
  for (const auto& [peer, count] : counts) most = std::max(most, count);
  const std::size_t own = counts[newest->peer];
  if (own == 0 && most < 2) return false;
  Close(PickSlowest([&](const Connection& c) {
    return streams(c) &&
           (own != 0 && own + 1 >= most ? c.peer == newest->peer : counts[c.peer] == most);
  }));
  return true;
}

/// Refuses bodies that are not whole, while all together are too large: of the peer that has most
/// of them, those that come most slowly.
void HttpServer::MakeRoomForBodies() {
  const auto half = [](const Connection& c) {
    return c.state == Connection::State::kReading && c.parser.body_bytes() != 0;
  };
  while (HeldBytes() > limits_.body_bytes) {
    std::map<std::string_view, std::size_t> bytes;
    for (const auto& c : connections_) {
      if (half(*c)) bytes[c->peer] += c->parser.body_bytes();
    }
    std::size_t most = 0;
    for (const auto& [peer, count] : bytes) most = std::max(most, count);
    Connection* const slowest =
        PickSlowest([&](const Connection& c) { return half(c) && bytes[c.peer] == most; });
    if (slowest == nullptr) return;
    Refuse(slowest, 429);
  }
}

void HttpServer::Serve(Connection* connection, unsigned events) {
  if ((events & POLLIN) != 0) {
    if (!Read(connection)) return;
  } else if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
    return Close(connection);
  }
  if ((events & POLLOUT) != 0 && !Flush(connection)) return;
  Advance(connection);
}

/// Takes what has come. False if the client is gone.
bool HttpServer::Read(Connection* connection) {
  const ssize_t size =
      Retry([&] { return recv(connection->fd.get(), buffer_.data(), buffer_.size(), 0); });
  if (size < 0 && errno == EAGAIN) return true;
  if (size <= 0) {
    Close(connection);
    return false;
  }
  connection->moved += static_cast<std::uint64_t>(size);
  if (connection->state == Connection::State::kReading) {
    connection->in.append(buffer_.data(), static_cast<std::size_t>(size));
  }
  return true;
}

/// Goes on with a connection as far as it can without waiting, but for one request at most: others
/// come first, however many it has sent at once.
void HttpServer::Advance(Connection* connection) {
  using State = Connection::State;
  for (bool parsed = false;;) {
    if (connection->state == State::kReading) {
      if (parsed || connection->in.empty() || !Parse(connection)) return;
      parsed = true;
    } else if (connection->state == State::kWriting) {
      if (!Flush(connection) || connection->sent < connection->out.size()) return;
      connection->out.clear();
      connection->sent = 0;
      HandOver(connection);
    } else {
      return;
    }
  }
}

/// The connection goes away at the next round.
void HttpServer::Close(Connection* connection) {
  if (connection->state == Connection::State::kStreaming) --streams_;
  connection->state = Connection::State::kClosed;
}

/// What follows an answer that has been sent.
void HttpServer::HandOver(Connection* connection) {
  using State = Connection::State;
  const Clock::time_point now = Clock::now();
  if (connection->stream) {
    connection->state = State::kStreaming;
    connection->deadline = Clock::time_point::max();
    ++streams_;
  } else if (connection->keep_alive && !draining_) {
    connection->state = State::kReading;
    connection->deadline = now + limits_.idle;
    connection->Begin();
  } else if (connection->linger) {
    shutdown(connection->fd.get(), SHUT_WR);
    connection->state = State::kLingering;
    connection->deadline = now + kLinger;
  } else {
    Close(connection);
  }
}

/// Gives the parser what has come. Whether there is more to do than to wait for bytes.
bool HttpServer::Parse(Connection* connection) {
  HttpParser& parser = connection->parser;
  const bool begun = parser.begun();
  const bool head = parser.head_complete();
  connection->in.erase(0, parser.Feed(connection->in));
  if (parser.failed() != 0) {
    Refuse(connection, parser.failed());
    return true;
  }
  const Clock::time_point now = Clock::now();
  if (!begun) {
    connection->deadline = now + limits_.head;
    connection->since = now;
  }
  if (!head && parser.head_complete() && Denied(connection)) return true;
  if (!head && parser.head_complete()) connection->deadline = now + limits_.body;
  if (draining_) connection->deadline = std::min(connection->deadline, now + limits_.drain);
  if (!parser.complete()) {
    MakeRoomForBodies();
    if (connection->state != Connection::State::kReading) return true;
    if (!head && parser.head_complete() && parser.expects_continue()) {
      connection->out += "HTTP/1.1 100 Continue\r\n\r\n";
      Flush(connection);
    }
    return false;
  }
  connection->keep_alive = parser.keep_alive();
  HttpRequest request = parser.Take();
  connection->head_only = request.method == "HEAD";
  connection->held = request.body.size();
  connection->state = Connection::State::kWaiting;
  connection->asked = true;
  if (auto answer = handler_.handle(connection->id, std::move(request))) {
    GiveOrStream(connection, *answer);
  }
  return true;
}

/// Whether whoever asks is to get no answer; it has been told so.
bool HttpServer::Denied(Connection* connection) const {
  const HttpRequest& head = connection->parser.head();
  const std::optional<HttpGuard::Denial> denial = guard_.Judge(head);
  if (!denial) return false;
  connection->head_only = head.method == "HEAD";
  HttpAnswer answer = HttpError(denial->status, denial->message);
  if (denial->status == 401) {
    answer.headers =
        "WWW-Authenticate: Bearer realm=\"edgepack-run\"\r\n"
        "WWW-Authenticate: Basic realm=\"edgepack-run\", charset=\"UTF-8\"\r\n";
  }
  Refuse(connection, answer);
  return true;
}

void HttpServer::GiveOrStream(Connection* connection, const HttpAnswer& answer) {
  if (answer.stream && !connection->head_only && !MakeRoomForStream(connection)) {
    return Give(connection, HttpError(503, "as many look at it as may"));
  }
  Give(connection, answer);
}

/// Sends what there is. False if the client is gone.
bool HttpServer::Flush(Connection* connection) {
  while (connection->sent < connection->out.size()) {
    const ssize_t size = Retry([&] {
      return send(connection->fd.get(), connection->out.data() + connection->sent,
                  connection->out.size() - connection->sent, MSG_NOSIGNAL);
    });
    if (size < 0 && errno == EAGAIN) return true;
    if (size < 0) {
      Close(connection);
      return false;
    }
    connection->sent += static_cast<std::size_t>(size);
    connection->moved += static_cast<std::uint64_t>(size);
  }
  return true;
}

void HttpServer::Give(Connection* connection, const HttpAnswer& answer) const {
  if (draining_ || answer.stream) connection->keep_alive = false;
  std::string& out = connection->out;
  out += "HTTP/1.1 " + std::to_string(answer.status) + " " + ReasonOf(answer.status) + "\r\n";
  if (!answer.content_type.empty()) out += "Content-Type: " + answer.content_type + "\r\n";
  if (!answer.stream) out += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n";
  if (answer.status == 429 || answer.status == 503) out += "Retry-After: 1\r\n";
  out += kForBrowsers;
  out += answer.headers;
  out += connection->keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  if (!connection->head_only) out += answer.body;
  connection->stream = answer.stream && !connection->head_only;
  connection->held = 0;
  connection->Begin();
  connection->state = Connection::State::kWriting;
  connection->deadline = Clock::now() + limits_.write;
  handler_.answered(answer.status);
}

/// Answers a request that is none, and closes the connection.
void HttpServer::Refuse(Connection* connection, int status) const {
  Refuse(connection, HttpError(status, RefusalOf(status)));
}

void HttpServer::Refuse(Connection* connection, const HttpAnswer& answer) const {
  connection->keep_alive = false;
  connection->linger = true;
  connection->in = {};
  connection->parser.Take();  // what came of it takes no memory any more
  Give(connection, answer);
}

void HttpServer::TakeAnswers() {
  std::vector<std::pair<std::uint64_t, HttpAnswer>> answers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    answers.swap(answers_);
  }
  for (auto& [id, answer] : answers) {
    const auto found =
        std::find_if(connections_.begin(), connections_.end(),
                     [number = id](const auto& connection) { return connection->id == number; });
    // A client that has gone gets none.
    if (found == connections_.end()) continue;
    Connection* const connection = found->get();
    if (connection->state != Connection::State::kWaiting) continue;
    GiveOrStream(connection, answer);
    Advance(connection);
  }
}

void HttpServer::FeedStreams() {
  if (streams_ == 0) return;
  std::shared_ptr<const std::string> part;
  std::uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    part = part_;
    number = part_number_;
  }
  for (const auto& c : connections_) {
    if (c->state != Connection::State::kStreaming || c->sent < c->out.size()) continue;
    c->deadline = Clock::time_point::max();
    if (part == nullptr || c->part == number) continue;
    c->part = number;
    c->out = *part;
    c->sent = 0;
    c->deadline = Clock::now() + limits_.write;
    Flush(c.get());
  }
}

void HttpServer::Expire() {
  using State = Connection::State;
  const Clock::time_point now = Clock::now();
  for (const auto& c : connections_) {
    if (c->state == State::kWaiting || c->deadline > now) continue;
    if (c->state == State::kReading && c->parser.begun()) {
      Refuse(c.get(), 408);
      Advance(c.get());
    } else {
      Close(c.get());
    }
  }
}

void HttpServer::Forget() {
  const auto closed = [](const auto& c) { return c->state == Connection::State::kClosed; };
  connections_.erase(std::remove_if(connections_.begin(), connections_.end(), closed),
                     connections_.end());
  open_ = static_cast<int>(connections_.size());
}

/// Stops: whoever has connected may finish what it has begun, or say what it wants at once.
void HttpServer::Drain() {
  draining_ = true;
  const bool tcp = socket_path_.empty();
  LetNobodyIn(listener_.get(), tcp);
  const Clock::time_point now = Clock::now();
  last_accept_ = tcp ? now + kLastRequest : now;
  for (const auto& c : connections_) {
    if (c->state == Connection::State::kReading) {
      c->deadline = std::min(c->deadline, now + (c->idle() ? kLastRequest : limits_.drain));
    }
  }
}

std::size_t HttpServer::HeldBytes() const {
  std::size_t bytes = 0;
  for (const auto& c : connections_) bytes += c->parser.body_bytes() + c->held;
  return bytes;
}

void HttpServer::Answer(std::uint64_t id, HttpAnswer answer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    answers_.emplace_back(id, std::move(answer));
  }
  Wake();
}

void HttpServer::Publish(std::string part) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    part_ = std::make_shared<const std::string>(std::move(part));
    ++part_number_;
  }
  Wake();
}

void HttpServer::Stop() {
  stop_ = true;
  Wake();
}

void HttpServer::End() {
  ends_ = true;
  Wake();
}

void HttpServer::Wake() const {
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) < 0) errno = 0;  // it is awake, then
}

}  // namespace edgepack
