#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "http_access.h"
#include "http_address.h"
#include "sink.h"

namespace edgepack {

/// A tensor of the plan that is written to a file when a kernel call is done.
struct Dump {
  std::size_t call = 0;
  std::size_t tensor = 0;
  std::filesystem::path file;
};

/// Of a picture, in pixels.
struct ImageSize {
  int width = 0;
  int height = 0;
};

/// How frames come on stdin: JPEG pictures one after the other, or pixels.
enum class FrameFormat { kMjpeg, kRgb24, kBgr24, kGray, kYuyv };

/// What follows when a source of frames ends.
enum class AtEnd { kExit, kWait, kRetry };

/// The command line of edgepack-run.
struct Options {
  std::optional<std::filesystem::path> bundle;
  std::optional<std::filesystem::path> image;
  std::vector<std::filesystem::path> more_images;  ///< of a batch, after the first
  std::optional<std::filesystem::path> watch;
  std::optional<std::filesystem::path> results;
  std::optional<std::string> images;
  std::optional<FrameFormat> frames;
  std::optional<std::filesystem::path> from;
  std::optional<std::filesystem::path> camera;
  std::optional<int> fps;
  std::optional<int> track;  ///< frames in a row that something may be missed in
  AtEnd at_end = AtEnd::kExit;
  bool newest = false;
  bool sinks = false;  ///< to edgepack-sinks, too
  std::optional<HttpAddress> serve;
  std::optional<int> queue;
  std::optional<HttpAddress> preview;
  std::optional<std::filesystem::path> metrics;
  std::vector<std::string> hosts;  ///< names that --serve or --preview is asked by
  std::optional<std::filesystem::path> token_file;
  std::optional<SinkOptions> out;
  std::vector<std::filesystem::path> inputs;
  std::vector<std::filesystem::path> postprocess;
  std::optional<ImageSize> size;
  std::optional<std::filesystem::path> draw;
  std::optional<std::filesystem::path> mask;
  bool golden = false;
  bool load_only = false;
  std::vector<std::filesystem::path> outputs;
  std::vector<std::filesystem::path> expected;
  std::vector<Dump> dumps;
  double tolerance = 1e-4;
  std::optional<int> top;
  std::optional<int> bench;
  int warmup = 3;
  bool profile = false;
  std::optional<int> threads;
  std::optional<std::string> affinity;
  std::optional<double> gpu_limit_s;
  bool json = false;
  std::optional<std::filesystem::path> save_resized;
  std::optional<std::filesystem::path> save_tensor;
  std::optional<std::filesystem::path> save_crops;
  bool preprocess_only = false;
  bool version = false;
  bool help = false;
};

/// Parses the words after the program's name. Throws UsageError.
Options ParseOptions(const std::vector<std::string>& words);

/// Who may ask --serve or --preview. Reads --token-file; throws UsageError.
HttpAccess AccessOf(const Options& options);

/// What --help prints.
const char* HelpText();

}  // namespace edgepack
