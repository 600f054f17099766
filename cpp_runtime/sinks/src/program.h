#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace edgepack::sinks {

/// Runs a program without a shell, `input` on its standard input, for `limit_s` at most; then it is
/// killed, with all that it has started. One at a time, from any thread. Empty if it ended well,
/// else what was wrong.
std::string RunProgram(const std::vector<std::string>& words, std::string_view input,
                       double limit_s);

}  // namespace edgepack::sinks
