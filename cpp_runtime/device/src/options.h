#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trial.h"

namespace edgepack::device {

/// The command line: `edgepack-device [options] COMMAND [words] [options] [-- app words]`.
struct Options {
  std::string command;
  std::vector<std::string> words;
  /// What follows "--": for edgepack-run.
  std::vector<std::string> app_words;
  std::optional<std::string> root;
  std::optional<std::string> signers;
  std::optional<std::string> to;
  /// Of `metrics`.
  std::optional<std::string> textfile;
  std::optional<std::string> app_metrics;
  bool timer = false;
  /// Of `install`.
  std::optional<std::string> name;
  /// Of `run --supervise`.
  std::optional<std::string> user;
  std::optional<std::string> owner;
  std::vector<std::string> writable;
  std::vector<std::string> groups;
  std::vector<std::string> reads;
  bool low_ports = false;
  std::optional<std::string> log;
  std::optional<std::string> lock;
  bool respawn = false;
  bool check = false;
  std::string by;
  double wait_s = 60;
  int keep = 3;
  bool json = false;
  bool allow_downgrade = false;
  bool activate = true;
  bool retest = false;
  /// Of `prune`.
  bool dry_run = false;
  bool supervise = false;
  /// Of `trial start`.
  TrialRules rules;
};

/// Throws Error "usage".
Options ParseOptions(const std::vector<std::string>& words);
const char* HelpText();

}  // namespace edgepack::device
