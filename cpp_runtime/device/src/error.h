// The one kind of error the device tool ends with.
#ifndef EDGEPACK_DEVICE_ERROR_H_
#define EDGEPACK_DEVICE_ERROR_H_

#include <exception>
#include <string>
#include <utility>

namespace edgepack::device {

// Exit codes of edgepack/base/errors.py.
enum ExitCode : int {
  kExitUsage = 2,
  kExitBundle = 5,
  kExitDevice = 7,
  kExitMismatch = 8,
  kExitTimeLimit = 9,
};

// `kind` is a slug for programs, `message` says what, `hint` (may be empty) what to do about it.
struct DeviceError : std::exception {
  DeviceError(int code, std::string slug, std::string what, std::string next = {})
      : exit_code(code), kind(std::move(slug)), message(std::move(what)), hint(std::move(next)) {}

  const char* what() const noexcept override { return message.c_str(); }

  int exit_code;
  std::string kind;
  std::string message;
  std::string hint;
};

// A bundle that is refused.
inline DeviceError Refused(std::string kind, std::string message, std::string hint = {}) {
  return {kExitBundle, std::move(kind), std::move(message), std::move(hint)};
}

}  // namespace edgepack::device

#endif  // EDGEPACK_DEVICE_ERROR_H_
