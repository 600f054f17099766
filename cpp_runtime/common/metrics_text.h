// Prometheus' text format 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace edgepack {

/// Fifteen digits, enough for seconds since 1970; "NaN", "+Inf" and "-Inf" as Prometheus spells
/// them.
std::string NumberText(double value);
/// The lines before the series of a metric.
std::string MetricHeader(const std::string& name, const char* type, const std::string& help);
std::string Gauge(const std::string& name, const std::string& help, double value);
std::string Counter(const std::string& name, const std::string& help, std::int64_t value);
/// `name="value"`, the value as UTF-8, escaped, and of at most 64 bytes.
std::string Label(const std::string& name, std::string_view value);

/// The series of a histogram: `counts` has one more than `bounds`, for what is above all of them.
/// `labels` is empty or what `Label` gives, several with commas between them.
std::string HistogramText(const std::string& name, const std::string& labels, const double* bounds,
                          const std::int64_t* counts, std::size_t bound_count, double sum);

/// Counts of values in bins of one width over 0 to 1; what is outside or NaN is in the last one
/// beyond them.
template <std::size_t kBins>
class UnitHistogram {
 public:
  void Add(double value) {
    std::size_t bin = kBins;
    if (value >= 0 && value <= 1) {
      bin = static_cast<std::size_t>(value * static_cast<double>(kBins));
      if (bin >= kBins) bin = kBins - 1;
      sum_ += value;
    }
    ++counts_[bin];
  }

  [[nodiscard]] std::string Text(const std::string& name, const std::string& labels) const {
    std::array<double, kBins> bounds = {};
    for (std::size_t i = 0; i < kBins; ++i) {
      bounds[i] = static_cast<double>(i + 1) / static_cast<double>(kBins);
    }
    return HistogramText(name, labels, bounds.data(), counts_.data(), kBins, sum_);
  }

 private:
  std::array<std::int64_t, kBins + 1> counts_ = {};
  double sum_ = 0;
};

}  // namespace edgepack
