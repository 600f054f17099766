#include "status.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "allowed_signers.h"
#include "app_metrics.h"
#include "clock.h"
#include "common/json.h"
#include "error.h"
#include "layout.h"
#include "lock.h"
#include "sha256.h"

namespace edgepack::device {
namespace {

constexpr const char* kVerified = "verified.json";
constexpr std::size_t kMaxVerifiedBytes = std::size_t{64} << 10U;

/// The inputs on which the model was compared with its reference before it was packed: of the
/// board's own code under an emulator, and of a build for the maker's machine.
struct ComparedOn {
  std::vector<std::string> emulated;
  std::vector<std::string> local;
};

/// A release that `link` names, with what is known of it.
struct Known {
  Manifest manifest;
  Record record;
  std::optional<ComparedOn> compared;
};

/// Whether they can be shown: a bundle's maker does not write to a terminal.
bool ArePlain(const std::vector<std::string>& texts) {
  return std::all_of(texts.begin(), texts.end(), [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
  });
}

/// What the release records of it; nothing if that is damaged, or another version's.
std::optional<ComparedOn> FindCompared(const Site& site, const Manifest& manifest) {
  const auto listed = std::find_if(manifest.files.begin(), manifest.files.end(),
                                   [](const FileEntry& file) { return file.path == kVerified; });
  if (listed == manifest.files.end()) return std::nullopt;
  try {
    const std::string text =
        site.releases.Open(manifest.release).OpenFile(kVerified).ReadAll(kMaxVerifiedBytes);
    if (Sha256Hex(text) != listed->sha256) return std::nullopt;
    const JsonDocument document(text, kVerified, "damaged");
    JsonObject record = document.Root();
    ComparedOn compared{record.Strings("emulated"), record.Strings("local")};
    if (!ArePlain(compared.emulated) || !ArePlain(compared.local)) return std::nullopt;
    return compared;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<Known> Find(const Site& site, const char* link) {
  const std::optional<std::string> id = site.releases.Named(link);
  if (!id) return std::nullopt;
  Known known;
  known.record = site.state.Find(*id).value_or(Record());
  try {
    known.manifest = site.releases.Load(*id).manifest;
    known.compared = FindCompared(site, known.manifest);
  } catch (const Error&) {  // `Problems` says so
    known.manifest.release = *id;
    known.manifest.version = known.record.version;
  }
  return known;
}

std::optional<Pending> FindPending(const Site& site) {
  try {
    return site.state.pending();
  } catch (const Error&) {
    Pending pending;
    pending.release = site.releases.Named(kCurrent).value_or("");
    return pending;
  }
}

void WriteStrings(const std::vector<std::string>& texts, JsonWriter* json) {
  json->BeginArray();
  for (const std::string& text : texts) json->String(text);
  json->EndArray();
}

void WriteKnown(const std::optional<Known>& known, JsonWriter* json) {
  if (!known) {
    json->Null();
    return;
  }
  const auto& [manifest, record, compared] = *known;
  json->BeginObject().Key("release").String(manifest.release).Key("name").String(manifest.name);
  json->Key("board").String(manifest.board).Key("model").String(manifest.model_file);
  json->Key("model_sha256").String(manifest.model_sha256).Key("version").Int(manifest.version);
  json->Key("since").String(record.activated_at).Key("by").String(record.by);
  json->Key("signer").String(record.signer).Key("compared");
  if (compared) {
    json->BeginObject().Key("emulated");
    WriteStrings(compared->emulated, json);
    json->Key("local");
    WriteStrings(compared->local, json);
    json->EndObject();
  } else {
    json->Null();
  }
  json->Key("health");
  if (record.health) {
    const Health& health = *record.health;
    json->BeginObject().Key("outcome").String("ok").Key("at").String(health.at);
    json->Key("latency_ms").Number(health.latency_ms);
    json->Key("max_abs_error").Number(health.max_abs_error);
    json->Key("max_rss_mb").Number(health.max_rss_mb).EndObject();
  } else {
    json->Null();
  }
  json->EndObject();
}

void WriteReleases(const Site& site, JsonWriter* json) {
  json->BeginArray();
  for (const std::string& id : site.releases.Ids()) {
    json->BeginObject().Key("release").String(id);
    try {
      const Manifest manifest = site.releases.Load(id).manifest;
      std::uint64_t bytes = 0;
      for (const FileEntry& file : manifest.files) bytes += file.size;
      json->Key("version").Int(manifest.version);
      json->Key("bytes").Int(static_cast<std::int64_t>(bytes));
    } catch (const Error& error) {
      json->Key("error").String(error.message);
    }
    json->EndObject();
  }
  json->EndArray();
}

void WritePending(const std::optional<Pending>& pending, JsonWriter* json) {
  if (!pending) {
    json->Null();
    return;
  }
  json->BeginObject().Key("release").String(pending->release);
  json->Key("fallback").StringOrNull(pending->fallback);
  json->Key("attempts").Int(pending->attempts).Key("by").String(pending->by).EndObject();
}

/// What the app of the current release says, if its service has it say that. A file that is no
/// longer written does not tell the processor; input that differed did so.
AppMetrics FindApp(const Site& site) {
  const std::optional<std::string> file = MetricsFileOf(site);
  const std::optional<std::string> current = site.releases.Named(kCurrent);
  if (!file || !current) return {};
  std::optional<AppMetrics> app = ReadAppMetrics(*file, "", *current);
  if (!app) return {};
  if (std::time(nullptr) - app->written_at > kFreshS) app->on_gpu.reset();
  return std::move(*app);
}

void WriteApp(const AppMetrics& app, JsonWriter* json) {
  json->Key("processor");
  if (app.on_gpu) {
    json->String(*app.on_gpu ? "gpu" : "cpu");
  } else {
    json->Null();
  }
  json->Key("drift");
  if (app.drift.empty()) {
    json->Null();
    return;
  }
  json->BeginArray();
  for (const DriftSignal& signal : app.drift) {
    json->BeginObject().Key("signal").String(signal.name).Key("level").Int(signal.level);
    json->Key("since");
    if (signal.level > 0) {
      json->String(Timestamp(static_cast<std::time_t>(signal.since)));
    } else {
      json->Null();
    }
    json->EndObject();
  }
  json->EndArray();
}

std::string AppText(const AppMetrics& app) {
  std::string text;
  if (app.on_gpu) text += *app.on_gpu ? "runs on the GPU\n" : "runs on the CPU\n";
  for (const DriftSignal& signal : app.drift) {
    if (signal.level == 0) continue;
    text += signal.name + (signal.name == "brightness" ? " differs" : " differ") +
            (signal.level > 1 ? " much" : "") + " from the release's photos since " +
            Timestamp(static_cast<std::time_t>(signal.since)) + "\n";
  }
  return text;
}

void WriteLock(const std::optional<Holder>& holder, JsonWriter* json) {
  if (!holder) {
    json->Null();
    return;
  }
  json->BeginObject().Key("pid").Int(holder->pid).Key("by").String(holder->by);
  json->Key("since").String(holder->since).Key("what").String(holder->what).EndObject();
}

void WriteSigners(const Trust& trust, JsonWriter* json) {
  std::vector<AllowedSigner> signers;
  try {
    if (const std::optional<std::string> list = trust.signers()) {
      signers = ParseAllowedSigners(*list);
    }
  } catch (const Error&) {  // `Problems` says so
    signers.clear();
  }
  json->BeginArray();
  for (const AllowedSigner& signer : signers) {
    json->String(signer.principals + " " + signer.key.Fingerprint());
  }
  json->EndArray();
}

/// The newest release that was ever current here: of the highest version, and of those the last.
std::optional<Known> FindNewest(const Site& site) {
  std::optional<Record> newest;
  for (Record& record : site.state.Records()) {
    if (record.activated_at.empty()) continue;
    if (!newest ||
        std::pair(newest->version, newest->serial) < std::pair(record.version, record.serial)) {
      newest = std::move(record);
    }
  }
  if (!newest) return std::nullopt;
  Known known;
  known.manifest.release = newest->release;
  try {
    known.manifest = site.releases.Load(newest->release).manifest;
  } catch (const Error&) {  // it is gone, or damaged, which `Problems` says
    known.manifest.valid_until.reset();
  }
  known.record = std::move(*newest);
  return known;
}

std::optional<std::string> Until(const Known& known) {
  if (!known.manifest.valid_until) return std::nullopt;
  return Timestamp(*known.manifest.valid_until);
}

/// How old what is newest here is: nothing newer may come since somebody holds it back.
void WriteNewest(const Site& site, JsonWriter* json) {
  json->Key("now").String(Timestamp(site.trust.Now())).Key("newest");
  const std::optional<Known> newest = FindNewest(site);
  if (!newest) {
    json->Null();
    return;
  }
  json->BeginObject().Key("release").String(newest->record.release);
  json->Key("version").Int(newest->record.version).Key("at").String(newest->record.installed_at);
  json->Key("valid_until").StringOrNull(Until(*newest)).EndObject();
}

std::string NewestText(const Site& site) {
  const std::optional<Known> newest = FindNewest(site);
  if (!newest) return "";
  std::string text = "newest    version " + std::to_string(newest->record.version) +
                     ", here since " + newest->record.installed_at;
  if (const std::optional<std::string> until = Until(*newest)) {
    const bool over = site.trust.Now() > *newest->manifest.valid_until;
    text += (over ? ", was valid until " : ", valid until ") + *until;
  }
  return text + "\n";
}

/// For a person, such as "golden, random (emulated)".
std::string Text(const ComparedOn& compared) {
  std::string text;
  const auto add = [&text](const std::vector<std::string>& inputs, const char* where) {
    for (const std::string& input : inputs) {
      text += text.empty() ? "" : (&input == inputs.data() ? "; " : ", ");
      text += input;
    }
    if (!inputs.empty()) text += where;
  };
  add(compared.emulated, " (emulated)");
  add(compared.local, " (on the maker's machine)");
  return text.empty() ? "no: made with --no-verify" : text;
}

std::string Line(const char* what, const std::optional<Known>& known) {
  std::string line = std::string(what) + "  ";
  if (!known) return line + "none\n";
  const auto& [manifest, record, compared] = *known;
  line += manifest.release + "  " + manifest.name + " (" + manifest.model_file + " " +
          manifest.model_sha256.substr(0, 12) + ", " + manifest.board + "), version " +
          std::to_string(manifest.version) + "\n";
  if (!record.activated_at.empty()) {
    line += "          since " + record.activated_at + " by " + record.by;
    line += record.signer.empty() ? ", not signed\n" : ", signed by " + record.signer + "\n";
  }
  if (compared) line += "          compared before it was packed: " + Text(*compared) + "\n";
  if (record.health) {
    std::array<char, 128> text;  // NOLINT(*-member-init): filled by the call
    (void)std::snprintf(text.data(), text.size(),
                        "          health ok at %s: %.2f ms, largest error %.2g, %.1f MB\n",
                        record.health->at.c_str(), record.health->latency_ms,
                        record.health->max_abs_error, record.health->max_rss_mb);
    line += text.data();
  }
  return line;
}

}  // namespace

std::vector<std::string> Problems(const Site& site) {
  std::vector<std::string> problems;
  const auto check = [&](const auto& read) {
    try {
      read();
    } catch (const Error& error) {
      problems.push_back(error.message);
    }
  };
  for (const std::string& id : site.releases.Ids()) {
    check([&] { (void)site.releases.Load(id); });
  }
  for (const char* link : {kCurrent, kPrevious}) {
    if (site.root.Has(link) && !site.releases.Named(link)) {
      problems.push_back(site.root.PathOf(link) + " names no release");
    }
  }
  check([&] { (void)site.state.pending(); });
  check([&] {
    if (const std::optional<std::string> list = site.trust.signers()) ParseAllowedSigners(*list);
  });
  const std::string name = site.trust.name().value_or("");
  if (!site.state.HasHighest() && site.state.highest(name)) {
    problems.emplace_back("state/highest.json is lost or damaged");
  }
  if (!site.trust.board() && !site.releases.Ids().empty()) {
    problems.emplace_back("trust/board is lost or damaged");
  }
  return problems;
}

bool HasPending(const Site& site) { return FindPending(site).has_value(); }

std::string StatusJson(const Site& site) {
  JsonWriter json;
  json.BeginObject().Key("schema").Int(1).Key("tool").String(EDGEPACK_VERSION);
  json.Key("current");
  WriteKnown(Find(site, kCurrent), &json);
  json.Key("previous");
  WriteKnown(Find(site, kPrevious), &json);
  json.Key("releases");
  WriteReleases(site, &json);
  const Store::Total total = site.store.Sum();
  json.Key("store").BeginObject().Key("blobs").Int(static_cast<std::int64_t>(total.blobs));
  json.Key("bytes").Int(static_cast<std::int64_t>(total.bytes)).EndObject().Key("pending");
  WritePending(FindPending(site), &json);
  json.Key("signers");
  WriteSigners(site.trust, &json);
  WriteNewest(site, &json);
  WriteApp(FindApp(site), &json);
  json.Key("lock");
  WriteLock(Lock::Look(site.root), &json);
  json.Key("problems").BeginArray();
  for (const std::string& problem : Problems(site)) json.String(problem);
  json.EndArray();
  return json.EndObject().text();
}

std::string StatusText(const Site& site) {
  std::string text = Line("current ", Find(site, kCurrent));
  text += Line("previous", Find(site, kPrevious));
  text += NewestText(site);
  const Store::Total total = site.store.Sum();
  text += std::to_string(site.releases.Ids().size()) + " releases, " + std::to_string(total.blobs) +
          " blobs, " + std::to_string(total.bytes) + " bytes\n";
  text += AppText(FindApp(site));
  if (const std::optional<Pending> pending = FindPending(site)) {
    text += "release " + pending->release + " is being tested\n";
  }
  if (const std::optional<Holder> holder = Lock::Look(site.root)) {
    text += holder->by + " (process " + std::to_string(holder->pid) + ") holds the lock since " +
            holder->since + ": " + holder->what + "\n";
  }
  for (const std::string& problem : Problems(site)) {
    text += "damaged: " + problem + " (edgepack-device repair)\n";
  }
  return text;
}

std::string TrustJson(const Trust& trust) {
  JsonWriter json;
  json.BeginObject().Key("signers");
  WriteSigners(trust, &json);
  return json.Key("list").StringOrNull(trust.signers()).EndObject().text();
}

}  // namespace edgepack::device
