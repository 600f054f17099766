#include "metrics.h"

#include <ctime>
#include <sys/statvfs.h>
#include <vector>

#include "app_metrics.h"
#include "common/metrics_text.h"
#include "error.h"
#include "layout.h"
#include "status.h"
#include "trial.h"

namespace edgepack::device {
namespace {

/// "2026-01-31T12:00:00Z" as seconds since 1970; nothing if it is none.
std::optional<std::int64_t> SecondsOf(const std::string& time) {
  const std::optional<std::time_t> seconds = ParseTime(time);
  if (!seconds) return std::nullopt;
  return static_cast<std::int64_t>(*seconds);
}

class Writer {
 public:
  explicit Writer(const std::string& model) : model_(Label("model", model)) {}

  void Add(const std::string& name, const char* type, const std::string& help, double value,
           const std::string& labels = {}) {
    const std::string full = "edgepack_device_" + name;
    text_ += MetricHeader(full, type, help) + full + "{" + model_ +
             (labels.empty() ? "" : "," + labels) + "} " + NumberText(value) + "\n";
  }
  template <typename Value>
  void AddIf(const std::string& name, const std::string& help, const std::optional<Value>& value,
             const std::string& labels = {}) {
    if (value) Add(name, "gauge", help, static_cast<double>(*value), labels);
  }
  void Append(const std::string& text) { text_ += text; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string model_;
  std::string text_;
};

void AddRelease(const Site& site, const std::string& id, Writer* out) {
  const std::string release = Label("release", id);
  std::optional<Manifest> manifest;
  try {
    manifest = site.releases.Load(id).manifest;
  } catch (const Error&) {
    manifest.reset();  // edgepack_device_problems counts it
  }
  const Record record = site.state.Find(id).value_or(Record());
  const auto version = manifest ? manifest->version : record.version;
  out->Add("release_info", "gauge", "The current release.", 1,
           release + "," + Label("version", std::to_string(version)) + "," +
               Label("board", manifest ? manifest->board : "") + "," +
               Label("model_file", manifest ? manifest->model_file : "") + "," +
               Label("model_sha256", manifest ? manifest->model_sha256 : "") + "," +
               Label("by", record.by) + "," + Label("signer", record.signer));
  out->AddIf("release_since_timestamp_seconds", "When it became current.",
             SecondsOf(record.activated_at), release);
  const bool tested = record.health.has_value();
  out->Add("release_healthy", "gauge",
           "1: it is whole as far as is easily seen, and passed its smoke test; 0: it did not, or "
           "it is being tested.",
           manifest && tested && !HasPending(site) ? 1 : 0, release);
  if (!tested) return;
  out->AddIf("smoke_test_timestamp_seconds", "When its last smoke test passed.",
             SecondsOf(record.health->at), release);
  out->Add("smoke_test_seconds", "gauge", "One run of the model in that test.",
           record.health->latency_ms / 1000, release);
  out->Add("smoke_test_error", "gauge", "The largest error of that test.",
           record.health->max_abs_error, release);
  out->Add("smoke_test_memory_bytes", "gauge", "The most memory of that test.",
           record.health->max_rss_mb * 1e6, release);
}

void AddTrial(const Trial& trial, Writer* out) {
  const std::string release = Label("release", trial.release);
  out->Add("trial_info", "gauge", "The last trial: of which release, and how it goes or ended.", 1,
           release + "," + Label("before", trial.before) + "," + Label("phase", trial.phase));
  out->Add("trial_pictures", "gauge", "Pictures that it compared.",
           static_cast<double>(trial.pictures), release);
  out->AddIf("trial_agreement", "How far the answers to them agreed, from 0 to 1.",
             trial.Agreement(), release);
}

}  // namespace

std::string ModelName(const Site& site) {
  if (const std::optional<std::string> current = site.releases.Named(kCurrent)) {
    try {
      return site.releases.Load(*current).manifest.name;
    } catch (const Error&) {
      return site.trust.name().value_or("");
    }
  }
  return site.trust.name().value_or("");
}

std::string MetricsText(const Site& site, const std::optional<std::string>& app_file) {
  const std::string model = ModelName(site);
  Writer out(model);
  out.Add("tool_info", "gauge", "The device tool.", 1, Label("version", EDGEPACK_VERSION));
  const std::optional<std::string> current = site.releases.Named(kCurrent);
  out.Add("has_release", "gauge", "Whether a release is current.", current ? 1 : 0);
  if (current) AddRelease(site, *current, &out);
  out.Add("testing", "gauge", "Whether a release is being tested, or a test was interrupted.",
          HasPending(site) ? 1 : 0);
  const std::optional<Rollbacks> rollbacks = site.state.rollbacks();
  out.Add("rollbacks_total", "counter", "Releases that were given up because they failed here.",
          static_cast<double>(rollbacks ? rollbacks->count : 0));
  if (rollbacks) {
    out.AddIf("rollback_timestamp_seconds", "When the last of them was given up.",
              SecondsOf(rollbacks->at), Label("release", rollbacks->release));
  }
  if (const std::optional<Trial> trial = FindTrial(site.root)) AddTrial(*trial, &out);
  out.Add("problems", "gauge",
          "What is damaged and easily seen: `edgepack-device status` names it.",
          static_cast<double>(Problems(site).size()));
  out.Add("releases", "gauge", "Releases that are installed.",
          static_cast<double>(site.releases.Ids().size()));
  out.Add("store_bytes", "gauge", "What all releases take.",
          static_cast<double>(site.store.Sum().bytes));
  struct statvfs disk = {};
  if (statvfs(site.root.path().c_str(), &disk) == 0) {
    const auto block = static_cast<double>(disk.f_frsize);
    out.Add("disk_bytes", "gauge", "The file system of the releases.",
            static_cast<double>(disk.f_blocks) * block);
    out.Add("disk_free_bytes", "gauge", "What is free of it for who is not root.",
            static_cast<double>(disk.f_bavail) * block);
  }
  const std::optional<std::string> file = app_file ? app_file : MetricsFileOf(site);
  if (!file) return out.text();
  const std::optional<AppMetrics> app = ReadAppMetrics(*file, model, current.value_or(""));
  const std::int64_t age_s = app ? time(nullptr) - app->written_at : kFreshS + 1;
  out.Add("app_up", "gauge", "Whether the app's own file of metrics is there, and fresh.",
          age_s <= kFreshS ? 1 : 0);
  // Old ones would look like an app that is idle.
  if (app && age_s <= kFreshS) out.Append(app->text);
  return out.text();
}

std::string WriteTextfile(const Site& site, const std::optional<std::string>& app_file,
                          const std::string& folder) {
  const std::string name = "edgepack-" + ModelName(site) + ".prom";
  const Folder to = Folder::Open(folder);
  to.Replace(name, MetricsText(site, app_file), "textfile");
  return to.PathOf(name);
}

namespace {

/// A word of a unit's command line, as systemd.service(5) and systemd.unit(5) read it.
std::string UnitWord(const std::string& word) {
  std::string text = "\"";
  for (const char c : word) {
    if (static_cast<unsigned char>(c) < ' ') {
      throw Error(kExitUsage, "usage", "a control character in a path", "choose another folder");
    }
    if (c == '"' || c == '\\') text += '\\';
    if (c == '%' || c == '$') text += c;
    text += c;
  }
  return text + "\"";
}

}  // namespace

std::string WriteTimer(const Site& site, const std::optional<std::string>& app_file,
                       const std::string& folder, const std::string& units,
                       const std::string& tool) {
  const std::string name = "edgepack-metrics-" + ModelName(site);
  std::string command = UnitWord(tool) + " metrics --root " + UnitWord(site.root.path()) +
                        " --textfile " + UnitWord(folder);
  if (app_file) command += " --app " + UnitWord(*app_file);
  const Folder to = Folder::Open(units);
  to.Replace(name + ".service",
             "[Unit]\nDescription=Metrics of " + ModelName(site) +
                 " for Prometheus\n\n[Service]\nType=oneshot\nExecStart=" + command + "\n",
             "unit");
  to.Replace(name + ".timer",
             "[Unit]\nDescription=Metrics of " + ModelName(site) +
                 " for Prometheus\n\n[Timer]\nOnStartupSec=5\nOnUnitActiveSec=30\n"
                 "AccuracySec=1\n\n[Install]\nWantedBy=timers.target\n",
             "unit");
  to.MakeSub("timers.target.wants").ReplaceLink(name + ".timer", "../" + name + ".timer", "unit");
  return "systemctl --user daemon-reload\nsystemctl --user start " + name +
         ".timer\nloginctl enable-linger\n";
}

}  // namespace edgepack::device
