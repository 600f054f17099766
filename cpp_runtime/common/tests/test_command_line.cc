#include <doctest/doctest.h>

#include "common/command_line.h"
#include "common/tests/support.h"

namespace edgepack::testing {
namespace {

/// What the words of a command line did, one after the other.
struct Seen {
  std::string text;

  [[nodiscard]] OptionTable Table() {
    OptionTable table;
    table.hint = "read the manual";
    table.switches = {{"--fast", [&] { text += "fast;"; }}};
    table.values = {
        {"--name", [&](const std::string& value) { text += "name " + value + ";"; }},
        {"--count",
         [&](const std::string& value) {
           text += "count " + std::to_string(WholeNumber("--count", value, 1, 9)) + ";";
         }},
    };
    return table;
  }
};

std::string UsageErrorOf(const std::vector<std::string>& words) {
  Seen seen;
  return MessageOf<UsageError>([&] { ReadCommandLine(words, seen.Table()); });
}

}  // namespace

TEST_CASE("words do what they say, in order") {
  Seen seen;
  OptionTable table = seen.Table();
  table.word = [&](const std::string& word) { seen.text += word + ";"; };
  table.rest = [&](const std::vector<std::string>& rest) { seen.text += rest.at(1); };
  ReadCommandLine(
      {"--name=a=b", "go", "--fast", "--name", "--fast", "--count=9", "--", "--x", "-y"}, table);
  CHECK(seen.text == "name a=b;go;fast;name --fast;count 9;-y");
}

TEST_CASE("mistakes in a command line") {
  CHECK(UsageErrorOf({"--fats"}) == "unknown option: --fats");
  CHECK(UsageErrorOf({"--fats=1"}) == "unknown option: --fats");
  CHECK(UsageErrorOf({"-f"}) == "unknown option: -f");
  CHECK(UsageErrorOf({"--"}) == "unknown option: --");
  CHECK(UsageErrorOf({"go"}) == "unexpected word: go");
  CHECK(UsageErrorOf({""}) == "unexpected word: ");
  CHECK(UsageErrorOf({"--fast=yes"}) == "--fast takes no value");
  CHECK(UsageErrorOf({"--name"}) == "--name needs a value");
  for (const char* value : {"", "x", "0", "-1", "1.5", "2x", "10", "99999999999"}) {
    CAPTURE(value);
    CHECK(UsageErrorOf({"--count", value}) ==
          "--count: '" + std::string(value) + "' is not a whole number from 1 to 9");
  }
  CHECK(MessageOf([] { WholeNumber("--keep", "0", 1); }) ==
        "--keep: '0' is not a whole number of 1 or more");
}

TEST_CASE("an error without a hint gets the table's") {
  Seen seen;
  OptionTable table = seen.Table();
  table.word = [](const std::string& /*word*/) { throw UsageError("no", "its own"); };
  for (const auto& [word, hint] : {std::pair{"--x", "read the manual"}, {"x", "its own"}}) {
    try {
      ReadCommandLine({word}, table);
      FAIL("nothing was thrown");
    } catch (const UsageError& error) {
      CHECK(error.hint == hint);
      CHECK(error.exit_code == kExitUsage);
    }
  }
}

}  // namespace edgepack::testing
