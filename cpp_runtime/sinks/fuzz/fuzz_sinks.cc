// Input: a byte that says which reader, and what it reads: 'c' sinks.json, 'l' a line of results,
// 'h' the head of an answer, 's' a file of waiting lines, which a position follows after a NUL.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/fuzz/fuzz.h"
#include "config.h"
#include "counter.h"
#include "detections.h"
#include "spool.h"
#include "webhook.h"

namespace {

using namespace edgepack;
using namespace edgepack::sinks;

void Write(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

void ReadFolder(std::string_view text) {
  static const std::filesystem::path folder = [] {
    std::string name = (std::filesystem::temp_directory_path() / "fuzz-sinks-XXXXXX").string();
    EDGEPACK_REQUIRE(mkdtemp(name.data()) != nullptr);
    return std::filesystem::path(name);
  }();
  const std::size_t end = text.find('\0');
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::filesystem::remove(entry.path());
  }
  Write(folder / "000000000007.lines", text.substr(0, end));
  if (end != std::string_view::npos) Write(folder / "position", text.substr(end + 1));
  Spool spool(folder.string(), 1U << 20U);
  spool.Push("new");
  std::string line;
  std::string last;
  std::size_t count = 0;
  while (spool.Next(&line)) {
    EDGEPACK_REQUIRE(line.find('\n') == std::string::npos);
    EDGEPACK_REQUIRE(++count <= text.size() + 1);
    last = line;
    if (count % 3 == 0) spool.Acknowledge();
  }
  EDGEPACK_REQUIRE(last == "new");
  spool.Save();
  spool.Rewind();
  std::size_t again = 0;
  for (; spool.Next(&line); ++again) spool.Acknowledge();
  EDGEPACK_REQUIRE(again == count - count / 3);
  EDGEPACK_REQUIRE(spool.counts().waiting_bytes == 0);
}

void CountLine(std::string_view text) {
  static DetectionReader reader;
  const std::vector<Detection>* const read = reader.Read(text);
  if (read == nullptr) return;
  const std::vector<Detection>& detections = *read;
  CounterConfig config;
  config.name = "door";
  config.seen = "person";
  config.line = {0, 5, 10, 5};
  Counter counter(config);
  counter.See(0, detections);
  counter.See(1, detections);
  const Counter::Counts counts = counter.counts();
  const auto most = static_cast<std::int64_t>(detections.size());
  EDGEPACK_REQUIRE(counts.in_view == counts.seen && counts.seen <= most);
  EDGEPACK_REQUIRE(counts.in >= 0 && counts.out >= 0 && counts.in + counts.out <= 2 * most);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text = Text(data + 1, size - 1);
  try {
    switch (data[0]) {
      case 'c': {
        const Config config = ParseConfig(text, "a-host");
        for (const SinkConfig& sink : config.sinks) {
          EDGEPACK_REQUIRE(sink.name.find('/') == std::string::npos && !sink.name.empty());
          EDGEPACK_REQUIRE(sink.buffer.front() == '/' && sink.port > 0 && sink.port < 65536);
          EDGEPACK_REQUIRE(sink.scheme == "mqtt" || sink.scheme == "http");
        }
        for (const CounterConfig& counter : config.counters) {
          EDGEPACK_REQUIRE(counter.name.find('"') == std::string::npos && !counter.name.empty());
        }
        for (const RuleConfig& rule : config.rules) {
          EDGEPACK_REQUIRE(rule.run.empty() || rule.run.front().front() == '/');
          EDGEPACK_REQUIRE(rule.time_limit_s >= 0 && rule.time_limit_s <= 86400);
        }
        break;
      }
      case 'l':
        CountLine(text);
        break;
      case 'h': {
        const int status = ReadStatus(text);
        EDGEPACK_REQUIRE(status == -1 || status == 0 || (status >= 100 && status <= 999));
        break;
      }
      case 's':
        ReadFolder(text);
        break;
      default:
        break;
    }
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
