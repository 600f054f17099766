#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "http_access.h"
#include "http_address.h"
#include "http_parser.h"

namespace edgepack {

struct HttpAnswer {
  int status = 200;
  std::string content_type = {};
  std::string body = {};
  std::string headers = {};  ///< more of them, each with its line's end
  bool stream = false;       ///< the body is followed by what is published, until the client goes
};

/// What a server does with requests. All is called on the server's thread.
struct HttpHandler {
  /// How many bytes the body of a request may have.
  std::function<std::size_t(const HttpRequest& head)> most_body;
  /// The answer; nothing if somebody gives it later, by `HttpServer::Answer` with this number.
  std::function<std::optional<HttpAnswer>(std::uint64_t id, HttpRequest request)> handle;
  /// Of each answer, also those of requests that were none.
  std::function<void(int status)> answered;
};

/// What clients may take. A slow or silent one costs a connection for a limited time, and no
/// thread.
struct HttpLimits {
  /// When there are more, one gives way that does not wait for its answer: of the peer that has
  /// most, whoever moved the fewest bytes since it began what it does.
  std::size_t connections = 128;
  std::size_t connections_of_peer = 96;
  /// Of streams, which end when their clients go: whoever has most of them gives one up.
  std::size_t streams = 16;
  /// Of bodies that have come and are not answered, all together.
  std::size_t body_bytes = std::size_t{64} << 20U;
  std::chrono::milliseconds head{10000};   ///< from a request's first byte to the end of its head
  std::chrono::milliseconds body{60000};   ///< from there to its last byte
  std::chrono::milliseconds write{60000};  ///< for an answer to be taken
  std::chrono::milliseconds idle{30000};   ///< between two requests
  std::chrono::milliseconds drain{5000};   ///< for requests that have begun when the server stops
};

/// An HTTP/1.1 server on one thread.
class HttpServer {
 public:
  /// Listens from now on. Throws UsageError about `option` if it cannot.
  HttpServer(const std::string& option, const HttpAddress& address, HttpHandler handler,
             HttpLimits limits = {}, HttpAccess access = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  HttpServer(HttpServer&&) = delete;
  HttpServer& operator=(HttpServer&&) = delete;

  /// "http://127.0.0.1:8080" or "unix:/run/x".
  [[nodiscard]] const std::string& name() const { return name_; }

  /// Serves until `Stop`, or with `on_signal` until SIGTERM or SIGINT, which must be held
  /// (HoldStopSignals). Then nobody else is let in; whoever has connected by then is, and what they
  /// ask is answered. Comes around at least each `most`, if that is given.
  void Run(bool on_signal, std::optional<std::chrono::milliseconds> most = std::nullopt);

  // From any thread:

  /// Answers request `id`.
  void Answer(std::uint64_t id, HttpAnswer answer);
  /// Sends this to all streams. Those that still send what was before get the newest afterwards.
  void Publish(std::string part);
  [[nodiscard]] int streams() const { return streams_; }
  [[nodiscard]] int connections() const { return open_; }
  /// How often the server came around: it lives as long as this grows.
  [[nodiscard]] std::uint64_t rounds() const { return rounds_; }
  void Stop();
  /// Ends as on a signal: whoever has connected gets an answer. From any thread.
  void End();

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection;

  void Listen(const std::string& option, const HttpAddress& address);
  bool Accept();
  [[nodiscard]] bool HasRoom() const;
  [[nodiscard]] std::size_t CountOf(const std::string& peer) const;
  Connection* PickSlowest(const std::function<bool(const Connection&)>& counts) const;
  void MakeRoomFor(const Connection* newest);
  bool MakeRoomForStream(const Connection* newest);
  void MakeRoomForBodies();
  void GiveOrStream(Connection* connection, const HttpAnswer& answer);
  void Poll(bool on_signal, std::optional<std::chrono::milliseconds> most);
  [[nodiscard]] std::optional<std::chrono::milliseconds> UntilDeadline() const;
  void Serve(Connection* connection, unsigned events);
  bool Read(Connection* connection);
  void Close(Connection* connection);
  void Advance(Connection* connection);
  bool Parse(Connection* connection);
  bool Denied(Connection* connection) const;
  bool Flush(Connection* connection);
  void HandOver(Connection* connection);
  void Give(Connection* connection, const HttpAnswer& answer) const;
  void Refuse(Connection* connection, int status) const;
  void Refuse(Connection* connection, const HttpAnswer& answer) const;
  void TakeAnswers();
  void FeedStreams();
  void Expire();
  void Drain();
  void Forget();
  [[nodiscard]] std::size_t HeldBytes() const;
  void Wake() const;

  HttpHandler handler_;
  HttpGuard guard_;
  HttpLimits limits_;
  std::string name_;
  std::filesystem::path socket_path_;
  Fd listener_;
  Fd wake_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<char> buffer_;
  std::uint64_t next_id_ = 1;
  bool draining_ = false;
  Clock::time_point pause_;        // of accepting, when there were no descriptors left
  Clock::time_point last_accept_;  // when draining

  std::atomic<bool> stop_{false};
  std::atomic<bool> ends_{false};
  std::atomic<int> streams_{0};
  std::atomic<int> open_{0};
  std::atomic<std::uint64_t> rounds_{0};
  std::mutex mutex_;  // of what follows
  std::vector<std::pair<std::uint64_t, HttpAnswer>> answers_;
  std::shared_ptr<const std::string> part_;
  std::uint64_t part_number_ = 0;
};

/// {"error": message}, as the open inference protocol has it.
HttpAnswer HttpError(int status, const std::string& message);

}  // namespace edgepack
