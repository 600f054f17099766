#include "trial_pictures.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/json.h"
#include "error.h"
#include "trial.h"

namespace edgepack::device {
namespace {

constexpr char kPictures[] = "pictures";
constexpr std::size_t kMaxKeptAnswer = std::size_t{16} << 10U;
constexpr std::size_t kMaxKept = 3 * kMaxKeptAnswer;
constexpr mode_t kOwnersFolder = 0700;
constexpr mode_t kOwnersFile = 0600;

void WritePrivate(const Folder& folder, const std::string& name, const std::string& content) {
  folder.Remove(name);
  folder.Create(name, kOwnersFile).WriteAt(0, content.data(), content.size());
}

/// The agreement of a picture that was kept; 1 if that cannot be read: it is the first to go.
double KeptAgreement(const Folder& trial, std::int64_t number) {
  try {
    const std::string name = std::to_string(number) + ".json";
    const JsonDocument document(trial.Sub(kPictures).OpenFile(name).ReadAll(kMaxKept), name,
                                "damaged");
    return document.Root().Number("agreement");
  } catch (const Error&) {
    return 1;
  }
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

KeptPictures::KeptPictures(const Folder& trial, std::int64_t kept, std::int64_t most,
                           std::uint32_t seed)
    : trial_(trial.Clone()), most_(most), random_(seed), count_(kept) {
  for (std::int64_t i = 0; i < kept; ++i)
    ranks_.at(static_cast<std::size_t>(i)) = Draw(KeptAgreement(trial_, i));
}

KeptPictures::Rank KeptPictures::Draw(double agreement) {
  random_ = random_ * 1664525U + 1013904223U;  // Knuth, TAOCP 3.3.4: its upper bits are what counts
  return {agreement, random_};
}

void KeptPictures::Keep(const Disagreement& what) {
  if (most_ == 0 || what.jpeg.empty()) return;
  const Rank rank = Draw(what.agreement);
  Rank* place = ranks_.data() + count_;
  if (count_ >= most_) {
    place = std::max_element(ranks_.data(), place);
    if (rank >= *place) return;
  }
  if (!KeepPicture(trial_, place - ranks_.data(), what)) return;
  *place = rank;
  count_ = std::min(count_ + 1, most_);
}

void RemovePictures(const Folder& root) {
  if (root.Has(kTrial)) root.Sub(kTrial).RemoveTree(kPictures);
}

}  // namespace edgepack::device
