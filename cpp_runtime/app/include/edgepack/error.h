#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace edgepack {

/// Exit codes of edgepack-run; the same numbers as the edgepack command line's.
enum class ExitCode {
  kOk = 0,
  kBug = 1,
  kUsage = 2,
  kModelInput = 3,
  kBundle = 5,
  kOutputsDiffer = 8,
};

/// Anything a user or a damaged file can cause. `hint` is the next step, or empty.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, std::string hint)
      : std::runtime_error(message), code_(code), hint_(std::move(hint)) {}

  [[nodiscard]] ExitCode code() const { return code_; }
  [[nodiscard]] const std::string& hint() const { return hint_; }

 private:
  ExitCode code_;
  std::string hint_;
};

/// Options that do not fit together, or files they name that cannot be read or written.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message, std::string hint = "")
      : Error(ExitCode::kUsage, message, std::move(hint)) {}
};

/// A file that is no image, or an image of a kind the preprocessing does not accept.
class ImageError : public Error {
 public:
  explicit ImageError(const std::string& message, std::string hint = "")
      : Error(ExitCode::kUsage, message, std::move(hint)) {}
};

/// A tensor whose shape, dtype or size is not the model's.
class ModelInputError : public Error {
 public:
  explicit ModelInputError(const std::string& message, std::string hint = "")
      : Error(ExitCode::kModelInput, message, std::move(hint)) {}
};

/// A file of the bundle that is missing or damaged.
class BundleError : public Error {
 public:
  explicit BundleError(const std::string& message,
                       std::string hint = "deploy the bundle again: `edgepack deploy`")
      : Error(ExitCode::kBundle, message, std::move(hint)) {}
};

}  // namespace edgepack
