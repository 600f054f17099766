#pragma once

#include <filesystem>
#include <string>

#include "common/json.h"

namespace edgepack {

/// Parses a JSON file of the bundle. Throws Error as BundleError would be, naming file and place
/// ("graph.json: calls[3].args: missing"), and so do the document's objects.
JsonDocument ReadBundleJson(const std::filesystem::path& path);

/// Throws unless the file says it is `format`, version 1.
void CheckFormat(const std::string& format, JsonObject* root);

}  // namespace edgepack
