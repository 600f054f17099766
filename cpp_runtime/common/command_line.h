#pragma once

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace edgepack {

/// The options that a program knows, and what each does.
struct OptionTable {
  using Taker = std::function<void(const std::string& text)>;

  std::map<std::string, std::function<void()>> switches;
  /// Options with a value: `--option value` and `--option=value` are the same.
  std::map<std::string, Taker> values;
  /// Called with each word that is no option; without it there may be none.
  Taker word;
  /// Called with all that follows "--"; without it that is no option.
  std::function<void(std::vector<std::string> words)> rest;
  /// Of every error that has none of its own.
  std::string hint;
};

/// Does what `words` say, from left to right. Throws UsageError.
void ReadCommandLine(const std::vector<std::string>& words, const OptionTable& table);

/// The value of an option that takes a whole number. Throws UsageError.
int WholeNumber(const std::string& option, const std::string& text, int min,
                int max = std::numeric_limits<int>::max());

}  // namespace edgepack
