#include <atomic>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <sstream>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <opencv2/imgcodecs.hpp>

#include "common/json.h"
#include "http_client.h"
#include "http_server.h"
#include "metrics.h"
#include "run_app.h"
#include "serve.h"
#include "support.h"
#include "watch.h"

namespace edgepack::testing {
namespace {

constexpr const char* kInfer = "/v2/models/tiny/infer";

HttpAddress At(const std::filesystem::path& path) {
  return HttpAddress::Parse("--serve", "unix:" + path.string());
}

std::string Status(const std::string& answer) { return answer.substr(0, 12); }

/// The program's thread, which ends by SIGTERM.
template <typename Function>
class Served {
 public:
  explicit Served(Function function) : thread_(std::move(function)) {}
  ~Served() {
    if (thread_.joinable()) Stop();
  }
  void Stop() {
    Signal();
    thread_.join();
  }
  void Signal() { kill(getpid(), SIGTERM); }
  void Join() { thread_.join(); }

 private:
  std::thread thread_;
};

/// A model whose runs wait until they are let go.
class HeldModel {
 public:
  HeldModel() {
    x_ = Info(DType::kFloat32, {2});
    x_.name = "x";
    model_.name = "tiny";
    model_.inputs = {{&x_, values_}};
    outputs_ = model_.inputs;
    model_.outputs = {x_};
    model_.run = [this]() -> const std::vector<TensorView>& {
      std::unique_lock<std::mutex> lock(mutex_);
      ++begun_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return free_; });
      return outputs_;
    };
  }
  [[nodiscard]] const ServedModel& model() const { return model_; }
  void WaitForRun() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return begun_ > 0; });
  }
  void Free() {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }

 private:
  TensorInfo x_;
  float values_[2] = {};
  ServedModel model_;
  std::vector<TensorView> outputs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int begun_ = 0;
  bool free_ = false;
};

std::string Tensor(int first) {
  return R"({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [)" +
         std::to_string(first) + ", 0]}]}";
}

/// Requests that are not answered at once, by nobody.
HttpHandler Handler() {
  return {[](const HttpRequest&) { return std::size_t{100}; },
          [](std::uint64_t, const HttpRequest& request) {
            return HttpAnswer{200, "text/plain", request.method + " " + request.path};
          },
          [](int) {}};
}

}  // namespace

TEST_CASE("a model over HTTP") {
  HoldStopSignals();
  const TempFolder folder;
  WriteBundle(folder.path());
  const std::filesystem::path socket = folder / "socket";
  std::ostringstream out;
  std::ostringstream err;
  int code = -1;
  Served server([&] {
    code = RunApp({"--serve", "unix:" + socket.string(), "--bundle", folder.path().string()}, out,
                  err);
  });
  {
    HttpClient client(socket);
    CHECK(BodyOf(client.Get("/v2/health/live")) == "{\"live\":true}\n");
    CHECK(BodyOf(client.Get("/v2/health/ready")) == "{\"ready\":true}\n");
    CHECK(Contains(client.Get("/v2"), "\"extensions\":[\"binary_tensor_data\"]"));
    CHECK(BodyOf(client.Get("/v2/models/tiny/ready")) == "{\"name\":\"tiny\",\"ready\":true}\n");
    CHECK(Contains(client.Get("/v2/models/tiny/versions/1"), "\"datatype\":\"FP32\""));
    CHECK(Status(client.Get("/v2/models/other")) == "HTTP/1.1 404");
    CHECK(Status(client.Get(kInfer)) == "HTTP/1.1 405");
    CHECK(Status(client.Post("/v2", "{}")) == "HTTP/1.1 405");
    CHECK(Status(client.Post(kInfer, "x", "text/plain")) == "HTTP/1.1 415");
    client.Send(std::string("POST ") + kInfer +
                " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}");
    CHECK(Status(client.Receive()) == "HTTP/1.1 415");
    CHECK(Status(client.Post(kInfer, "{}")) == "HTTP/1.1 400");
    CHECK(Contains(client.Post(kInfer, "x", "image/png"), "no preprocessing"));
    const std::string answer = client.Post(
        kInfer,
        R"({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})");
    CHECK(Contains(answer, R"("shape":[1,4],"data":[22,44,66,88])"));
    const std::string metrics = client.Get("/metrics");
    CHECK(Contains(metrics, "edgepack_http_answers_total{code=\"405\"} 2\n"));
    CHECK(Contains(metrics, "edgepack_inference_seconds_count 1\n"));
    CHECK(Contains(metrics, "edgepack_model_seconds_bucket{le=\"+Inf\"} 1\n"));
    CHECK(Contains(metrics, "edgepack_queue_capacity 8\n"));
  }
  server.Stop();
  CHECK(code == 0);
  CHECK(out.str().empty());
  CHECK(err.str() == "serving tiny on unix:" + socket.string() + "\n");
  CHECK_FALSE(std::filesystem::exists(socket));
}

