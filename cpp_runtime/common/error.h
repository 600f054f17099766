#pragma once

#include <exception>
#include <string>
#include <utility>

namespace edgepack {

/// Exit codes of both programs; edgepack/base/errors.py has the same.
enum ExitCode : int {
  kExitOk = 0,
  kExitBug = 1,
  kExitUsage = 2,
  kExitModel = 3,
  kExitBundle = 5,
  kExitDevice = 7,
  kExitMismatch = 8,
  kExitTimeLimit = 9,
  kExitPosition = 10,
  kExitGpuLost = 13,
  kExitAgain = 75,  // EX_TEMPFAIL of sysexits.h
};

/// Anything that a user, a damaged file or the other side of a link can cause.
struct Error : std::exception {
  Error(int code, std::string slug, std::string what, std::string next = {})
      : exit_code(code), kind(std::move(slug)), message(std::move(what)), hint(std::move(next)) {}

  [[nodiscard]] const char* what() const noexcept override { return message.c_str(); }

  int exit_code;
  std::string kind;  ///< a slug, for programs
  std::string message;
  std::string hint;  ///< the next step, or empty
};

/// A command line that cannot be followed, or files it names that cannot be read or written.
struct UsageError : Error {
  explicit UsageError(std::string what, std::string next = {})
      : Error(kExitUsage, "usage", std::move(what), std::move(next)) {}
};

}  // namespace edgepack
