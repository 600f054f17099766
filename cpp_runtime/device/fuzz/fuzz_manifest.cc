// Input: manifest.json.
#include <set>

#include "common/fuzz/fuzz.h"
#include "manifest_reader.h"
#include "sha256.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  using namespace edgepack::device;
  try {
    const Manifest manifest = ParseManifest(Text(data, size));
    EDGEPACK_REQUIRE(manifest.schema == 1 || manifest.schema == 2);
    EDGEPACK_REQUIRE(manifest.version >= 0);
    EDGEPACK_REQUIRE(manifest.timeout_s > 0);
    EDGEPACK_REQUIRE(!manifest.service || !manifest.service->args.empty());
    EDGEPACK_REQUIRE(!manifest.service || manifest.service->user != "root");
    EDGEPACK_REQUIRE(IsReleaseId(manifest.release));
    EDGEPACK_REQUIRE(IsSafeName(manifest.name) && IsSafeName(manifest.board));
    std::set<std::string> paths;
    for (const FileEntry& file : manifest.files) {
      EDGEPACK_REQUIRE(IsSafePath(file.path));
      EDGEPACK_REQUIRE(IsSha256(file.sha256));
      EDGEPACK_REQUIRE(paths.insert(file.path).second);
    }
    EDGEPACK_REQUIRE(paths.count("bin/edgepack-run") == 1);
    EDGEPACK_REQUIRE(paths.count(kManifestName) == 0 && paths.count(kSignatureName) == 0);
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
