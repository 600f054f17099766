#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "folder.h"
#include "install.h"

namespace edgepack::device {

/// A bundle in a folder or in a .tar.gz, whichever `path` is.
/// Throws Error "damaged" if it is neither.
std::unique_ptr<BundleSource> OpenBundle(const std::string& path);

}  // namespace edgepack::device
