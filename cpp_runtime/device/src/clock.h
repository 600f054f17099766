#pragma once

#include <ctime>
#include <string>

namespace edgepack::device {

/// Seconds of a clock that nobody sets.
double Monotonic();
void Sleep(double seconds);
/// "2026-01-31T12:00:00Z"
std::string Timestamp(std::time_t time);

}  // namespace edgepack::device
