// manifest.json of a bundle, as edgepack/bundle/manifest.py writes it.
#ifndef EDGEPACK_DEVICE_MANIFEST_READER_H_
#define EDGEPACK_DEVICE_MANIFEST_READER_H_

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "service_table.h"

namespace edgepack::device {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kSignatureName[] = "manifest.json.sig";
// Far above any real one: two thousand files take half a megabyte.
inline constexpr size_t kMaxManifestBytes = size_t{4} << 20;
// That of a bundle that needs no C library: its app holds the kernels.
inline constexpr int kStaticSchema = 3;

struct FileEntry {
  std::string path;
  std::string sha256;  // 64 lower-case hex digits
  uint64_t size;       // bytes
  bool executable;
};

struct Manifest {
  int schema;  // what schema 1 has not is at its default
  std::string name;
  std::string board;
  std::string release;  // 12 hex digits
  std::string triple;
  std::string cpu;
  std::string glibc;  // empty if none is needed
  std::vector<std::string> hwcaps;
  int64_t version = 0;
  std::optional<std::string> product;
  std::optional<std::time_t> valid_until;
  double tolerance;
  double timeout_s = 600;
  std::optional<double> max_latency_ms;
  std::optional<double> max_memory_mb;
  std::optional<ServiceTable> service;
  std::string model_file;
  std::string model_sha256;
  uint64_t arena_bytes;
  uint64_t params_bytes;
  std::vector<FileEntry> files;  // in the manifest's order

  // Whether its programs need no C library, and the app holds the kernels.
  [[nodiscard]] bool IsStatic() const { return schema == kStaticSchema; }
};

// Throws Error "bad-manifest", naming the field, for anything that is not a manifest of
// schema 1 to kStaticSchema: no JSON, a key that is missing, unknown or given twice, a wrong type
// or value, an unsafe path.
Manifest ParseManifest(std::string_view bytes);

// The seconds since 1970 of a time such as "2026-01-31T12:00:00Z"; nothing for anything else.
std::optional<std::time_t> ParseTime(const std::string& text);

// Parts of letters, digits and . _ + @ - joined by '/', none empty and none beginning with . or -;
// at most `limit` characters.
bool IsSafePath(std::string_view path, size_t limit = 100);

// A part as in IsSafePath, at most 64 characters: names of models and boards.
bool IsSafeName(std::string_view name);

// 12 lower-case hex digits.
bool IsReleaseId(std::string_view text);

}  // namespace edgepack::device

#endif  // EDGEPACK_DEVICE_MANIFEST_READER_H_
