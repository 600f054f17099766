#pragma once

#include <string>
#include <vector>

namespace edgepack::device {

/// Makes every mounted file system read-only for this process and those it starts, but for the
/// folders in `writable` and all below them; nobody else sees a change. Needs root. Returns
/// whether the kernel let us. Throws Error "io" if a folder of `writable` is not there.
bool MakeReadOnly(const std::vector<std::string>& writable);

}  // namespace edgepack::device
