#include "bundle_json.h"

#include <system_error>

#include <edgepack/errors.h>

#include "memory_map.h"

namespace edgepack {
namespace {

MemoryMap Map(const std::filesystem::path& path) {
  try {
    return MemoryMap::File(path);
  } catch (const std::system_error& error) {
    throw BundleError("cannot read " + path.string() + ": " + error.code().message());
  }
}

}  // namespace

JsonDocument ReadBundleJson(const std::filesystem::path& path) {
  const MemoryMap file = Map(path);
  return {
      {file.data(), file.size()}, path.filename().string(), BundleError::kKind, BundleError::kHint};
}

void CheckFormat(const std::string& format, JsonObject* root) {
  if (root->String("format") != format) root->Fail("format", "is not " + format);
  if (root->Int("version") != 1) root->Fail("version", "this edgepack-run reads version 1");
}

}  // namespace edgepack
