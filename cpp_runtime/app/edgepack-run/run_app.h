#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace edgepack {

/// edgepack-run without its process: `words` are the command line after the program's name.
/// Returns the exit code; throws nothing.
int RunApp(const std::vector<std::string>& words, std::ostream& out, std::ostream& err);

}  // namespace edgepack
