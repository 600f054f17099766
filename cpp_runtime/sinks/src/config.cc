#include "config.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sys/utsname.h>
#include <utility>

#include "common/error.h"
#include "common/json.h"

namespace edgepack::sinks {
namespace {

constexpr std::size_t kMostSinks = 16;
constexpr std::size_t kMostBytes = 1U << 20U;
constexpr std::int64_t kMostPort = 65535;
constexpr std::int64_t kMostAtOnce = 100;
constexpr std::string_view kHost = "{hostname}";

std::string WithHost(std::string text, const std::string& host) {
  for (std::size_t at = 0; (at = text.find(kHost, at)) != std::string::npos; at += host.size()) {
    text.replace(at, kHost.size(), host);
  }
  return text;
}

std::optional<std::string> OptionalString(JsonObject* object, std::string_view key) {
  if (object->HasValue(key)) return object->String(key);
  object->Skip(key);
  return std::nullopt;
}

double Seconds(JsonObject* object, std::string_view key) {
  const double value = object->Number(key);
  if (!(value >= 0 && value <= 86400)) object->Fail(key, "is not from 0 to 86400 seconds");
  return value;
}

Counting ReadCounting(JsonObject object, const std::string& host) {
  Counting counting;
  counting.classes = object.Strings("classes");
  counting.score = object.Number("score");
  counting.topic = WithHost(object.String("topic"), host);
  object.Finish();
  return counting;
}

/// As a part of a path.
void CheckName(const JsonObject& object, const std::string& name) {
  const char* const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  if (name.empty() || name.size() > 64 || name.find_first_not_of(allowed) != std::string::npos) {
    object.Fail("name", "is not letters, digits, - and _");
  }
}

SinkConfig ReadSink(JsonObject object, const std::string& host) {
  SinkConfig sink;
  sink.name = object.String("name");
  CheckName(object, sink.name);
  sink.scheme = object.String("scheme");
  if (sink.scheme != "mqtt" && sink.scheme != "http") object.Fail("scheme", "is not known");
  sink.host = object.String("host");
  sink.port = static_cast<int>(object.Int("port", 1, kMostPort));
  sink.path = object.String("path");
  sink.topic = WithHost(object.String("topic"), host);
  sink.status_topic = WithHost(object.String("status_topic"), host);
  sink.client_id = WithHost(object.String("client_id"), host);
  if (object.HasValue("counting")) {
    sink.counting = ReadCounting(object.Object("counting"), host);
  } else {
    object.Skip("counting");
  }
  sink.counters = object.Strings("counters");
  sink.counters_topic = WithHost(object.String("counters_topic"), host);
  sink.discovery = OptionalString(&object, "discovery");
  sink.username = OptionalString(&object, "username");
  sink.password_file = OptionalString(&object, "password_file");
  sink.buffer = object.String("buffer");
  if (sink.buffer.empty() || sink.buffer.front() != '/') object.Fail("buffer", "is not absolute");
  sink.buffer_bytes =
      static_cast<std::uint64_t>(object.Int("buffer_bytes", 1 << 20, std::int64_t{1} << 40));
  object.Finish();
  return sink;
}

CounterConfig ReadCounter(JsonObject object) {
  CounterConfig counter;
  counter.name = object.String("name");
  CheckName(object, counter.name);
  counter.seen = object.String("class");
  counter.score = object.Number("score");
  counter.for_s = Seconds(&object, "for_s");
  if (object.HasValue("line")) {
    const std::vector<double> ends = object.Numbers("line");
    counter.line.emplace();
    if (ends.size() != counter.line->size()) object.Fail("line", "is not four numbers");
    std::copy(ends.begin(), ends.end(), counter.line->begin());
  } else {
    object.Skip("line");
  }
  counter.is_foot = object.Bool("is_foot");
  object.Finish();
  return counter;
}

CrossingConfig ReadCrossing(JsonObject object) {
  CrossingConfig crossing;
  crossing.counter = object.String("counter");
  const std::string direction = object.String("direction");
  if (direction != "in" && direction != "out") object.Fail("direction", "is not known");
  crossing.direction = direction == "in" ? Direction::kIn : Direction::kOut;
  object.Finish();
  return crossing;
}

RuleConfig ReadRule(JsonObject object) {
  RuleConfig rule;
  rule.name = object.String("name");
  CheckName(object, rule.name);
  if (object.HasValue("crossing")) {
    rule.crossing = ReadCrossing(object.Object("crossing"));
    object.Skip("class");
  } else {
    rule.seen = object.String("class");
    object.Skip("crossing");
  }
  rule.score = object.Number("score");
  rule.least = object.Int("least", 1, kMostAtOnce);
  rule.for_s = Seconds(&object, "for_s");
  rule.every_s = Seconds(&object, "every_s");
  rule.run = object.Strings("run");
  if (!rule.run.empty() && (rule.run.front().empty() || rule.run.front().front() != '/')) {
    object.Fail("run", "the program's path is not absolute");
  }
  rule.time_limit_s = Seconds(&object, "time_limit_s");
  if (object.HasValue("gpio")) {
    JsonObject gpio = object.Object("gpio");
    rule.gpio.emplace();
    rule.gpio->chip = gpio.String("chip");
    rule.gpio->line = static_cast<std::uint32_t>(gpio.Int("line", 0, kMostPort));
    rule.gpio->active_low = gpio.Bool("active_low");
    rule.gpio->pulse_s = Seconds(&gpio, "pulse_s");
    gpio.Finish();
  } else {
    object.Skip("gpio");
  }
  rule.clip = object.HasValue("clip");  // edgepack-run reads what is in it
  object.Skip("clip");
  object.Finish();
  return rule;
}

void CheckCounter(const Config& config, const std::string& name) {
  if (std::none_of(config.counters.begin(), config.counters.end(),
                   [&](const CounterConfig& counter) { return counter.name == name; })) {
    throw UsageError("sinks.json: there is no counter '" + name + "'");
  }
}

/// Each that is named is there.
void CheckCounters(const Config& config) {
  for (const SinkConfig& sink : config.sinks) {
    for (const std::string& name : sink.counters) CheckCounter(config, name);
  }
  for (const RuleConfig& rule : config.rules) {
    if (rule.crossing) CheckCounter(config, rule.crossing->counter);
  }
}

}  // namespace

Config ParseConfig(std::string_view text, const std::string& host) {
  const JsonDocument document(text, "sinks.json", "sinks",
                              "the bundle was made by another version of edgepack: make it again");
  JsonObject root = document.Root();
  root.Int("schema", 1, 1);
  Config config;
  config.name = root.String("name");
  for (JsonObject& object : root.Objects("sinks", kMostSinks)) {
    config.sinks.push_back(ReadSink(std::move(object), host));
  }
  for (JsonObject& object : root.Objects("counters", kMostSinks)) {
    config.counters.push_back(ReadCounter(std::move(object)));
  }
  for (JsonObject& object : root.Objects("when", kMostSinks)) {
    config.rules.push_back(ReadRule(std::move(object)));
  }
  root.Finish();
  CheckCounters(config);
  return config;
}

Config LoadConfig(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 4096> block = {};
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMostBytes) throw UsageError(path + ": too large");
  }
  if (text.empty()) throw UsageError("cannot read " + path);
  utsname name = {};
  uname(&name);
  return ParseConfig(text, name.nodename);
}

}  // namespace edgepack::sinks
