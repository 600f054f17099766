#include "serve.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>

#include <edgepack/errors.h>

#include "common/json.h"
#include "inference_api.h"
#include "metrics.h"
#include "metrics_file.h"
#include "notify.h"
#include "queue.h"
#include "worker.h"

namespace edgepack {
namespace {

/// Of a photo as it is posted.
constexpr std::size_t kMostPhotoBytes = std::size_t{16} << 20U;
constexpr std::size_t kMostOtherBytes = 4096;
/// That wait for the model and have a connection each, besides those that any server has.
constexpr std::size_t kMostWaiting = 512;

using ServeClock = std::chrono::steady_clock;

double SecondsSince(ServeClock::time_point start) {
  return std::chrono::duration<double>(ServeClock::now() - start).count();
}

bool IsPhotoType(const std::string& content_type) {
  return content_type == "image/jpeg" || content_type == "image/png";
}

/// Web pages can send neither type, nor that header, to another server unless it says so. Who sends
/// no type may be one.
bool HasTensors(const HttpRequest& request) {
  return request.content_type == "application/json" ||
         request.content_type == "application/octet-stream" ||
         (request.content_type.empty() && request.json_bytes);
}

/// As many connections as may wait for the model come on top of the others.
HttpLimits LimitsOf(std::size_t queue) {
  HttpLimits limits;
  limits.connections += std::min(queue, kMostWaiting);
  limits.connections_of_peer = limits.connections / 4 * 3;
  return limits;
}

/// What a mistake in a request is answered with, and what is wrong with the model or the bundle.
int StatusOf(const Error& error) {
  const bool clients = error.kind == "request" || error.kind == "image" || error.kind == "usage" ||
                       error.kind == "model-input" || error.kind == "position";
  return clients ? 400 : 500;
}

std::string MessageOf(const Error& error) {
  return error.hint.empty() ? error.message : error.message + "; " + error.hint;
}

HttpAnswer Json(std::string text) { return {200, "application/json", std::move(text)}; }

class ModelServer {
 public:
  ModelServer(const ServedModel& model, const HttpAddress& address, HttpAccess access,
              std::size_t queue)
      : model_(model),
        queue_most_(queue),
        queue_(queue),
        path_("/v2/models/" + model.name),
        server_("--serve", address,
                {[this](const HttpRequest& head) { return MostBody(head); },
                 [this](std::uint64_t id, HttpRequest request) {
                   return Handle(id, std::move(request));
                 },
                 [this](int status) { metrics_.CountAnswer(status); }},
                LimitsOf(queue), std::move(access)) {
    std::vector<TensorInfo> inputs;
    for (const TensorView& input : model.inputs) inputs.push_back(*input.info);
    most_tensor_bytes_ = MostInferenceBytes(inputs);
    metadata_ = ModelMetadata(model.name, inputs, model.outputs);
  }

  [[nodiscard]] const std::string& name() const { return server_.name(); }

  [[nodiscard]] std::string MetricsText() const {
    return metrics_.Text({queue_.size(), queue_most_, server_.connections(),
                          model_.processor ? model_.processor() : std::nullopt, model_.sight});
  }

  void Run() {
    const Notifier notifier = Notifier::FromEnvironment();
    Worker serving([&] {
      const AtExit closing([&] { queue_.Close(); });
      // Twice as often as it is looked at.
      std::optional<std::chrono::milliseconds> most = notifier.interval();
      if (most) *most /= 2;
      server_.Run(true, most);
    });
    const AtExit stopping([&] { server_.Stop(); });
    notifier.Send("READY=1");
    std::uint64_t rounds = 0;
    while (!queue_.ended()) {
      std::optional<Job> job = queue_.Take(notifier.interval());
      // Both threads have to be alive.
      if (const std::uint64_t now = server_.rounds(); now != rounds) {
        rounds = now;
        notifier.Send("WATCHDOG=1");
      }
      if (job) server_.Answer(job->id, Infer(*job));
    }
    notifier.Send("STOPPING=1");
    serving.Join();
    if (lost_) throw Error(*lost_);
  }

 private:
  struct Job {
    std::uint64_t id = 0;
    HttpRequest request;
    ServeClock::time_point came;
  };

  /// The part of a path behind the model's name: "", "/ready", "/infer". Nothing if it is not this
  /// model's.
  [[nodiscard]] std::optional<std::string> ModelPath(std::string path) const {
    if (path.substr(0, path_.size()) != path_) return std::nullopt;
    path.erase(0, path_.size());
    constexpr std::string_view kVersion = "/versions/1";
    if (path.substr(0, kVersion.size()) == kVersion) path.erase(0, kVersion.size());
    return path;
  }

