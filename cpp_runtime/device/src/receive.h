#pragma once

#include <string>

namespace edgepack::device {

/// The device's side of a deploy: one request from the descriptor `in`, events to `out`
/// (edgepack/deploy/transfer.py is the other side). Once all blobs have arrived it goes on alone,
/// whatever becomes of the link. Returns an exit code; errors have been reported as an event.
int Receive(const std::string& root, int in, int out);

}  // namespace edgepack::device
