#include "bundle.h"

#include <fstream>
#include <sys/auxv.h>
#include <system_error>

#include <edgepack/errors.h>

#include "bundle_json.h"

namespace edgepack {
namespace {

std::vector<std::string> ReadLabels(const std::filesystem::path& path) {
  std::vector<std::string> labels;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    labels.push_back(line);
  }
  return labels;
}

}  // namespace

std::filesystem::path BundleFolder::golden(const std::string& kind, std::size_t index) const {
  const std::string number = index == 0 ? "" : "." + std::to_string(index);
  return path / "golden" / (kind + number + ".npy");
}

BundleFolder OpenBundle(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) {
    throw BundleError("there is no bundle in " + path.string(), "give its folder with --bundle");
  }
  BundleFolder bundle;
  bundle.path = path;
  const JsonDocument document = ReadBundleJson(path / "manifest.json");
  JsonObject manifest = document.Root();
  if (manifest.Has("scores")) {
    const std::string scores = manifest.String("scores");
    if (scores != "softmax" && scores != "raw") {
      manifest.Fail("scores", "'" + scores + "' is neither softmax nor raw");
    }
    bundle.softmax = scores == "softmax";
  }
  bundle.labels = ReadLabels(path / "labels.txt");
  return bundle;
}

std::filesystem::path OwnBundle() {
  std::error_code error;
  std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {  // no /proc: the path that it was started by
    // NOLINTNEXTLINE(performance-no-int-to-ptr): getauxval(3) gives pointers as numbers
    const auto* name = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    if (name != nullptr) program = std::filesystem::canonical(name, error);
  }
  if (error || !program.has_parent_path()) {
    throw BundleError("cannot find this program's own folder", "give the bundle with --bundle");
  }
  return program.parent_path().parent_path();
}

}  // namespace edgepack
