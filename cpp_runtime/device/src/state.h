#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/json.h"
#include "folder.h"

namespace edgepack::device {

/// What a health check that passed found. `golden`, `photo` and `top` are JSON: edgepack-run's
/// answers to the golden input and the golden photo (empty: there is none), and the photo's best
/// classes. `system` is what it ran on, as `SystemName` tells it.
struct Health {
  std::string at;
  std::string system;
  double latency_ms = 0;
  double max_abs_error = 0;
  double max_abs_reference = 0;
  double tolerance = 0;
  double max_rss_mb = 0;
  std::string golden;
  std::string photo;
  std::string top = "[]";

  /// As an object for programs.
  void Write(JsonWriter* json) const;
};

/// state/<id>.json. `serial` counts installations, since a board's clock may have stood still.
struct Record {
  std::string release;
  std::string manifest_sha256;
  std::int64_t version = 0;
  std::int64_t serial = 0;
  std::string installed_at;
  std::string activated_at;  // empty: never
  std::string by;
  std::string signer;  // empty: not signed
  std::optional<Health> health;
};

/// state/pending.json: `release` is being tested; if it fails, `fallback` becomes current again and
/// `older` previous. `attempts` tests have been begun.
struct Pending {
  std::string release;
  std::optional<std::string> fallback;
  std::optional<std::string> older;
  std::int64_t attempts = 0;
  std::string by;
};

/// state/rollbacks.json: how many releases were given up because they failed here, and the last.
struct Rollbacks {
  std::int64_t count = 0;
  std::string release;
  std::string at;
};

/// The folder state/.
class State {
 public:
  explicit State(const Folder& root);

  /// Nothing if there is none, or none that can be read.
  [[nodiscard]] std::optional<Record> Find(const std::string& release) const;
  void Save(const Record& record) const;
  void Remove(const std::string& release) const;

  /// A second copy of a release's manifest and of its signature: all else can be linked anew from
  /// the store, or sent, by what a manifest says.
  void KeepCopy(const std::string& release, const std::string& manifest,
                const std::optional<std::string>& signature) const;
  struct Copy {
    std::string manifest;
    std::optional<std::string> signature;
  };
  /// That copy, if it is the one that the release's record tells of.
  [[nodiscard]] std::optional<Copy> FindCopy(const std::string& release) const;
  [[nodiscard]] std::int64_t NextSerial() const;

  /// Throws Error "damaged" for one that makes no sense.
  [[nodiscard]] std::optional<Pending> pending() const;
  void SetPending(const Pending& pending) const;
  void ClearPending() const;

  /// Nothing if none failed yet, or that cannot be read.
  [[nodiscard]] std::optional<Rollbacks> rollbacks() const;
  /// One more, of this release, if it can be written down: what counts is that it was given up.
  void CountRollback(const std::string& release, const std::string& at) const;
  void RemoveLeftovers() const { folder_.RemoveUnfinished(); }

  /// The highest version of bundles of this name that ever passed here; nothing before the first.
  /// If its file is lost or damaged: what the records say.
  [[nodiscard]] std::optional<std::int64_t> highest(const std::string& name) const;
  void Raise(const std::string& name, std::int64_t version) const;
  /// Whether there is anything to be read in the file itself.
  [[nodiscard]] bool HasHighest() const { return ReadHighest().has_value(); }
  /// Those of all releases that have one.
  [[nodiscard]] std::vector<Record> Records() const;
  /// Of which releases there is anything, a record or a copy.
  [[nodiscard]] std::set<std::string> Releases() const;

 private:
  /// Floors by name; "" is one of before names were noted, which counts for all.
  using Floors = std::map<std::string, std::int64_t>;

  void Keep(const std::string& name, const std::string& content) const;
  /// What is in the file itself; nothing if it is lost or damaged.
  [[nodiscard]] std::optional<Floors> ReadHighest() const;

  Folder folder_;
};

}  // namespace edgepack::device
