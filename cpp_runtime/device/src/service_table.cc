#include "service_table.h"

#include <algorithm>
#include <string_view>

namespace edgepack::device {
namespace {

constexpr std::size_t kMaxArgs = 64;
constexpr std::size_t kMaxArgLetters = 1024;
constexpr double kMaxWatchdogS = 86400;
constexpr std::uint64_t kMaxMemoryMb = std::uint64_t{1} << 20U;
constexpr std::size_t kMaxUser = 32;

bool Consists(std::string_view text, std::string_view of) {
  return text.find_first_not_of(of) == std::string_view::npos;
}

/// One line of UTF-8.
bool IsArgument(std::string_view text) {
  const bool controls = std::any_of(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20U) || c == '\x7f';
  });
  const auto letters = std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;  // not a continuation
  });
  return !text.empty() && !controls && static_cast<std::size_t>(letters) <= kMaxArgLetters;
}

bool IsUser(std::string_view text) {
  constexpr std::string_view kFirst = "abcdefghijklmnopqrstuvwxyz_";
  constexpr std::string_view kRest = "abcdefghijklmnopqrstuvwxyz_0123456789-";
  return !text.empty() && text.size() <= kMaxUser && Consists(text.substr(0, 1), kFirst) &&
         Consists(text, kRest);
}

/// Absolute, of parts that need no quotes in a shell or a unit, none of them "..".
bool IsFolder(std::string_view text) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+@-";
  while (!text.empty() && text.front() == '/') {
    text.remove_prefix(1);
    const std::string_view part = text.substr(0, text.find('/'));
    if (part.empty() || part == ".." || !Consists(part, kLetters)) return false;
    text.remove_prefix(part.size());
    if (text.empty()) return true;
  }
  return false;
}

}  // namespace

std::optional<ServiceTable> ReadService(JsonObject* manifest) {
  if (!manifest->HasValue("service")) {
    manifest->Skip("service");
    return std::nullopt;
  }
  JsonObject table = manifest->Object("service");
  ServiceTable service;
  service.args = table.Strings("args");
  if (service.args.empty() || service.args.size() > kMaxArgs) table.Fail("args", "not 1 to 64");
  for (const std::string& word : service.args) {
    if (!IsArgument(word)) table.Fail("args", "a word is empty, too long or not one line");
  }
  service.restart = table.String("restart");
  if (service.restart != "always" && service.restart != "on-failure" &&
      service.restart != "never") {
    table.Fail("restart", "neither always, on-failure nor never");
  }
  service.watchdog_s = table.OptionalNumber("watchdog_s");
  if (service.watchdog_s && !(*service.watchdog_s >= 1 && *service.watchdog_s <= kMaxWatchdogS)) {
    table.Fail("watchdog_s", "not from 1 to 86400");
  }
  if (table.HasValue("memory_mb")) {
    service.memory_mb = table.Size("memory_mb");
    if (*service.memory_mb < 1 || *service.memory_mb > kMaxMemoryMb) {
      table.Fail("memory_mb", "not from 1 to 1048576");
    }
  } else {
    table.Skip("memory_mb");
  }
  if (table.HasValue("user")) {
    service.user = table.String("user");
    if (!IsUser(*service.user)) table.Fail("user", "'" + *service.user + "' is no account");
    if (*service.user == "root") table.Fail("user", "a service must not run as root");
  } else {
    table.Skip("user");
  }
  service.writable = table.Strings("writable");
  for (const std::string& folder : service.writable) {
    if (!IsFolder(folder)) table.Fail("writable", "'" + folder + "' is no absolute path");
  }
  table.Finish();
  return service;
}

}  // namespace edgepack::device
