#pragma once

#include <string>

namespace edgepack::sinks {

/// The first line of a file that only its owner may read, or of systemd's credential `credential`,
/// where the service has that. Throws UsageError, which never holds any of it.
std::string ReadSecret(const std::string& path, const std::string& credential);

}  // namespace edgepack::sinks
