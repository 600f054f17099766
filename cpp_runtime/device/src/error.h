#pragma once

#include <string>
#include <utility>

#include "common/error.h"

namespace edgepack::device {

/// A bundle that is refused.
inline Error Refused(std::string kind, std::string message, std::string hint = {}) {
  return {kExitBundle, std::move(kind), std::move(message), std::move(hint)};
}

}  // namespace edgepack::device
