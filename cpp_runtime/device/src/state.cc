#include "state.h"

#include <algorithm>

#include "error.h"
#include "faults.h"
#include "layout.h"
#include "manifest_reader.h"
#include "sha256.h"

namespace edgepack::device {
namespace {

constexpr char kPendingName[] = "pending.json";
constexpr char kHighestName[] = "highest.json";
constexpr char kRollbacksName[] = "rollbacks.json";
constexpr std::size_t kMaxStateBytes = std::size_t{8} << 20U;

std::string RecordName(const std::string& release) { return release + ".json"; }
std::string CopyName(const std::string& release) { return release + ".manifest"; }
std::string SignatureName(const std::string& release) { return release + ".manifest.sig"; }

std::optional<std::string> ReadWhole(const Folder& folder, const std::string& name) {
  try {
    const std::optional<File> file = folder.Find(name);
    if (!file) return std::nullopt;
    return file->ReadAll(kMaxStateBytes);
  } catch (const Error& error) {
    if (error.kind != "damaged") throw;
    return std::nullopt;
  }
}

std::optional<std::string> ReadOptional(const char* key, JsonObject* object) {
  if (!object->HasValue(key)) return std::nullopt;
  return object->String(key);
}

/// The numbers that record and report share.
void WriteNumbers(const Health& health, JsonWriter* json) {
  json->Key("outcome").String("ok").Key("at").String(health.at);
  json->Key("system").String(health.system);
  json->Key("latency_ms").Number(health.latency_ms);
  json->Key("max_abs_error").Number(health.max_abs_error);
  json->Key("max_abs_reference").Number(health.max_abs_reference);
  json->Key("tolerance").Number(health.tolerance);
  json->Key("max_rss_mb").Number(health.max_rss_mb);
}

Health ReadHealth(JsonObject object) {
  Health health;
  health.at = object.String("at");
  health.system = object.String("system");
  health.latency_ms = object.Number("latency_ms");
  health.max_abs_error = object.Number("max_abs_error");
  health.max_abs_reference = object.Number("max_abs_reference");
  health.tolerance = object.Number("tolerance");
  health.max_rss_mb = object.Number("max_rss_mb");
  health.golden = object.String("golden");
  health.photo = object.String("photo");
  health.top = object.String("top");
  return health;
}

}  // namespace

void Health::Write(JsonWriter* json) const {
  json->BeginObject();
  WriteNumbers(*this, json);
  json->Key("top").Raw(top).Key("golden").Raw(golden);
  json->Key("photo").Raw(photo.empty() ? "null" : photo).EndObject();
}

State::State(const Folder& root) : folder_(root.MakeSub(kState)) {}

std::optional<Record> State::Find(const std::string& release) const {
  try {
    const std::optional<File> file = folder_.Find(RecordName(release));
    if (!file) return std::nullopt;
    const JsonDocument document(file->ReadAll(kMaxStateBytes), file->path(), "damaged");
    JsonObject root = document.Root();
    Record record;
    record.release = release;
    record.manifest_sha256 = root.String("manifest_sha256");
    record.version = root.Int("version");
    record.serial = root.Int("serial");
    record.installed_at = root.String("installed_at");
    record.activated_at = root.String("activated_at");
    record.by = root.String("by");
    record.signer = root.String("signer");
    if (root.HasValue("health")) record.health = ReadHealth(root.Object("health"));
    return record;
  } catch (const Error&) {
    return std::nullopt;  // of another version, or damaged: a test that runs again does no harm
  }
}

void State::Save(const Record& record) const {
  JsonWriter json;
  json.BeginObject().Key("release").String(record.release);
  json.Key("manifest_sha256").String(record.manifest_sha256);
  json.Key("version").Int(record.version).Key("serial").Int(record.serial);
  json.Key("installed_at").String(record.installed_at);
  json.Key("activated_at").String(record.activated_at);
  json.Key("by").String(record.by).Key("signer").String(record.signer).Key("health");
  if (record.health) {
    // What edgepack-run said is kept as a text, to be given back as it was.
    json.BeginObject();
    WriteNumbers(*record.health, &json);
    json.Key("top").String(record.health->top).Key("golden").String(record.health->golden);
    json.Key("photo").String(record.health->photo).EndObject();
  } else {
    json.Null();
  }
  json.EndObject();
  folder_.Replace(RecordName(record.release), json.text() + "\n", "record");
}

void State::Remove(const std::string& release) const {
  for (const std::string& name : {RecordName(release), CopyName(release), SignatureName(release)}) {
    folder_.RemoveTree(name);
  }
  folder_.Sync();
}

void State::Keep(const std::string& name, const std::string& content) const {
  if (ReadWhole(folder_, name) != content) folder_.Replace(name, content, "copy");
}

void State::KeepCopy(const std::string& release, const std::string& manifest,
                     const std::optional<std::string>& signature) const {
  Keep(CopyName(release), manifest);
  if (signature) Keep(SignatureName(release), *signature);
}

std::optional<State::Copy> State::FindCopy(const std::string& release) const {
  const std::optional<Record> record = Find(release);
  std::optional<std::string> manifest = ReadWhole(folder_, CopyName(release));
  if (!record || !manifest || Sha256Hex(*manifest) != record->manifest_sha256) return std::nullopt;
  return Copy{std::move(*manifest), ReadWhole(folder_, SignatureName(release))};
}

std::vector<Record> State::Records() const {
  std::vector<Record> records;
  for (const std::string& name : folder_.Names()) {
    const std::string release = name.substr(0, name.find('.'));
    if (!IsReleaseId(release) || name != RecordName(release)) continue;
    if (std::optional<Record> record = Find(release)) records.push_back(std::move(*record));
  }
  return records;
}

std::set<std::string> State::Releases() const {
  std::set<std::string> releases;
  for (const std::string& name : folder_.Names()) {
    std::string release = name.substr(0, name.find('.'));
    if (IsReleaseId(release)) releases.insert(std::move(release));
  }
  return releases;
}

std::int64_t State::NextSerial() const {
  std::int64_t highest = 0;
  for (const Record& record : Records()) highest = std::max(highest, record.serial);
  return highest + 1;
}

std::optional<Pending> State::pending() const {
  const std::optional<File> file = folder_.Find(kPendingName);
  if (!file) return std::nullopt;
  const JsonDocument document(file->ReadAll(kMaxStateBytes), file->path(), "damaged");
  JsonObject root = document.Root();
  Pending pending{root.String("release"), ReadOptional("fallback", &root),
                  ReadOptional("older", &root), root.Int("attempts"), root.String("by")};
  for (const std::string& id : {pending.release, pending.fallback.value_or(pending.release),
                                pending.older.value_or(pending.release)}) {
    if (!IsReleaseId(id)) throw Refused("damaged", file->path() + " names no release: " + id);
  }
  return pending;
}

void State::SetPending(const Pending& pending) const {
  JsonWriter json;
  json.BeginObject().Key("release").String(pending.release).Key("fallback");
  json.StringOrNull(pending.fallback).Key("older").StringOrNull(pending.older);
  json.Key("attempts").Int(pending.attempts).Key("by").String(pending.by).EndObject();
  folder_.Replace(kPendingName, json.text() + "\n", "pending");
}

void State::ClearPending() const {
  Step("pending.remove");
  folder_.SetFolderAside(kPendingName);
  if (folder_.Remove(kPendingName)) folder_.Sync();
}

std::optional<Rollbacks> State::rollbacks() const {
  try {
    const std::optional<File> file = folder_.Find(kRollbacksName);
    if (!file) return std::nullopt;
    const JsonDocument document(file->ReadAll(kMaxStateBytes), file->path(), "damaged");
    JsonObject root = document.Root();
    Rollbacks rollbacks{root.Int("count", 0), root.String("release"), root.String("at")};
    if (!IsReleaseId(rollbacks.release)) return std::nullopt;
    return rollbacks;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void State::CountRollback(const std::string& release, const std::string& at) const {
  const std::int64_t count = rollbacks().value_or(Rollbacks()).count + 1;
  JsonWriter json;
  json.BeginObject().Key("count").Int(count).Key("release").String(release).Key("at").String(at);
  try {
    folder_.SetFolderAside(kRollbacksName);
    folder_.Replace(kRollbacksName, json.EndObject().text() + "\n", "rollbacks");
  } catch (const Error& error) {
    if (error.kind != "io" && error.kind != "disk-full") throw;
  }
}

std::optional<State::Floors> State::ReadHighest() const {
  try {
    const std::optional<File> file = folder_.Find(kHighestName);
    if (!file) return std::nullopt;
    const JsonDocument document(file->ReadAll(kMaxStateBytes), file->path(), "damaged");
    JsonObject root = document.Root();
    Floors floors;
    floors[root.Has("name") ? root.String("name") : ""] = root.Int("version");
    if (root.Has("others")) {
      for (JsonObject& other : root.Objects("others")) {
        floors[other.String("name")] = other.Int("version");
      }
    }
    return floors;
  } catch (const Error& error) {
    if (error.kind != "damaged") throw;
    return std::nullopt;
  }
}

std::optional<std::int64_t> State::highest(const std::string& name) const {
  std::optional<std::int64_t> highest;
  if (const std::optional<Floors> floors = ReadHighest()) {
    for (const std::string& key : {name, std::string()}) {
      const auto floor = floors->find(key);
      if (floor != floors->end()) highest = std::max(highest.value_or(0), floor->second);
    }
    return highest;
  }
  for (const Record& record : Records()) {
    if (!record.activated_at.empty()) highest = std::max(highest.value_or(0), record.version);
  }
  return highest;
}

void State::Raise(const std::string& name, std::int64_t version) const {
  const std::optional<Floors> there = ReadHighest();
  Floors floors = there.value_or(Floors());
  version = std::max(version, highest(name).value_or(version));
  const auto own = floors.find(name);
  if (there && own != floors.end() && own->second >= version) return;
  // An older tool reads the first number only.
  JsonWriter json;
  json.BeginObject().Key("version").Int(version).Key("name").String(name);
  json.Key("others").BeginArray();
  for (const auto& [other, floor] : floors) {
    if (other == name || other.empty()) continue;
    json.BeginObject().Key("name").String(other).Key("version").Int(floor).EndObject();
  }
  json.EndArray().EndObject();
  folder_.Replace(kHighestName, json.text() + "\n", "highest");
}

}  // namespace edgepack::device
