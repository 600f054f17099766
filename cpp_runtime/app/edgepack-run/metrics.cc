#include "metrics.h"

#include <fstream>
#include <unistd.h>

#include "common/metrics_text.h"
#include "sight.h"

namespace edgepack {
namespace {

/// Bytes of this process in RAM now.
double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::string ProcessorText(const Processor& processor) {
  return Gauge("edgepack_on_gpu", "Whether the GPU runs the model; 0: the CPU does.",
               processor.on_gpu ? 1 : 0) +
         Counter("edgepack_gpu_failures_total", "Runs that failed on the GPU.",
                 static_cast<std::int64_t>(processor.failures));
}

}  // namespace

void DurationHistogram::Add(double seconds) {
  std::size_t bucket = 0;
  while (bucket < kBounds.size() && seconds > kBounds.at(bucket)) ++bucket;
  ++counts_.at(bucket);
  sum_ += seconds;
}

std::string DurationHistogram::Text(const std::string& name, const std::string& help) const {
  return MetricHeader(name, "histogram", help) + Series(name, "");
}

std::string DurationHistogram::Series(const std::string& name, const std::string& labels) const {
  return HistogramText(name, labels, kBounds.data(), counts_.data(), kBounds.size(), sum_);
}

void ServerMetrics::CountAnswer(int status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++answers_[status];
}

void ServerMetrics::AddInference(double seconds, double model_seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  inference_.Add(seconds);
  model_.Add(model_seconds);
}

std::string ServerMetrics::Text(const Gauges& gauges) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text =
      MetricHeader("edgepack_http_answers_total", "counter", "HTTP answers by status.");
  for (const auto& [status, count] : answers_) {
    text += "edgepack_http_answers_total{code=\"" + std::to_string(status) + "\"} " +
            std::to_string(count) + "\n";
  }
  text += inference_.Text("edgepack_inference_seconds",
                          "From a whole request to its answer, waiting included.");
  text += model_.Text("edgepack_model_seconds", "The model's part of that.");
  text += Gauge("edgepack_queue_length", "Requests that wait for the model.",
                static_cast<double>(gauges.queue));
  text += Gauge("edgepack_queue_capacity", "Requests that may wait.",
                static_cast<double>(gauges.queue_most));
  text += Gauge("edgepack_connections", "Open connections.", gauges.connections);
  if (gauges.processor) text += ProcessorText(*gauges.processor);
  if (gauges.sight != nullptr) text += gauges.sight->Text();
  return text + Gauge("process_resident_memory_bytes", "Resident memory.", ResidentBytes());
}

void FrameMetrics::Add(double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  frames_.Add(seconds);
}

void FrameMetrics::Count(std::int64_t broken, std::int64_t dropped, std::int64_t lost) {
  const std::lock_guard<std::mutex> lock(mutex_);
  broken_ = broken;
  dropped_ = dropped;
  lost_ = lost;
}

void FrameMetrics::SetSource(bool up) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (source_up_ && !up) ++source_losses_;
  source_up_ = up;
}

void FrameMetrics::SetProcessor(const std::optional<Processor>& processor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  processor_ = processor;
}

std::string FrameMetrics::Text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return frames_.Text("edgepack_frame_seconds", "From a whole frame to the end of its line.") +
         Counter("edgepack_frames_broken_total", "Frames that were none.", broken_) +
         Counter("edgepack_frames_dropped_total", "Frames before the newest.", dropped_) +
         Counter("edgepack_lines_lost_total", "Lines that could not be written.", lost_) +
         Gauge("edgepack_source_up", "Whether the source is there and gives what can be used.",
               source_up_ ? 1 : 0) +
         Counter("edgepack_source_losses_total", "How often it no longer was.", source_losses_) +
         (processor_ ? ProcessorText(*processor_) : "") +
         (sight_ != nullptr ? sight_->Text() : "") + (more_ ? more_() : "") +
         Gauge("process_resident_memory_bytes", "Resident memory.", ResidentBytes());
}

}  // namespace edgepack
