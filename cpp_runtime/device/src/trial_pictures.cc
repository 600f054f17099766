#include "trial_pictures.h"

#include <string_view>
#include <utility>

#include "common/json.h"
#include "error.h"
#include "trial.h"

namespace edgepack::device {
namespace {

constexpr char kPictures[] = "pictures";
constexpr std::size_t kMaxKeptAnswer = std::size_t{16} << 10U;
constexpr mode_t kOwnersFolder = 0700;
constexpr mode_t kOwnersFile = 0600;

void WritePrivate(const Folder& folder, const std::string& name, const std::string& content) {
  folder.Remove(name);
  folder.Create(name, kOwnersFile).WriteAt(0, content.data(), content.size());
}

}  // namespace

bool KeepPicture(const Folder& trial, std::int64_t number, const Disagreement& what) {
  constexpr std::string_view kStart = "\xff\xd8\xff";
  if (what.jpeg.size() > kMaxThumbnail || what.jpeg.compare(0, kStart.size(), kStart) != 0) {
    return false;
  }
  JsonWriter json;
  json.BeginObject().Key("agreement").Number(what.agreement);
  for (const auto& [key, line] :
       {std::pair("current", &what.current), {"candidate", &what.candidate}}) {
    JsonWriter text;  // what is escaped may be six times as long
    text.String(*line);
    json.Key(key);
    text.text().size() > kMaxKeptAnswer ? json.Null() : json.Raw(text.text());
  }
  json.EndObject();
  try {
    const Folder folder = trial.MakeSub(kPictures, kOwnersFolder);
    const std::string name = std::to_string(number);
    WritePrivate(folder, name + ".json", json.text() + "\n");
    WritePrivate(folder, name + ".jpg", what.jpeg);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void RemovePictures(const Folder& root) {
  if (root.Has(kTrial)) root.Sub(kTrial).RemoveTree(kPictures);
}

}  // namespace edgepack::device
