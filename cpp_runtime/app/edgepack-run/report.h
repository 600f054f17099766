#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <edgepack/errors.h>
#include <edgepack/model.h>
#include <edgepack/tensor.h>

#include "found.h"
#include "profile.h"
#include "scores.h"

namespace edgepack {

/// What a run found out. What was not asked for is empty and not printed.
struct Report : Found {
  struct Bench {
    int warmup = 0;
    std::vector<double> times_ms;
  };

  /// Of --watch and --images: the photo's name, and, if it is known, when it was modified, in
  /// nanoseconds since 1970.
  std::optional<std::string> image;
  std::int64_t image_mtime_ns = 0;
  /// Of --frames: the frame's number, from 0.
  std::optional<std::int64_t> frame;
  /// Which release answered, if it is not the one that runs: a trial's candidate.
  std::string release;
  std::optional<std::string> model;
  int threads = 1;
  std::vector<int> cpus;
  std::optional<double> load_ms;
  std::optional<double> decode_ms;
  std::optional<double> preprocess_ms;
  std::optional<double> run_ms;
  std::size_t rss_peak_bytes = 0;
  std::size_t arena_bytes = 0;
  std::size_t params_bytes = 0;
  std::size_t workspace_peak_bytes = 0;
  /// Of a model with a plan for a GPU.
  std::optional<Processor> processor;
  std::vector<TensorInfo> outputs;
  /// Of a batch: what the photos after the first show.
  std::vector<std::pair<std::string, Found>> more;
  std::optional<Bench> bench;
  /// Of a photo through all stages.
  std::optional<Bench> whole_bench;
  std::optional<Profile> profile;
  std::optional<Comparison> expected;
};

/// One JSON object and a newline, in the memory of a text that is not needed any more. A number
/// that is not finite becomes null.
std::string JsonLine(const Report& report, std::string memory = {});
void PrintJson(const Report& report, std::ostream& out);
/// The same in words.
void PrintText(const Report& report, std::ostream& out);
/// {"error": {"code", "message", "hint"}} and a newline; with the photo that `about` names, if any.
void PrintJsonError(const Error& error, std::ostream& out, const Report& about = {});

}  // namespace edgepack
