#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace edgepack::sinks {

/// How many of a class are seen, as a broker keeps it.
struct Counting {
  std::vector<std::string> classes;
  double score = 0;
  std::string topic;
};

/// Where lines go: a broker, or a webhook.
struct SinkConfig {
  std::string name;
  std::string scheme;  ///< "mqtt" or "http"
  std::string host;
  int port = 0;
  std::string path;  ///< of a webhook
  std::string topic;
  std::string status_topic;
  std::string client_id;
  std::optional<Counting> counting;
  std::vector<std::string> counters;  ///< the names of those that the broker keeps
  std::string counters_topic;
  std::optional<std::string> discovery;  ///< Home Assistant's prefix
  std::optional<std::string> username;
  std::optional<std::string> password_file;
  std::string buffer;  ///< the folder of what waits
  std::uint64_t buffer_bytes = 0;
};

struct GpioConfig {
  std::string chip;
  std::uint32_t line = 0;
  bool active_low = false;
  double pulse_s = 1;
};

enum class Direction { kIn, kOut };

/// Counts tracks of a class.
struct CounterConfig {
  std::string name;
  std::string seen;  ///< the class
  double score = 0;
  double for_s = 0;
  std::optional<std::array<double, 4>> line;  ///< x and y of its ends
  bool is_foot = false;  ///< whether the middle of a box's lower side crosses it, not its middle
};

/// Who crosses a counter's line.
struct CrossingConfig {
  std::string counter;
  Direction direction = Direction::kIn;
};

/// What is done when something is seen.
struct RuleConfig {
  std::string name;
  std::string seen;  ///< the class, if it is not about a crossing
  std::optional<CrossingConfig> crossing;
  double score = 0;
  std::int64_t least = 1;  ///< how many at once
  double for_s = 0;
  double every_s = 0;
  std::vector<std::string> run;
  double time_limit_s = 10;
  std::optional<GpioConfig> gpio;
  bool clip = false;  ///< whether edgepack-run keeps pictures of the moment
};

struct Config {
  std::string name;  ///< the bundle's
  std::vector<SinkConfig> sinks;
  std::vector<CounterConfig> counters;
  std::vector<RuleConfig> rules;
};

/// sinks.json of a bundle, with `host` for each "{hostname}". Throws Error.
Config ParseConfig(std::string_view text, const std::string& host);

/// The same of a file, for this machine. Throws Error.
Config LoadConfig(const std::string& path);

}  // namespace edgepack::sinks
