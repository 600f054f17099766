#include "report.h"

#include <cstdint>
#include <iomanip>
#include <string_view>
#include <utility>

#include "common/json.h"
#include "json_lists.h"
#include "photos.h"
#include "statistics.h"

namespace edgepack {
namespace {

void WriteNumber(const char* key, const std::optional<double>& value, JsonWriter* json) {
  if (value) json->Key(key).Number(*value);
}

void WriteImage(const Report& report, JsonWriter* json) {
  if (report.frame) json->Key("frame").Int(*report.frame);
  if (report.image) WriteImageName(*report.image, json);
  if (report.image_mtime_ns != 0) json->Key("mtime_ns").Int(report.image_mtime_ns);
}

void WriteOutput(const TensorInfo& info, JsonWriter* json) {
  json->BeginObject().Key("name").String(info.name).Key("dtype").String(Name(info.dtype));
  const auto write = [&](std::int64_t dim) { json->Int(dim); };
  WriteList("shape", info.shape, json, write);
  if (!info.bound.empty()) WriteList("bound", info.bound, json, write);
  json->EndObject();
}

void WriteBench(const char* key, const Report::Bench& bench, JsonWriter* json) {
  const Statistics statistics = Summarise(bench.times_ms);
  json->Key(key).BeginObject().Key("warmup").Int(bench.warmup);
  WriteCount("runs", bench.times_ms.size(), json);
  WriteList("times_ms", bench.times_ms, json, [&](double time) { json->Number(time); });
  json->Key("mean_ms").Number(statistics.mean).Key("std_ms").Number(statistics.std);
  json->Key("min_ms").Number(statistics.min).Key("max_ms").Number(statistics.max);
  json->Key("p50_ms").Number(statistics.p50).Key("p90_ms").Number(statistics.p90);
  json->Key("p99_ms").Number(statistics.p99).EndObject();
}

void WriteLayer(const Profile::Entry& entry, JsonWriter* json) {
  json->BeginObject().Key("layer").String(entry.layer.name);
  json->Key("operator").String(entry.layer.op).Key("kernel").String(entry.layer.kernel);
  WriteCount("macs", entry.layer.macs, json);
  json->Key("ms").Number(entry.ms).Key("share").Number(entry.share);
  WriteNumber("gflops", entry.gflops, json);
  json->EndObject();
}

void WriteProfile(const Profile& profile, JsonWriter* json) {
  WriteCount("runs", profile.runs, &json->Key("profile").BeginObject());
  json->Key("overhead_ms").Number(profile.overhead_ms);
  WriteList("layers", profile.entries, json,
            [&](const Profile::Entry& entry) { WriteLayer(entry, json); });
  json->EndObject();
}

double Mega(std::size_t bytes) { return static_cast<double>(bytes) / 1e6; }

void WriteProcessor(const Processor& processor, JsonWriter* json) {
  json->Key("processor").BeginObject().Key("on").String(processor.on_gpu ? "gpu" : "cpu");
  if (!processor.gpu.empty()) json->Key("gpu").String(processor.gpu);
  if (processor.gpu_bytes > 0) WriteCount("gpu_bytes", processor.gpu_bytes, json);
  if (processor.on_gpu) json->Key("unified_memory").Bool(processor.unified);
  WriteCount("gpu_failures", processor.failures, json);
  if (!processor.why.empty()) json->Key("why").String(processor.why);
  json->EndObject();
}

void PrintProcessor(const Processor& processor, std::ostream& out) {
  out << "on the " << (processor.on_gpu ? "GPU" : "CPU");
  if (!processor.gpu.empty()) out << ", " << processor.gpu;
  if (processor.gpu_bytes > 0) {
    const char* const whose = processor.unified ? "unified" : "its";
    out << ", " << Mega(processor.gpu_bytes) << " MB of " << whose << " memory";
  }
  if (processor.failures > 0) out << "; " << processor.failures << " runs failed on the GPU";
  if (!processor.why.empty()) out << ": " << processor.why;
  out << "\n";
}

void WriteExpected(const Comparison& expected, JsonWriter* json) {
  json->Key("expected").BeginObject().Key("max_abs_error").Number(expected.max_abs_error);
  json->Key("max_abs_reference").Number(expected.max_abs_reference);
  json->Key("tolerance").Number(expected.tolerance).Key("ok").Bool(expected.ok()).EndObject();
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

void PrintScore(const Score& score, std::optional<std::string_view> label, std::ostream& out) {
  out << std::setprecision(4) << std::setw(9) << score.score << "  " << std::setw(5) << score.index;
  if (label) out << "  " << *label;
}

void PrintFound(const Found& found, std::ostream& out);

/// What stages say of box number `index`.
void PrintAnswers(std::size_t index, const std::vector<Found::Stage>& stages, std::ostream& out) {
  for (const Found::Stage& stage : stages) {
    for (std::size_t i = 0; i < stage.count; ++i) {
      const Found::Answer& answer = stage.answers[i];
      if (answer.box != index) continue;
      out << "  " << stage.name << ":" << (answer.error.empty() ? "" : " " + answer.error) << "\n";
      if (answer.error.empty()) PrintFound(answer.found, out);
    }
  }
}

void PrintBoxes(const Found& found, std::ostream& out) {
  std::size_t index = 0;
  for (const Found::LabelledBox& labelled : *found.boxes) {
    const Box& box = labelled.box;
    PrintScore(box.found, labelled.label, out);
    out << std::setprecision(1) << "  at " << box.low.x << "," << box.low.y << " to " << box.high.x
        << "," << box.high.y << "\n";
    PrintAnswers(index++, found.stages, out);
  }
  if (found.boxes->empty()) out << "no boxes\n";
  for (const Found::Stage& stage : found.stages) {
    if (stage.dropped == 0) continue;
    out << stage.name << ": left out the least likely " << stage.dropped << " of "
        << stage.count + stage.dropped << " boxes\n";
  }
}

void PrintKeypoints(const std::vector<Report::LabelledMark>& keypoints, std::ostream& out) {
  for (const auto& [mark, label] : keypoints) {
    PrintScore(mark.found, label, out);
    out << std::setprecision(1) << "  at " << mark.point.x << "," << mark.point.y << "\n";
  }
  if (keypoints.empty()) out << "no key points\n";
}

/// The share of the photo that each class has.
void PrintMask(const Found& report, std::ostream& out) {
  const double whole = static_cast<double>(report.mask->height) * report.mask->width;
  for (const auto& [index, area] : report.mask->areas) {
    const bool named = index < report.labels.size();
    PrintScore({index, static_cast<double>(area.pixels) / whole},
               named ? std::optional<std::string_view>(report.labels[index]) : std::nullopt, out);
    out << "\n";
  }
}

void PrintFound(const Found& found, std::ostream& out) {
  for (const Found::Labelled& top : found.top) {
    PrintScore(top.score, top.label, out);
    out << "\n";
  }
  if (found.boxes) PrintBoxes(found, out);
  if (found.keypoints) PrintKeypoints(*found.keypoints, out);
  if (found.mask) PrintMask(found, out);
  if (found.text)
    out << std::setprecision(4) << found.text->score << "  " << found.text->text << "\n";
  for (const Values& tensor : found.tensors) {
    out << std::defaultfloat << std::setprecision(6) << tensor.name << ":";
    for (const double value : tensor.values) out << " " << value;
    out << std::fixed << "\n";
  }
}

void PrintBench(const Report::Bench& bench, std::ostream& out) {
  const Statistics s = Summarise(bench.times_ms);
  out << bench.times_ms.size() << " runs after " << bench.warmup << " to warm up: mean " << s.mean
      << " ms, std " << s.std << ", min " << s.min << ", p50 " << s.p50 << ", p90 " << s.p90
      << ", p99 " << s.p99 << ", max " << s.max << "\n";
}

}  // namespace

std::string JsonLine(const Report& report, std::string memory) {
  JsonWriter json(std::move(memory));
  WriteImage(report, &json.BeginObject());
  json.Key("edgepack").String(EDGEPACK_VERSION);
  if (!report.release.empty()) json.Key("release").String(report.release);
  if (report.model) {
    json.Key("model").String(*report.model).Key("threads").Int(report.threads);
    WriteList("cpus", report.cpus, &json, [&](int cpu) { json.Int(cpu); });
  }
  WriteNumber("load_ms", report.load_ms, &json);
  WriteNumber("decode_ms", report.decode_ms, &json);
  WriteNumber("preprocess_ms", report.preprocess_ms, &json);
  WriteNumber("run_ms", report.run_ms, &json);
  if (report.rss_peak_bytes != 0) WriteCount("rss_peak_bytes", report.rss_peak_bytes, &json);
  if (report.model) {
    WriteCount("arena_bytes", report.arena_bytes, &json);
    WriteCount("params_bytes", report.params_bytes, &json);
    WriteCount("workspace_peak_bytes", report.workspace_peak_bytes, &json);
    WriteList("outputs", report.outputs, &json,
              [&](const TensorInfo& info) { WriteOutput(info, &json); });
  }
  if (report.processor) WriteProcessor(*report.processor, &json);
  WriteFound(report, &json);
  if (!report.more.empty()) {
    WriteList("more", report.more, &json, [&](const auto& one) {
      WriteImageName(one.first, &json.BeginObject());
      WriteFound(one.second, &json);
      json.EndObject();
    });
  }
  if (report.bench) WriteBench("bench", *report.bench, &json);
  if (report.whole_bench) WriteBench("whole_bench", *report.whole_bench, &json);
  if (report.profile) WriteProfile(*report.profile, &json);
  if (report.expected) WriteExpected(*report.expected, &json);
  std::string line = json.EndObject().Take();
  line += '\n';
  return line;
}

void PrintJson(const Report& report, std::ostream& out) { out << JsonLine(report); }

void PrintText(const Report& report, std::ostream& out) {
  out << std::fixed;
  PrintFound(report, out);
  for (const auto& [image, found] : report.more) {
    out << image << ":\n";
    PrintFound(found, out);
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
  if (report.processor) PrintProcessor(*report.processor, out);
  if (report.bench) PrintBench(*report.bench, out);
  if (report.whole_bench) {
    out << "through all stages: ";
    PrintBench(*report.whole_bench, out);
  }
  if (report.profile) PrintProfile(*report.profile, out);
  if (report.expected) {
    out << std::scientific << (report.expected->ok() ? "outputs agree" : "outputs differ")
        << ": largest error " << report.expected->max_abs_error << ", largest reference "
        << report.expected->max_abs_reference << ", tolerance " << report.expected->tolerance
        << "\n";
  }
}

void PrintJsonError(const Error& error, std::ostream& out, const Report& about) {
  JsonWriter json;
  WriteImage(about, &json.BeginObject());
  json.Key("error").BeginObject().Key("code").Int(error.exit_code);
  json.Key("message").String(error.message);
  if (!error.hint.empty()) json.Key("hint").String(error.hint);
  out << json.EndObject().EndObject().text() << "\n";
}

}  // namespace edgepack
