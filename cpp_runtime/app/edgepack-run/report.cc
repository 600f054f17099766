#include "report.h"

#include <cmath>
#include <iomanip>
#include <string_view>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/json.h>

#include "statistics.h"

namespace edgepack {
namespace {

namespace ffi = tvm::ffi;
using ffi::json::Array;
using ffi::json::Object;

ffi::String Text(std::string_view text) { return {text.data(), text.size()}; }

/// JSON has no NaN and no infinity.
ffi::Any Number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value;
}

ffi::Any Count(std::size_t value) { return static_cast<std::int64_t>(value); }

void Set(Object* object, const char* key, const ffi::Any& value) {
  object->Set(ffi::String(key), value);
}

void SetNumber(Object* object, const char* key, const std::optional<double>& value) {
  if (value) Set(object, key, Number(*value));
}

void SetImage(Object* object, const Report& report) {
  if (!report.image) return;
  Set(object, "image", Text(*report.image));
  Set(object, "mtime_ns", report.image_mtime_ns);
}

template <typename Range, typename Convert>
Array List(const Range& range, Convert convert) {
  Array array;
  for (const auto& element : range) array.push_back(convert(element));
  return array;
}

ffi::Any OutputObject(const TensorInfo& info) {
  Object object;
  Set(&object, "name", Text(info.name));
  Set(&object, "dtype", Text(Name(info.dtype)));
  Set(&object, "shape", List(info.shape, [](std::int64_t dim) { return ffi::Any(dim); }));
  return object;
}

ffi::Any TopObject(const Report::Labelled& top) {
  Object object;
  Set(&object, "index", Count(top.score.index));
  if (top.label) Set(&object, "label", Text(*top.label));
  Set(&object, "score", Number(top.score.score));
  return object;
}

ffi::Any BenchObject(const Report::Bench& bench) {
  const Statistics statistics = Summarise(bench.times_ms);
  Object object;
  Set(&object, "warmup", bench.warmup);
  Set(&object, "runs", Count(bench.times_ms.size()));
  Set(&object, "times_ms", List(bench.times_ms, Number));
  Set(&object, "mean_ms", Number(statistics.mean));
  Set(&object, "std_ms", Number(statistics.std));
  Set(&object, "min_ms", Number(statistics.min));
  Set(&object, "max_ms", Number(statistics.max));
  Set(&object, "p50_ms", Number(statistics.p50));
  Set(&object, "p90_ms", Number(statistics.p90));
  Set(&object, "p99_ms", Number(statistics.p99));
  return object;
}

ffi::Any LayerObject(const Profile::Entry& entry) {
  Object object;
  Set(&object, "layer", Text(entry.layer.name));
  Set(&object, "operator", Text(entry.layer.op));
  Set(&object, "kernel", Text(entry.layer.kernel));
  Set(&object, "macs", Count(entry.layer.macs));
  Set(&object, "ms", Number(entry.ms));
  Set(&object, "share", Number(entry.share));
  SetNumber(&object, "gflops", entry.gflops);
  return object;
}

ffi::Any ProfileObject(const Profile& profile) {
  Object object;
  Set(&object, "runs", Count(profile.runs));
  Set(&object, "overhead_ms", Number(profile.overhead_ms));
  Set(&object, "layers", List(profile.entries, LayerObject));
  return object;
}

void PrintProfile(const Profile& profile, std::ostream& out) {
  out << "profile, medians of " << profile.runs << " runs; it adds " << profile.overhead_ms
      << " ms to a run:\n        ms  share  GFLOP/s  layer\n";
  for (const Profile::Entry& entry : profile.entries) {
    out << std::setprecision(3) << std::setw(10) << entry.ms << std::setprecision(1) << std::setw(6)
        << 100 * entry.share << "%" << std::setw(9);
    entry.gflops ? out << *entry.gflops : out << "-";
    const Layer& layer = entry.layer;
    out << "  " << (layer.name.empty() ? layer.kernel : layer.name) << " " << layer.op << "\n";
  }
  out << std::setprecision(2);
}

ffi::Any ExpectedObject(const Comparison& expected) {
  Object object;
  Set(&object, "max_abs_error", Number(expected.max_abs_error));
  Set(&object, "max_abs_reference", Number(expected.max_abs_reference));
  Set(&object, "tolerance", Number(expected.tolerance));
  Set(&object, "ok", expected.ok());
  return object;
}

void PrintObject(const Object& object, std::ostream& out) {
  const ffi::String text = ffi::json::Stringify(object);
  out << std::string_view(text.data(), text.size()) << "\n";
}

double Mega(std::size_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

void PrintJson(const Report& report, std::ostream& out) {
  Object object;
  SetImage(&object, report);
  Set(&object, "edgepack", Text(EDGEPACK_VERSION));
  if (report.model) {
    Set(&object, "model", Text(*report.model));
    Set(&object, "threads", report.threads);
    Set(&object, "cpus", List(report.cpus, [](int cpu) { return ffi::Any(cpu); }));
  }
  SetNumber(&object, "load_ms", report.load_ms);
  SetNumber(&object, "decode_ms", report.decode_ms);
  SetNumber(&object, "preprocess_ms", report.preprocess_ms);
  SetNumber(&object, "run_ms", report.run_ms);
  Set(&object, "rss_peak_bytes", Count(report.rss_peak_bytes));
  if (report.model) {
    Set(&object, "arena_bytes", Count(report.arena_bytes));
    Set(&object, "params_bytes", Count(report.params_bytes));
    Set(&object, "workspace_peak_bytes", Count(report.workspace_peak_bytes));
    Set(&object, "outputs", List(report.outputs, OutputObject));
  }
  if (!report.top.empty()) Set(&object, "top", List(report.top, TopObject));
  if (report.bench) Set(&object, "bench", BenchObject(*report.bench));
  if (report.profile) Set(&object, "profile", ProfileObject(*report.profile));
  if (report.expected) Set(&object, "expected", ExpectedObject(*report.expected));
  PrintObject(object, out);
}

void PrintText(const Report& report, std::ostream& out) {
  out << std::fixed;
  for (const Report::Labelled& top : report.top) {
    out << std::setprecision(4) << std::setw(9) << top.score.score << "  " << std::setw(5)
        << top.score.index;
    if (top.label) out << "  " << *top.label;
    out << "\n";
  }
  out << std::setprecision(2);
  const char* separator = "";
  const auto print_time = [&](const char* name, const std::optional<double>& time) {
    if (!time) return;
    out << separator << name << " " << *time << " ms";
    separator = ", ";
  };
  print_time("load", report.load_ms);
  print_time("decode", report.decode_ms);
  print_time("preprocess", report.preprocess_ms);
  print_time("run", report.run_ms);
  if (*separator != '\0') out << "\n";
  if (report.model) {
    out << report.threads << (report.threads == 1 ? " thread" : " threads") << ", parameters "
        << Mega(report.params_bytes) << " MB, arena " << Mega(report.arena_bytes)
        << " MB, workspace " << Mega(report.workspace_peak_bytes) << " MB, peak RSS "
        << Mega(report.rss_peak_bytes) << " MB\n";
  }
  if (report.bench) {
    const Statistics s = Summarise(report.bench->times_ms);
    out << report.bench->times_ms.size() << " runs after " << report.bench->warmup
        << " to warm up: mean " << s.mean << " ms, std " << s.std << ", min " << s.min << ", p50 "
        << s.p50 << ", p90 " << s.p90 << ", p99 " << s.p99 << ", max " << s.max << "\n";
  }
  if (report.profile) PrintProfile(*report.profile, out);
  if (report.expected) {
    out << std::scientific << (report.expected->ok() ? "outputs agree" : "outputs differ")
        << ": largest error " << report.expected->max_abs_error << ", largest reference "
        << report.expected->max_abs_reference << ", tolerance " << report.expected->tolerance
        << "\n";
  }
}

void PrintJsonError(ExitCode code, const std::string& message, const std::string& hint,
                    std::ostream& out, const Report& about) {
  Object error;
  Set(&error, "code", static_cast<int>(code));
  Set(&error, "message", Text(message));
  if (!hint.empty()) Set(&error, "hint", Text(hint));
  Object object;
  SetImage(&object, about);
  Set(&object, "error", error);
  PrintObject(object, out);
}

}  // namespace edgepack
