#pragma once

#include "releases.h"
#include "state.h"

namespace edgepack::device {

/// The golden input, and the golden photo if there is one, on this very device: the outputs, the
/// class of the photo, and the limits of time and memory of the release's manifest.
/// Throws Error "health-failed", "health-crashed", "health-timeout", "over-latency",
/// "over-memory".
Health CheckHealth(const Releases& releases, const std::string& release, const std::string& now);

}  // namespace edgepack::device
