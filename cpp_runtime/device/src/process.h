#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace edgepack::device {

/// How a program ended. Exactly one of `timed_out`, `signal` > 0 and an exit code holds.
struct Ended {
  std::string out;
  /// The end of what it wrote to stderr.
  std::string err;
  int exit_code = 0;
  int signal = 0;
  bool timed_out = false;
  /// The most memory it had in RAM, as the kernel counted.
  std::uint64_t max_rss_bytes = 0;
};

enum class Priority { kUsual, kLowest };

/// Runs `words` in a process group of its own, with nothing on stdin. After `timeout_s` seconds the
/// whole group is killed, and so is what the program leaves running when it ends. The program dies
/// with us. A program that cannot be started ends with 127.
/// Throws Error "io" if there is no process or pipe to be had.
Ended RunProgram(const std::vector<std::string>& words, double timeout_s,
                 Priority priority = Priority::kUsual);

/// For this process and all that it starts: the CPU and the disk only when nobody else wants them,
/// and the first to go when memory ends. What a kernel does not know is left out.
void LowerPriority();

}  // namespace edgepack::device
