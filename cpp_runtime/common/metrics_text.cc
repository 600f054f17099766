#include "metrics_text.h"

#include <cmath>
#include <cstdio>

#include "common/json.h"

namespace edgepack {
namespace {

constexpr std::size_t kMostLabelBytes = 64;

}  // namespace

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char digits[32];
  const int size = std::snprintf(digits, sizeof(digits), "%.15g", value);
  return {digits, static_cast<std::size_t>(size)};
}

std::string MetricHeader(const std::string& name, const char* type, const std::string& help) {
  return "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

std::string Gauge(const std::string& name, const std::string& help, double value) {
  return MetricHeader(name, "gauge", help) + name + " " + NumberText(value) + "\n";
}

std::string Counter(const std::string& name, const std::string& help, std::int64_t value) {
  return MetricHeader(name, "counter", help) + name + " " + std::to_string(value) + "\n";
}

std::string Label(const std::string& name, std::string_view value) {
  std::string text = ToUtf8(value.substr(0, 2 * kMostLabelBytes));
  if (text.size() > kMostLabelBytes) {
    std::size_t end = kMostLabelBytes;
    // Not within a character.
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
    text.resize(end);
  }
  std::string escaped;
  for (const char c : text) {
    if (c == '\n') {
      escaped += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return name + "=\"" + escaped + "\"";
}

std::string HistogramText(const std::string& name, const std::string& labels, const double* bounds,
                          const std::int64_t* counts, std::size_t bound_count, double sum) {
  const std::string in = labels.empty() ? "" : labels + ",";
  const std::string of = labels.empty() ? "" : "{" + labels + "}";
  std::string text;
  std::int64_t count = 0;
  for (std::size_t i = 0; i <= bound_count; ++i) {
    count += counts[i];
    const std::string bound = i < bound_count ? NumberText(bounds[i]) : "+Inf";
    text.append(name).append("_bucket{").append(in).append("le=\"").append(bound);
    text.append("\"} ").append(std::to_string(count)).append("\n");
  }
  text.append(name).append("_sum").append(of).append(" ").append(NumberText(sum)).append("\n");
  text.append(name).append("_count").append(of).append(" ");
  return text.append(std::to_string(count)).append("\n");
}

}  // namespace edgepack
