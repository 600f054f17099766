#pragma once

#include <string>
#include <vector>

namespace edgepack::device {

/// The whole tool: `words` are the command line without the program's name. Returns the exit code.
int RunTool(const std::vector<std::string>& words);

}  // namespace edgepack::device
