#include "photos.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <dirent.h>
#include <memory>
#include <sys/stat.h>
#include <system_error>

#include <edgepack/errors.h>

namespace edgepack {

bool IsPhotoName(const std::string& name) {
  std::string suffix = std::filesystem::path(name).extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return !name.empty() && name.front() != '.' &&
         (suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png");
}

std::optional<FoundPhoto> FindPhoto(const std::filesystem::path& folder, const std::string& name) {
  struct stat status = {};
  if (!IsPhotoName(name) || stat((folder / name).c_str(), &status) != 0 ||
      !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  const std::int64_t modified_ns =
      std::int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec;
  return FoundPhoto{{name, modified_ns}, std::int64_t{status.st_size}};
}

bool IsPlainFile(const std::filesystem::path& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

std::optional<std::vector<FoundPhoto>> FindPhotos(const std::filesystem::path& folder) {
  // Not std::filesystem: in a library built for offsets of 32 bits its listing can end early.
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  if (open == nullptr) return std::nullopt;
  std::vector<FoundPhoto> photos;
  while (const dirent* const entry = readdir(open.get())) {  // NOLINT(concurrency-mt-unsafe)
    if (auto photo = FindPhoto(folder, entry->d_name)) photos.push_back(std::move(*photo));
  }
  return photos;
}

std::vector<std::filesystem::path> PhotosIn(const std::string& option,
                                            const std::filesystem::path& folder) {
  const auto found = FindPhotos(folder);
  if (!found) {
    const std::string problem = std::error_code(errno, std::generic_category()).message();
    throw UsageError(option + ": " + folder.string() + ": " + problem);
  }
  std::vector<std::string> names;
  names.reserve(found->size());
  for (const FoundPhoto& photo : *found) names.push_back(photo.key.first);
  std::sort(names.begin(), names.end());
  std::vector<std::filesystem::path> photos;
  photos.reserve(names.size());
  for (const std::string& name : names) photos.push_back(folder / name);
  return photos;
}

void WriteImageName(std::string_view name, JsonWriter* json) {
  json->Key("image").String(name);
  if (ToUtf8(name) == name) return;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4U];
    hex += kDigits[byte & 15U];
  }
  json->Key("image_hex").String(hex);
}

std::string FromHex(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const std::size_t high = kDigits.find(text[i]);
    const std::size_t low = kDigits.find(text[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) {
      throw UsageError("no digits of bytes: " + std::string(text));
    }
    bytes += static_cast<char>(high << 4U | low);
  }
  return bytes;
}

}  // namespace edgepack
