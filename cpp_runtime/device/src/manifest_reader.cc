#include "manifest_reader.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "clock.h"
#include "common/json.h"
#include "error.h"
#include "layout.h"
#include "sha256.h"

namespace edgepack::device {
namespace {

constexpr char kKind[] = "bad-manifest";
constexpr const char* kRequiredFiles[] = {kApp, "model/graph.json", "model/params.bin"};
constexpr const char* kDtypes[] = {"bool",  "float16", "float32", "float64", "int8",   "int16",
                                   "int32", "int64",   "uint8",   "uint16",  "uint32", "uint64"};
// Of seconds, milliseconds or megabytes, as in edgepack/bundle/manifest.py.
constexpr double kLargestBound = 1e6;
constexpr const char* kRequiredSince2[] = {kBundleTool, "install"};

bool IsAlphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// [A-Za-z0-9_][A-Za-z0-9._+@-]*
bool IsSafePart(std::string_view part) {
  if (part.empty() || !(IsAlphanumeric(part.front()) || part.front() == '_')) return false;
  return std::all_of(part.begin(), part.end(), [](char c) {
    return IsAlphanumeric(c) || c == '.' || c == '_' || c == '+' || c == '@' || c == '-';
  });
}

bool IsVersion(std::string_view text) {
  const auto digits = [](std::string_view part) {
    return !part.empty() &&
           std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  const size_t dot = text.find('.');
  return dot != std::string_view::npos && digits(text.substr(0, dot)) &&
         digits(text.substr(dot + 1));
}

std::string Checked(JsonObject& object, const char* key, bool (*check)(std::string_view),
                    const char* what) {
  std::string value = object.String(key);
  if (!check(value)) object.Fail(key, "'" + value + "' is not " + what);
  return value;
}

void CheckTensors(JsonObject& model, const char* key) {
  for (JsonObject& tensor : model.Objects(key)) {
    tensor.String("name");
    const std::string dtype = tensor.String("dtype");
    if (std::find(std::begin(kDtypes), std::end(kDtypes), dtype) == std::end(kDtypes)) {
      tensor.Fail("dtype", "'" + dtype + "' is none");
    }
    int64_t rank = 0;
    for (const int64_t size : tensor.Ints("shape")) {
      if (size < 0) tensor.Fail("shape", "a negative size");
      ++rank;
    }
    // Axes whose size depends on the data; left out where there are none.
    if (tensor.Has("bounded")) {
      for (const int64_t axis : tensor.Ints("bounded")) {
        if (axis < 0 || axis >= rank) tensor.Fail("bounded", "no axis of its shape");
      }
    }
    tensor.Finish();
  }
}

void ReadCompatible(JsonObject compatible, Manifest& manifest) {
  manifest.triple = compatible.String("triple");
  manifest.cpu = compatible.String("cpu");
  manifest.hwcaps = compatible.Strings("hwcaps");
  if (manifest.IsStatic()) {
    if (compatible.String("linked") != "static") compatible.Fail("linked", "not static");
  } else {
    manifest.glibc = Checked(compatible, "glibc", IsVersion, "a version such as 2.31");
  }
  compatible.Finish();
}

void CheckQuantized(JsonObject quantized) {
  quantized.Size("in_float");
  const std::string calibration = quantized.String("calibration");
  if (!calibration.empty() && !IsSha256(calibration)) {
    quantized.Fail("calibration", "'" + calibration + "' is not 64 hex digits");
  }
  const std::optional<double> agreement = quantized.OptionalNumber("agreement");
  if (agreement.has_value() && !(*agreement >= 0 && *agreement <= 1)) {
    quantized.Fail("agreement", "not between 0 and 1");
  }
  quantized.Finish();
}

void ReadModel(JsonObject model, Manifest& manifest) {
  manifest.model_file = model.String("file");
  manifest.model_sha256 = Checked(model, "sha256", IsSha256, "64 hex digits");
  manifest.arena_bytes = model.Size("arena_bytes");
  manifest.params_bytes = model.Size("params_bytes");
  // Left out for float32.
  if (model.Has("precision")) {
    const std::string precision = model.String("precision");
    if (precision != "float32" && precision != "float16" && precision != "tf32" &&
        precision != "int8") {
      model.Fail("precision", "'" + precision + "' is not float32, float16, tf32 or int8");
    }
  }
  if (model.Has("quantized")) CheckQuantized(model.Object("quantized"));
  CheckTensors(model, "inputs");
  CheckTensors(model, "outputs");
  model.Finish();
}

void CheckBound(const JsonObject& health, const char* key, double value) {
  if (!(value > 0 && value <= kLargestBound)) health.Fail(key, "not above 0, or beyond 1000000");
}

// Nothing for null.
std::optional<double> Budget(JsonObject& health, const char* key) {
  const std::optional<double> value = health.OptionalNumber(key);
  if (value.has_value()) CheckBound(health, key, *value);
  return value;
}

void ReadHealth(JsonObject health, Manifest& manifest) {
  manifest.timeout_s = health.Number("timeout_s");
  CheckBound(health, "timeout_s", manifest.timeout_s);
  manifest.max_latency_ms = Budget(health, "max_latency_ms");
  manifest.max_memory_mb = Budget(health, "max_memory_mb");
  health.Finish();
}

void ReadFiles(JsonObject& top, Manifest& manifest) {
  std::set<std::string> paths;
  top.ForEachObject("files", [&](const std::string& path, JsonObject entry) {
    if (!IsSafePath(path)) top.Fail("files", "unsafe path '" + path + "'");
    FileEntry file;
    file.path = path;
    file.sha256 = Checked(entry, "sha256", IsSha256, "64 hex digits");
    file.size = entry.Size("size");
    const std::string mode = entry.String("mode");
    if (mode != "0644" && mode != "0755") entry.Fail("mode", "'" + mode + "' is not 0644 or 0755");
    file.executable = mode == "0755";
    entry.Finish();
    paths.insert(path);
    manifest.files.push_back(std::move(file));
  });
  const auto require = [&](const char* path) {
    if (paths.count(path) == 0) top.Fail("files", std::string(path) + " missing");
  };
  for (const char* path : kRequiredFiles) require(path);
  if (!manifest.IsStatic()) require(kLibrary);
  if (manifest.schema >= 2) {
    for (const char* path : kRequiredSince2) require(path);
  }
  for (const char* own : {kManifestName, kSignatureName}) {
    if (paths.count(own) != 0) top.Fail("files", std::string("lists ") + own);
  }
  for (const std::string& path : paths) {
    for (size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1)) {
      if (paths.count(path.substr(0, end)) != 0) {
        top.Fail("files", path.substr(0, end) + " is both a file and the folder of " + path);
      }
    }
  }
}

}  // namespace

bool IsSafePath(std::string_view path, size_t limit) {
  if (path.size() > limit) return false;
  for (;;) {
    const size_t slash = path.find('/');
    if (!IsSafePart(path.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool IsSafeName(std::string_view name) { return name.size() <= 64 && IsSafePart(name); }

bool IsReleaseId(std::string_view text) {
  return text.size() == 12 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::optional<std::time_t> ParseTime(const std::string& text) {
  std::tm given{};
  const char* const end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &given);
  if (end == nullptr || *end != '\0') return std::nullopt;
  const std::time_t time = timegm(&given);
  if (time < 0 || Timestamp(time) != text) return std::nullopt;
  return time;
}

Manifest ParseManifest(std::string_view bytes) {
  if (bytes.size() > kMaxManifestBytes) {
    throw Refused(kKind, std::string(kManifestName) + ": more than 4 MiB");
  }
  const JsonDocument document(bytes, kManifestName, kKind);
  JsonObject top = document.Root();
  Manifest manifest;
  const int64_t schema = top.Int("schema");
  if (schema < 1 || schema > kStaticSchema) {
    throw Refused(kKind,
                  std::string(kManifestName) + ": schema " + std::to_string(schema) +
                      "; this edgepack-device reads 1 to " + std::to_string(kStaticSchema),
                  "install a newer edgepack-device, or make the bundle again");
  }
  manifest.schema = static_cast<int>(schema);
  manifest.name = Checked(top, "name", IsSafeName, "a safe name");
  manifest.board = Checked(top, "board", IsSafeName, "a safe name");
  manifest.release = Checked(top, "release", IsReleaseId, "12 hex digits");
  ReadCompatible(top.Object("compatible"), manifest);
  ReadModel(top.Object("model"), manifest);
  manifest.tolerance = top.Number("tolerance");
  if (!(manifest.tolerance > 0 && manifest.tolerance < 1)) {
    top.Fail("tolerance", "not between 0 and 1");
  }
  const std::string scores = top.String("scores");
  if (scores != "raw" && scores != "softmax") top.Fail("scores", "neither raw nor softmax");
  JsonObject versions = top.Object("versions");
  for (const char* key : {"edgepack", "tvm", "opencv", "toolchain"}) versions.String(key);
  versions.Finish();
  ReadFiles(top, manifest);
  if (schema >= 2) {
    manifest.version = top.Int("version");
    if (manifest.version < 0) top.Fail("version", "negative");
    ReadHealth(top.Object("health"), manifest);
    manifest.service = ReadService(&top);
    // Left out where they are not used.
    if (top.Has("product")) manifest.product = Checked(top, "product", IsSafeName, "a safe name");
    if (top.Has("valid_until")) {
      const std::string text = top.String("valid_until");
      manifest.valid_until = ParseTime(text);
      if (!manifest.valid_until) {
        top.Fail("valid_until", "'" + text + "' is no time such as 2027-01-31T12:00:00Z");
      }
    }
  }
  top.Finish();
  return manifest;
}

}  // namespace edgepack::device