  [[nodiscard]] std::size_t MostBody(const HttpRequest& head) const {
    if (ModelPath(head.path) != "/infer") return kMostOtherBytes;
    return IsPhotoType(head.content_type) ? kMostPhotoBytes : most_tensor_bytes_;
  }

  std::optional<HttpAnswer> Handle(std::uint64_t id, HttpRequest request) {
    const std::optional<std::string> part = ModelPath(request.path);
    if (part == "/infer") return Enqueue(id, std::move(request));
    std::optional<HttpAnswer> answer = Look(request.path, part);
    if (!answer) return HttpError(404, "there is nothing at " + request.path);
    if (request.method != "GET" && request.method != "HEAD") {
      answer = HttpError(405, request.path + " takes GET");
      answer->headers = "Allow: GET, HEAD\r\n";
    }
    return answer;
  }

  std::optional<HttpAnswer> Enqueue(std::uint64_t id, HttpRequest request) {
    if (request.method != "POST") {
      HttpAnswer answer = HttpError(405, request.path + " takes POST");
      answer.headers = "Allow: POST\r\n";
      return answer;
    }
    if (!IsPhotoType(request.content_type) && !HasTensors(request)) {
      const std::string& type = request.content_type;
      return HttpError(415, (type.empty() ? "no Content-Type: it has to be one of "
                                          : "Content-Type " + type + " is none of ") +
                                "application/json, application/octet-stream, "
                                "image/jpeg, image/png");
    }
    if (queue_.TryPut({id, std::move(request), ServeClock::now()})) return std::nullopt;
    return HttpError(429, "the queue is full: " + std::to_string(queue_most_) + " requests wait");
  }

  /// What can be read; nothing if there is no such path.
  [[nodiscard]] std::optional<HttpAnswer> Look(const std::string& path,
                                               const std::optional<std::string>& part) const {
    if (path == "/v2") {
      return Json("{\"name\":\"edgepack-run\",\"version\":\"" EDGEPACK_VERSION
                  "\",\"extensions\":[\"binary_tensor_data\"]}\n");
    }
    if (path == "/v2/health/live") return Json("{\"live\":true}\n");
    if (path == "/v2/health/ready") return Json("{\"ready\":true}\n");
    if (path == "/metrics") {
      HttpAnswer answer = Json(MetricsText());
      answer.content_type = kMetricsType;
      return answer;
    }
    if (part == "") return Json(metadata_);
    if (part == "/ready") {
      JsonWriter json;
      json.BeginObject().Key("name").String(model_.name).Key("ready").Bool(true).EndObject();
      return Json(json.text() + "\n");
    }
    return std::nullopt;
  }

  HttpAnswer Infer(const Job& job) {
    try {
      double run_ms = 0;
      HttpAnswer answer;
      if (!model_.states.empty()) model_.reset();
      if (IsPhotoType(job.request.content_type)) {
        answer = Json(model_.photo_line(job.request.body, &run_ms));
      } else {
        const InferenceRequest wanted =
            ReadInference(job.request, model_.inputs, model_.outputs, model_.states);
        const ServeClock::time_point start = ServeClock::now();
        if (model_.sight != nullptr) model_.sight->AddTensors(model_.inputs);
        const std::vector<TensorView>& outputs = model_.run();
        run_ms = SecondsSince(start) * 1000;
        answer = WriteInference(wanted, model_.name, outputs);
      }
      metrics_.AddInference(SecondsSince(job.came), run_ms / 1000);
      if (model_.sight != nullptr) model_.sight->AddRun(run_ms / 1000);
      return answer;
    } catch (const Error& error) {
      if (model_.sight != nullptr) model_.sight->AddError(error);
      if (error.exit_code == kExitGpuLost && !lost_) {
        lost_ = error;
        server_.End();  // another process may find the GPU well
      }
      return HttpError(StatusOf(error), MessageOf(error));
    } catch (const std::bad_alloc&) {
      return HttpError(503, "there is no memory for this request");
    } catch (const std::exception& error) {
      return HttpError(500, error.what());
    }
  }

  const ServedModel& model_;
  const std::size_t queue_most_;
  Queue<Job> queue_;
  std::string path_;
  std::string metadata_;
  std::size_t most_tensor_bytes_ = 0;
  ServerMetrics metrics_;
  /// Why this ends although nobody asked for it.
  std::optional<Error> lost_;
  HttpServer server_;
};

}  // namespace

void Serve(const ServedModel& model, const HttpAddress& address, HttpAccess access,
           std::size_t queue, std::ostream& err) {
  ModelServer server(model, address, std::move(access), queue);
  err << "serving " << model.name << " on " << server.name() << std::endl;
  std::optional<MetricsFile> file;
  if (model.metrics) file.emplace(*model.metrics, [&] { return server.MetricsText(); });
  server.Run();
}

}  // namespace edgepack
