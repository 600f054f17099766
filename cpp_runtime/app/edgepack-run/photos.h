#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"

namespace edgepack {

/// A photo of a folder by its name and its time of modification, in nanoseconds since 1970: one
/// that is written again under an old name is a new one.
using PhotoKey = std::pair<std::string, std::int64_t>;

/// A photo that is there, and its size: one whose size changes is still being written.
struct FoundPhoto {
  PhotoKey key;
  std::int64_t bytes = 0;
};

/// What a photo in a folder is, for all that read folders; edgepack/preprocess/photos.py says the
/// same. By its name: it ends in .jpg, .jpeg or .png, in whatever case, and does not begin with a
/// dot, as what copying programs write before they rename it, and what macOS leaves on sticks.
bool IsPhotoName(const std::string& name);

/// By its file: a plain one, or a link to one. No folder, FIFO, socket or device, no link that
/// leads nowhere, and nothing that is gone again.
std::optional<FoundPhoto> FindPhoto(const std::filesystem::path& folder, const std::string& name);

/// Whether a path that was named leads to a plain file.
bool IsPlainFile(const std::filesystem::path& path);

/// The photos of a folder, in no order. Nothing, and errno, if it cannot be read.
std::optional<std::vector<FoundPhoto>> FindPhotos(const std::filesystem::path& folder);

/// Their paths, in the order of their names' bytes. Throws UsageError about `option`.
std::vector<std::filesystem::path> PhotosIn(const std::string& option,
                                            const std::filesystem::path& folder);

/// Writes "image": a path or name as UTF-8; and, of one that is none, "image_hex": its bytes.
void WriteImageName(std::string_view name, JsonWriter* json);
/// What "image_hex" says. Throws UsageError if it says nothing.
std::string FromHex(std::string_view text);

}  // namespace edgepack
