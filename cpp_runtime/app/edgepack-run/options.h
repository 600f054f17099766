#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace edgepack {

/// The command line of edgepack-run.
struct Options {
  std::optional<std::filesystem::path> bundle;
  std::optional<std::filesystem::path> image;
  std::optional<std::filesystem::path> watch;
  std::optional<std::filesystem::path> results;
  std::vector<std::filesystem::path> inputs;
  bool golden = false;
  std::vector<std::filesystem::path> outputs;
  std::vector<std::filesystem::path> expected;
  double tolerance = 1e-4;
  std::optional<int> top;
  std::optional<int> bench;
  int warmup = 3;
  bool profile = false;
  std::optional<int> threads;
  std::optional<std::string> affinity;
  bool json = false;
  std::optional<std::filesystem::path> save_resized;
  std::optional<std::filesystem::path> save_tensor;
  bool preprocess_only = false;
  bool version = false;
  bool help = false;
};

/// Parses the words after the program's name. Throws UsageError.
Options ParseOptions(const std::vector<std::string>& words);

/// What --help prints.
const char* HelpText();

}  // namespace edgepack
