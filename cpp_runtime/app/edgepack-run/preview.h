#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <ostream>
#include <string>

#include <opencv2/core/mat.hpp>

#include "found.h"
#include "http_server.h"
#include "metrics.h"
#include "slot.h"
#include "worker.h"

namespace edgepack {

/// What a live source's pictures show, over HTTP: a page, the pictures with what was found drawn on
/// them as MJPEG, the newest line of results, and metrics. Drawing and encoding have a thread of
/// their own, and only while somebody looks.
class Preview {
 public:
  /// Listens, and says on `err` where. Throws UsageError.
  Preview(const HttpAddress& address, HttpAccess access, const FrameMetrics* metrics,
          std::ostream& err);
  ~Preview();
  Preview(const Preview&) = delete;
  Preview& operator=(const Preview&) = delete;
  Preview(Preview&&) = delete;
  Preview& operator=(Preview&&) = delete;

  /// Whether somebody looks.
  [[nodiscard]] bool wanted() const { return server_.streams() > 0; }
  /// A line of results, and its picture (CV_8UC3) if there is one to look at.
  void Show(const cv::Mat& image, const Found& found, const std::string& line);

 private:
  struct Shown {
    cv::Mat image;
    Found found;
  };

  HttpAnswer Handle(const HttpRequest& request);
  void Draw();

  const FrameMetrics* metrics_;
  std::mutex mutex_;
  std::string line_ = "{}\n";  // the newest
  HttpServer server_;
  Slot<Shown> shown_{true};
  Worker serving_;
  Worker drawing_;
};

}  // namespace edgepack
