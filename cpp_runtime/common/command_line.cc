#include "common/command_line.h"

#include <charconv>
#include <system_error>
#include <utility>

#include "common/error.h"

namespace edgepack {
namespace {

void Read(const std::vector<std::string>& words, const OptionTable& table) {
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (*word == "--" && table.rest) {
      table.rest({word + 1, words.end()});
      return;
    }
    const std::size_t equals = word->find('=');
    const std::string option = word->substr(0, equals);
    if (word->rfind('-', 0) != 0) {
      if (!table.word) throw UsageError("unexpected word: " + *word);
      table.word(*word);
    } else if (const auto found = table.switches.find(option); found != table.switches.end()) {
      if (equals != std::string::npos) throw UsageError(option + " takes no value");
      found->second();
    } else if (const auto taker = table.values.find(option); taker != table.values.end()) {
      if (equals != std::string::npos) {
        taker->second(word->substr(equals + 1));
      } else if (++word != words.end()) {
        taker->second(*word);
      } else {
        throw UsageError(option + " needs a value");
      }
    } else {
      throw UsageError("unknown option: " + option);
    }
  }
}

}  // namespace

void ReadCommandLine(const std::vector<std::string>& words, const OptionTable& table) {
  try {
    Read(words, table);
  } catch (UsageError& error) {
    if (error.hint.empty()) error.hint = table.hint;
    throw;
  }
}

int WholeNumber(const std::string& option, const std::string& text, int min, int max) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [next, status] = std::from_chars(text.data(), end, value);
  if (status != std::errc() || next != end || value < min || value > max) {
    const std::string range = max == std::numeric_limits<int>::max()
                                  ? "of " + std::to_string(min) + " or more"
                                  : "from " + std::to_string(min) + " to " + std::to_string(max);
    throw UsageError(option + ": '" + text + "' is not a whole number " + range);
  }
  return value;
}

}  // namespace edgepack