TEST_CASE("a queue that is full, and a stop while it is") {
  HoldStopSignals();
  const TempFolder folder;
  HeldModel held;
  std::ostringstream err;
  Served server([&] { Serve(held.model(), At(folder / "socket"), {}, 1, err); });
  HttpClient first(folder / "socket");
  HttpClient second(folder / "socket");
  HttpClient third(folder / "socket");
  const auto post = [](const std::string& body) {
    return std::string("POST ") + kInfer +
           " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
           "Content-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  };
  first.Send(post(Tensor(1)));
  held.WaitForRun();
  second.Send(post(Tensor(2)));
  while (!Contains(third.Get("/metrics"), "edgepack_queue_length 1\n")) {
  }
  const std::string refused = third.Post(kInfer, Tensor(3));
  CHECK(Status(refused) == "HTTP/1.1 429");
  CHECK(Contains(refused, "Retry-After: 1\r\n"));
  // The connection stays, until the server goes.
  CHECK(Status(third.Get("/v2")) == "HTTP/1.1 200");
  const std::string half = post(Tensor(4));
  third.Send(half.substr(0, 20));
  server.Signal();
  while (!HttpClient::Refused(folder / "socket")) std::this_thread::yield();
  held.Free();
  CHECK(Contains(first.Receive(), "\"data\":[1,0]"));
  const std::string last = second.Receive();
  CHECK(Contains(last, "\"data\":[2,0]"));
  CHECK(Contains(last, "Connection: close\r\n"));
  CHECK(second.Closed());
  third.Send(half.substr(20));
  CHECK(Contains(third.Receive(), "\"data\":[4,0]"));
  server.Join();
}

TEST_CASE("who has connected before a stop is answered, and nobody else is let in") {
  const TempFolder folder;
  for (const std::string& where : {"unix:" + (folder / "socket").string(), std::string("0")}) {
    CAPTURE(where);
    HoldStopSignals();
    std::atomic<std::uint64_t> held{0};
    HttpHandler handler = Handler();
    handler.handle = [&](std::uint64_t id, const HttpRequest& request) {
      if (request.path != "/held")
        return std::optional(HttpAnswer{200, "text/plain", request.path});
      held = id;
      return std::optional<HttpAnswer>();
    };
    HttpLimits limits;
    limits.connections = 1;  // the others wait where the kernel keeps them
    HttpServer server("--serve", HttpAddress::Parse("--serve", where), handler, limits);
    const std::string name = server.name();
    const HttpAddress address =
        HttpAddress::Parse("--serve", name.substr(0, 5) == "unix:" ? name : name.substr(7));
    Served thread([&] { server.Run(true, std::chrono::milliseconds(10)); });
    HttpClient first(address);
    first.Send("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
    while (held == 0) std::this_thread::yield();
    HttpClient second(address);
    second.Send("GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n");
    HttpClient third(address);
    third.Send("GET /third HTTP/1.1\r\nHost: localhost\r\n\r\n");
    thread.Signal();
    // In the round after the one that the signal ends, or that has ended when it comes.
    for (const std::uint64_t round = server.rounds(); server.rounds() < round + 3;) {
      std::this_thread::yield();
    }
    CHECK(HttpClient::Refused(address));
    server.Answer(held, {200, "text/plain", "at last"});
    CHECK(BodyOf(first.Receive()) == "at last");
    CHECK(BodyOf(second.Receive()) == "/second");
    CHECK(BodyOf(third.Receive()) == "/third");
    // Nor where nobody waits any more: listen(2) with no backlog would take one.
    CHECK(HttpClient::Refused(address));
    thread.Join();
    CHECK(HttpClient::Refused(address));
  }
}

TEST_CASE("clients that are slow") {
  const TempFolder folder;
  HttpLimits limits;
  // Not less: a client that is none of the slow has to send within it on a busy machine.
  limits.head = limits.body = std::chrono::seconds(1);
  HttpServer server("--serve", At(folder / "socket"), Handler(), limits);
  std::thread thread([&] { server.Run(false); });
  {
    HttpClient slow(folder / "socket");
    slow.Send("GET / HT");
    HttpClient body(folder / "socket");
    body.Send("POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\nhalf");
    CHECK(Status(slow.Receive()) == "HTTP/1.1 408");
    CHECK(slow.Closed());
    CHECK(Status(body.Receive()) == "HTTP/1.1 408");
  }
  server.Stop();
  thread.join();
}

TEST_CASE("more clients than there may be") {
  const TempFolder folder;
  HttpLimits limits;
  limits.connections = 2;
  HttpServer server("--serve", At(folder / "socket"), Handler(), limits);
  std::thread thread([&] { server.Run(false); });
  {
    HttpClient oldest(folder / "socket");
    CHECK(BodyOf(oldest.Get("/a")) == "GET /a");
    HttpClient other(folder / "socket");
    CHECK(BodyOf(other.Get("/b")) == "GET /b");
    HttpClient newest(folder / "socket");
    CHECK(BodyOf(newest.Get("/c")) == "GET /c");
    CHECK(oldest.Closed());
    CHECK(BodyOf(other.Get("/d")) == "GET /d");
  }
  server.Stop();
  thread.join();
}

TEST_CASE("whoever moves least gives way") {
  const TempFolder folder;
  HttpLimits limits;
  limits.connections = 4;
  HttpServer server("--serve", At(folder / "socket"), Handler(), limits);
  std::thread thread([&] { server.Run(false); });
  {
    // One that has sent half of a body, and three that drip.
    HttpClient busy(folder / "socket");
    busy.Send("POST /busy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" +
              std::string(99, 'x'));
    std::vector<std::unique_ptr<HttpClient>> slow;
    for (int i = 0; i < 3; ++i) {
      slow.push_back(std::make_unique<HttpClient>(folder / "socket"));
      slow.back()->Send("G");
    }
    while (server.connections() != 4) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    for (int i = 0; i < 3; ++i) {
      HttpClient honest(folder / "socket");
      CHECK(BodyOf(honest.Get("/honest")) == "GET /honest");
    }
    busy.Send("x");
    CHECK(BodyOf(busy.Receive()) == "POST /busy");
    CHECK(slow[0]->Closed());
  }
  server.Stop();
  thread.join();
}

TEST_CASE("many requests at once wait for those of others") {
  const TempFolder folder;
  std::atomic<int> handled{0};
  HttpHandler handler = Handler();
  handler.handle = [&](std::uint64_t, const HttpRequest& request) {
    return HttpAnswer{200, "text/plain", request.path + " " + std::to_string(++handled)};
  };
  HttpServer server("--serve", At(folder / "socket"), handler);
  HttpClient many(folder / "socket");
  HttpClient other(folder / "socket");
  std::string requests;
  for (int i = 0; i < 100; ++i) requests += "GET /many HTTP/1.1\r\nHost: localhost\r\n\r\n";
  many.Send(requests);
  other.Send("GET /other HTTP/1.1\r\nHost: localhost\r\n\r\n");
  std::thread thread([&] { server.Run(false); });
  const std::string answer = BodyOf(other.Receive());
  CHECK(std::stoi(answer.substr(answer.find(' '))) <= 3);
  for (int i = 0; i < 100; ++i) CHECK(Contains(many.Receive(), "/many"));
  server.Stop();
  thread.join();
}

TEST_CASE("bodies that are not whole give way to those that come") {
  const TempFolder folder;
  HttpHandler handler = Handler();
  handler.most_body = [](const HttpRequest&) { return std::size_t{1000}; };
  HttpLimits limits;
  limits.body_bytes = 1500;
  HttpServer server("--serve", At(folder / "socket"), handler, limits);
  std::thread thread([&] { server.Run(false); });
  {
    const std::string head = "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n";
    HttpClient slow(folder / "socket");
    slow.Send(head + std::string(900, 'x'));
    while (server.connections() != 1) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    HttpClient honest(folder / "socket");
    honest.Send(head + std::string(900, 'x'));
    CHECK(Status(slow.Receive()) == "HTTP/1.1 429");
    honest.Send(std::string(100, 'x'));
    CHECK(BodyOf(honest.Receive()) == "POST /x");
  }
  server.Stop();
  thread.join();
}

TEST_CASE("no more streams than there may be") {
  const TempFolder folder;
  HttpHandler handler = Handler();
  handler.handle = [](std::uint64_t, const HttpRequest& request) {
    HttpAnswer answer{200, "text/plain", {}};
    answer.stream = request.path == "/stream";
    return answer;
  };
  HttpLimits limits;
  limits.streams = 2;
  HttpServer server("--serve", At(folder / "socket"), handler, limits);
  std::thread thread([&] { server.Run(false); });
  {
    std::vector<std::unique_ptr<HttpClient>> viewers;
    for (int i = 0; i < 4; ++i) {
      viewers.push_back(std::make_unique<HttpClient>(folder / "socket"));
      CHECK(Status(viewers.back()->Get("/stream")) == "HTTP/1.1 200");
    }
    CHECK(viewers[0]->Closed());
    CHECK(viewers[1]->Closed());
    HttpClient head(folder / "socket");
    head.Send("HEAD /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(Status(head.Receive()) == "HTTP/1.1 200");
    while (server.streams() != 2) std::this_thread::yield();
  }
  server.Stop();
  thread.join();
}

TEST_CASE("who may not ask is told so before its body") {
  const TempFolder folder;
  HttpAccess access;
  access.token = "0123456789abcdef";
  HttpServer server("--serve", At(folder / "socket"), Handler(), {}, access);
  std::thread thread([&] { server.Run(false); });
  const auto ask = [&](const std::string& headers) {
    HttpClient client(folder / "socket");
    client.Send("POST /x HTTP/1.1\r\nContent-Length: 50\r\n" + headers + "\r\n");
    const std::string answer = client.Receive();
    CHECK(client.Closed());
    CHECK(Contains(answer, "\r\nCross-Origin-Resource-Policy: same-origin\r\n"));
    CHECK(Contains(answer, "\r\nX-Content-Type-Options: nosniff\r\n"));
    return answer;
  };
  const std::string own = "Host: localhost\r\n";
  CHECK(Status(ask("Host: evil.example\r\n")) == "HTTP/1.1 403");
  CHECK(Status(ask(own + "Origin: http://evil.example\r\n")) == "HTTP/1.1 403");
  CHECK(Status(ask(own + "Sec-Fetch-Site: cross-site\r\n")) == "HTTP/1.1 403");
  CHECK(Contains(ask(own), "\r\nWWW-Authenticate: Bearer realm="));
  CHECK(Status(ask(own + "Authorization: Bearer 0123456789abcdeF\r\n")) == "HTTP/1.1 401");
  HttpClient client(folder / "socket");
  client.Send("GET /x HTTP/1.1\r\n" + own + "Authorization: Bearer 0123456789abcdef\r\n\r\n");
  CHECK(BodyOf(client.Receive()) == "GET /x");
  server.Stop();
  thread.join();
}

TEST_CASE("ways to ask") {
  const TempFolder folder;
  HttpServer server("--serve", At(folder / "socket"), Handler());
  std::thread thread([&] { server.Run(false); });
  {
    HttpClient client(folder / "socket");
    client.Send(
        "GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /2 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(BodyOf(client.Receive()) == "GET /1");
    CHECK(BodyOf(client.Receive()) == "GET /2");
    client.Send(
        "POST /4 HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    CHECK(client.Receive() == "HTTP/1.1 100 Continue\r\n\r\n");
    client.Send("hi");
    CHECK(BodyOf(client.Receive()) == "POST /4");
    client.Send(
        "POST /5 HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
        "101\r\n\r\n");
    CHECK(Status(client.Receive()) == "HTTP/1.1 413");
    CHECK(client.Closed());
    HttpClient head(folder / "socket");
    head.Send("HEAD /3 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    const std::string only = head.Receive();
    CHECK(Contains(only, "Content-Length: 7\r\n"));
    CHECK(BodyOf(only).empty());
    HttpClient old(folder / "socket");
    old.Send("GET /6 HTTP/1.0\r\n\r\n");
    CHECK(Contains(old.Receive(), "Connection: close\r\n"));
    CHECK(old.Closed());
  }
  // Another server does not take the socket of one that lives, but that of one that was killed.
  CHECK(Contains(MessageOf([&] { HttpServer("--serve", At(folder / "socket"), Handler()); }),
                 "Address already in use"));
  server.Stop();
  thread.join();
  WriteFile(folder / "file", "no socket");  // which stays
  CHECK(Contains(MessageOf([&] { HttpServer("--serve", At(folder / "file"), Handler()); }),
                 "cannot listen on unix:"));
  CHECK(ReadFile(folder / "file") == "no socket");
}

TEST_CASE("all of a stream's clients get the newest") {
  const TempFolder folder;
  HttpHandler handler = Handler();
  handler.handle = [](std::uint64_t, const HttpRequest&) {
    HttpAnswer answer;
    answer.content_type = "text/plain";
    answer.stream = true;
    return answer;
  };
  HttpServer server("--serve", At(folder / "socket"), handler);
  std::thread thread([&] { server.Run(false); });
  {
    HttpClient one(folder / "socket");
    CHECK_FALSE(Contains(one.Get("/"), "Content-Length"));
    HttpClient two(folder / "socket");
    two.Get("/");
    while (server.streams() != 2) std::this_thread::yield();
    server.Publish("first\r\n\r\n");
    CHECK(one.Receive() == "first\r\n\r\n");
    CHECK(two.Receive() == "first\r\n\r\n");
    server.Publish("second\r\n\r\n");
    CHECK(one.Receive() == "second\r\n\r\n");
  }
  while (server.streams() != 0) std::this_thread::yield();
  server.Stop();
  thread.join();
}

TEST_CASE("addresses") {
  const auto parse = [](const std::string& text) { return HttpAddress::Parse("--serve", text); };
  CHECK(parse("8080").host == "127.0.0.1");
  CHECK(parse("8080").port == 8080);
  CHECK(parse("0.0.0.0:0").host == "0.0.0.0");
  CHECK(parse("localhost:1").host == "127.0.0.1");
  CHECK(parse("[::1]:80").host == "::1");
  CHECK(parse("[::1]:80").port == 80);
  CHECK(parse("unix:/run/x").path == "/run/x");
  for (const char* bad : {"", "x", "65536", "host:80", "127.0.0.1:", "127.0.0.1:-1",
                          "unix:", "[127.0.0.1", ":80", "1.2.3:80"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse(bad), UsageError);
  }
  CHECK_THROWS_AS(parse("unix:/" + std::string(200, 'a')), UsageError);
}

TEST_CASE("metrics say which processor runs a model that has a plan for a GPU") {
  const ServerMetrics metrics;
  CHECK(!Contains(metrics.Text({}), "gpu"));
  const std::string text = metrics.Text({0, 0, 0, Processor{false, "", 3, "it is gone"}});
  CHECK(Contains(text, "\nedgepack_on_gpu 0\n"));
  CHECK(Contains(text, "\nedgepack_gpu_failures_total 3\n"));
  FrameMetrics frames;
  frames.SetProcessor(Processor{true, "a GPU", 0, ""});
  CHECK(Contains(frames.Text(), "\nedgepack_on_gpu 1\n"));
}

}  // namespace edgepack::testing
