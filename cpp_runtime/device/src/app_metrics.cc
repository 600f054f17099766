#include "app_metrics.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>

#include "common/metrics_text.h"
#include "error.h"
#include "file.h"
#include "layout.h"

namespace edgepack::device {
namespace {

constexpr std::size_t kMostAppBytes = std::size_t{256} << 10U;
constexpr std::string_view kOwn = "edgepack_";
constexpr std::string_view kTools = "edgepack_device_";

bool BeginsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool IsNameLetter(char c, bool first) {
  const auto letter = static_cast<unsigned char>(c);
  return letter < 128 &&
         (std::isalpha(letter) != 0 || c == '_' || (!first && std::isdigit(letter) != 0));
}

/// Takes a name from the beginning of `rest`; "" if there is none.
std::string_view TakeName(std::string_view* rest) {
  std::size_t size = 0;
  while (size < rest->size() && IsNameLetter((*rest)[size], size == 0)) ++size;
  const std::string_view name = rest->substr(0, size);
  rest->remove_prefix(size);
  return name;
}

bool Take(std::string_view text, std::string_view* rest) {
  if (!BeginsWith(*rest, text)) return false;
  rest->remove_prefix(text.size());
  return true;
}

/// A line of series: its name, its labels as they are written, and its value.
struct Series {
  std::string_view name;
  std::string_view labels;
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  double value = 0;
};

/// Nothing for a line that is none, or has a time, which node_exporter refuses.
std::optional<Series> ParseSeries(std::string_view line) {
  Series series;
  std::string_view rest = line;
  series.name = TakeName(&rest);
  if (series.name.empty()) return std::nullopt;
  if (Take("{", &rest)) {
    const std::string_view begin = rest;
    std::set<std::string_view> seen;
    do {
      const std::string_view label = TakeName(&rest);
      if (label.empty() || !seen.insert(label).second || !Take("=\"", &rest)) return std::nullopt;
      std::size_t size = 0;
      while (size < rest.size() && rest[size] != '"') size += rest[size] == '\\' ? 2 : 1;
      if (size >= rest.size()) return std::nullopt;
      series.pairs.emplace_back(label, rest.substr(0, size));
      rest.remove_prefix(size + 1);
    } while (Take(",", &rest));
    series.labels = begin.substr(0, begin.size() - rest.size());
    if (!Take("}", &rest)) return std::nullopt;
  }
  if (!Take(" ", &rest) || rest.empty() || rest.size() > 32) return std::nullopt;
  const std::string number(rest);
  char* end = nullptr;
  series.value = std::strtod(number.c_str(), &end);
  const bool plain = std::isspace(static_cast<unsigned char>(number.front())) == 0;
  if (!plain || *end != '\0') return std::nullopt;
  return series;
}

std::string_view ValueOf(const Series& series, std::string_view label) {
  for (const auto& [name, value] : series.pairs) {
    if (name == label) return value;
  }
  return {};
}

/// What follows "# HELP " or "# TYPE ": of which metric. Nothing if it is neither.
std::optional<std::string_view> DescribedBy(std::string_view line) {
  if (!Take("# HELP ", &line) && !Take("# TYPE ", &line)) return std::nullopt;
  return TakeName(&line);
}

void AddDrift(const Series& series, const std::string& release, std::vector<DriftSignal>* drift) {
  const bool level = series.name == "edgepack_drift_level";
  if (!level && series.name != "edgepack_drift_since_timestamp_seconds") return;
  if (ValueOf(series, "release") != release) return;
  const std::string name(ValueOf(series, "signal"));
  // Words for a terminal.
  if (name != "brightness" && name != "scores" && name != "classes") return;
  auto found = std::find_if(drift->begin(), drift->end(),
                            [&](const DriftSignal& one) { return one.name == name; });
  if (found == drift->end()) found = drift->insert(drift->end(), DriftSignal{name});
  constexpr double kLast = 253402300799;  // of the year 9999
  if (level && series.value >= 0 && series.value <= 2)
    found->level = static_cast<int>(series.value);
  if (!level && series.value >= 0 && series.value <= kLast) {
    found->since = static_cast<std::int64_t>(series.value);
  }
}

}  // namespace

std::optional<std::string> MetricsFileOf(const Site& site) {
  const std::optional<std::string> current = site.releases.Named(kCurrent);
  if (!current) return std::nullopt;
  try {
    const Manifest manifest = site.releases.Load(*current).manifest;
    if (!manifest.service) return std::nullopt;
    const std::vector<std::string>& args = manifest.service->args;
    for (std::size_t i = 0; i < args.size(); ++i) {
      constexpr std::string_view kAttached = "--metrics=";
      if (BeginsWith(args[i], kAttached)) return args[i].substr(kAttached.size());
      if (args[i] == "--metrics" && i + 1 < args.size()) return args[i + 1];
    }
  } catch (const Error&) {  // `status` says so
    return std::nullopt;
  }
  return std::nullopt;
}

std::optional<AppMetrics> ReadAppMetrics(const std::string& path, const std::string& model,
                                         const std::string& release) {
  std::string content;
  AppMetrics metrics;
  try {
    Fd fd = OpenPath(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!fd) return std::nullopt;
    const File file(std::move(fd), path);
    const struct stat status = file.Status();
    if (!S_ISREG(status.st_mode)) return std::nullopt;
    metrics.written_at = status.st_mtime;
    content = file.ReadAll(kMostAppBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
  if (content.empty() || content.back() != '\n') return std::nullopt;
  bool of_release = false;
  std::string_view rest = content;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    if (line.empty()) continue;
    const std::optional<std::string_view> described = DescribedBy(line);
    const std::optional<Series> series = described ? std::nullopt : ParseSeries(line);
    if (!described && !series) return std::nullopt;
    const std::string_view name = described ? *described : series->name;
    if (BeginsWith(name, kTools)) return std::nullopt;
    // node_exporter has the memory of its own process by the same name.
    if (!BeginsWith(name, kOwn)) continue;
    if (described) {
      metrics.text.append(line).append("\n");
      continue;
    }
    AddDrift(*series, release, &metrics.drift);
    if (name == "edgepack_app_info") of_release = ValueOf(*series, "release") == release;
    if (name == "edgepack_on_gpu") metrics.on_gpu = series->value == 1;
    metrics.text.append(name).append("{");
    if (ValueOf(*series, "model").empty()) {
      metrics.text += Label("model", model);
      if (!series->labels.empty()) metrics.text += ",";
    }
    metrics.text.append(series->labels).append("} ");
    metrics.text.append(line.substr(line.rfind(' ') + 1)).append("\n");
  }
  if (!of_release) metrics.on_gpu.reset();
  return metrics;
}

}  // namespace edgepack::device
