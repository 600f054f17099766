#include "output.h"

namespace edgepack::device {

void WriteError(const Error& error, JsonWriter* json) {
  json->BeginObject().Key("kind").String(error.kind).Key("message").String(error.message);
  json->Key("hint").String(error.hint).EndObject();
}

}  // namespace edgepack::device
