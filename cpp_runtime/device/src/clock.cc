#include "clock.h"

#include <array>
#include <cerrno>
#include <cmath>

namespace edgepack::device {

double Monotonic() {
  struct timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void Sleep(double seconds) {
  const double whole = std::floor(seconds);
  struct timespec left = {};
  left.tv_sec = static_cast<std::time_t>(whole);
  left.tv_nsec = static_cast<decltype(left.tv_nsec)>((seconds - whole) * 1e9);
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

std::string Timestamp(std::time_t time) {
  struct tm parts = {};
  gmtime_r(&time, &parts);
  std::array<char, 32> text;  // NOLINT(*-member-init): filled by the call
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace edgepack::device
