#pragma once

#include "error.h"
#include "install.h"
#include "json.h"

namespace edgepack::device {

/// {"kind", "message", "hint"}
void WriteError(const DeviceError& error, JsonWriter* json);

}  // namespace edgepack::device
