#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace edgepack {

/// edgepack-run without its process: `words` are the command line after the program's name.
/// Returns the exit code; throws nothing.
int RunApp(const std::vector<std::string>& words, std::ostream& out, std::ostream& err);

/// Whether a GPU hangs: its driver may wait for it in what a process does when it ends as usual.
bool MustEndAtOnce();

}  // namespace edgepack
