#pragma once

#include <string>
#include <utility>

#include "common/error.h"

namespace edgepack {

/// A file that is no image, or an image of a kind the preprocessing does not accept.
struct ImageError : Error {
  explicit ImageError(std::string what, std::string next = {})
      : Error(kExitUsage, "image", std::move(what), std::move(next)) {}
};

/// A tensor whose shape, dtype or size is not the model's, or on which a loop of it does not end.
struct ModelInputError : Error {
  explicit ModelInputError(std::string what, std::string next = {})
      : Error(kExitModel, "model-input", std::move(what), std::move(next)) {}
};

/// A position that the inputs give or decide, of an operator inside the model, and where there is
/// nothing.
struct PositionError : Error {
  explicit PositionError(std::string what)
      : Error(kExitPosition, "position", std::move(what),
              "check what the model's inputs point at: an index, a length or the number of an "
              "image") {}
};

/// A file of the bundle that is missing or damaged.
struct BundleError : Error {
  static constexpr char kKind[] = "damaged";
  static constexpr char kHint[] = "deploy the bundle again: `edgepack deploy`";

  explicit BundleError(std::string what, std::string next = kHint)
      : Error(kExitBundle, kKind, std::move(what), std::move(next)) {}
};

/// A GPU that is not there, or does not do what the plan needs. `slug` says which.
struct GpuError : Error {
  GpuError(std::string slug, std::string what, std::string next = {})
      : Error(kExitDevice, std::move(slug), std::move(what), std::move(next)) {}
};

/// A GPU that this process cannot expect anything of any more: it hangs, or fails again and again.
/// Another process may find it well.
struct GpuLostError : GpuError {
  GpuLostError(std::string slug, std::string what, std::string next = {})
      : GpuError(std::move(slug), std::move(what), std::move(next)) {
    exit_code = kExitGpuLost;
  }
};

}  // namespace edgepack
