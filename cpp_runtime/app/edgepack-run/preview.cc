#include "preview.h"

#include <utility>

#include "platform/opencv/draw.h"

namespace edgepack {
namespace {

constexpr std::size_t kMostPreviewBody = 0;

constexpr const char* kStreamType = "multipart/x-mixed-replace; boundary=edgepack-frame";

constexpr const char* kPage = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>edgepack-run</title>
<style>
  :root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
  body { margin: 0 auto; max-width: 60rem; padding: .5rem 1rem; }
  h1 { font-size: 1.25rem; margin: .5rem 0; }
  p { margin: .5rem 0; }
  img { display: block; width: 100%; min-height: 8rem; max-height: calc(100vh - 7rem);
        object-fit: contain; border-radius: 6px; background: #8883; }
  pre { margin: .8rem 0; padding: .8rem; border-radius: 6px; background: #8882; font-size: .85rem;
        white-space: pre-wrap; overflow-wrap: anywhere; }
  @media (min-width: 64rem) {
    body { max-width: 100rem; }
    main { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 1fr); gap: 1rem; }
    pre { box-sizing: border-box; margin: 0; max-height: calc(100vh - 7rem); overflow: auto; }
  }
</style>
<h1>edgepack-run</h1>
<main>
  <img src="stream" alt="the newest picture, with what was found">
  <pre id="line">waiting for a picture</pre>
</main>
<p><a href="metrics">metrics</a></p>
<script>
  const line = document.getElementById("line");
  const short = (_, value) =>
    typeof value === "number" && !Number.isInteger(value) ? +value.toPrecision(4) : value;
  let gone = false;
  async function look() {
    try {
      const found = await (await fetch("latest")).text();
      if (gone) location.reload();  // the stream does not come back by itself
      // A list of numbers, such as a box, stays on one line.
      if (found) {
        line.textContent = JSON.stringify(JSON.parse(found, short), null, 1)
          .replace(/\[[^[\]{}"]*\]/g, (list) => list.replace(/\s+/g, " "));
      }
    } catch (error) {
      gone = true;
      line.textContent = "edgepack-run does not answer";
    }
  }
  look();
  setInterval(look, 1000);
</script>
</html>
)html";

constexpr const char* kPageHeaders =
    "Content-Security-Policy: default-src 'self'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; frame-ancestors 'none'\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n";

}  // namespace

Preview::Preview(const HttpAddress& address, HttpAccess access, const FrameMetrics* metrics,
                 std::ostream& err)
    : metrics_(metrics),
      server_("--preview", address,
              {[](const HttpRequest&) { return kMostPreviewBody; },
               [this](std::uint64_t, const HttpRequest& request) { return Handle(request); },
               [](int) {}},
              {}, std::move(access)),
      serving_([this] { server_.Run(false); }),
      drawing_([this] { Draw(); }) {
  err << "preview on " << server_.name() << std::endl;
}

Preview::~Preview() {
  server_.Stop();
  shown_.Close();
}

void Preview::Show(const cv::Mat& image, const Found& found, const std::string& line) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    line_ = line;
  }
  if (image.empty()) return;
  // The next frames go into its memory while this one is drawn on.
  Shown shown = {image.clone(), found};
  shown_.Put(&shown);
}

void Preview::Draw() {
  for (Shown shown; shown_.Take(&shown);) {
    DrawFound(shown.found, &shown.image);
    const std::string jpeg = EncodeJpeg(shown.image);
    server_.Publish("--edgepack-frame\r\nContent-Type: image/jpeg\r\nContent-Length: " +
                    std::to_string(jpeg.size()) + "\r\n\r\n" + jpeg + "\r\n");
  }
}

HttpAnswer Preview::Handle(const HttpRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") {
    HttpAnswer answer = HttpError(405, request.path + " takes GET");
    answer.headers = "Allow: GET, HEAD\r\n";
    return answer;
  }
  if (request.path == "/") return {200, "text/html; charset=utf-8", kPage, kPageHeaders};
  if (request.path == "/stream") return {200, kStreamType, {}, "Cache-Control: no-store\r\n", true};
  if (request.path == "/latest") {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {200, "application/json", line_, "Cache-Control: no-store\r\n"};
  }
  if (request.path == "/metrics") return {200, kMetricsType, metrics_->Text()};
  return HttpError(404, "there is nothing at " + request.path);
}

}  // namespace edgepack
