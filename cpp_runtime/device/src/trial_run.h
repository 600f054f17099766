#pragma once

#include "site.h"

namespace edgepack::device {

/// `trial run`: runs the trial that state/trial.json tells of, from where it was, until it is
/// decided, and then activates the candidate or drops it. Ends at once if somebody runs it already,
/// or it is over.
///
/// - The candidate runs with the lowest priority there is, is the first to go when memory ends, and
///   dies with this process. What `memory_mb` of its [service] table allows is its limit.
/// - The current release's app connects to trial/frames. It gives a picture, in memory that it
///   shares, only for a request, and there is at most one: it never waits for us.
void RunTrial(const Site& site);

}  // namespace edgepack::device
