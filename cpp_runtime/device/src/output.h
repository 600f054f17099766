#pragma once

#include "common/json.h"
#include "error.h"
#include "install.h"

namespace edgepack::device {

/// {"kind", "message", "hint"}
void WriteError(const Error& error, JsonWriter* json);

}  // namespace edgepack::device
