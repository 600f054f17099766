#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace edgepack {

/// A bundle's folder: where things are, and the few of them that are read here.
struct BundleFolder {
  std::filesystem::path path;
  bool softmax = false;  ///< the model's output are logits: scores are their softmax
  std::vector<std::string> labels;

  [[nodiscard]] std::filesystem::path model() const { return path / "model"; }
  [[nodiscard]] std::filesystem::path preprocess() const { return path / "preprocess.json"; }
  [[nodiscard]] std::filesystem::path postprocess() const { return path / "postprocess.json"; }
  /// golden/input.npy, golden/input.1.npy, ...; `kind` is "input" or "output".
  [[nodiscard]] std::filesystem::path golden(const std::string& kind, std::size_t index) const;
};

/// Opens a bundle. Hashes are checked by whoever puts it there. Throws BundleError.
BundleFolder OpenBundle(const std::filesystem::path& path);

/// The bundle this program lies in: the folder above its own bin/. Throws BundleError.
std::filesystem::path OwnBundle();

}  // namespace edgepack
