#pragma once

namespace edgepack::device {

/// For this process and all that it starts: from now on it reads files and writes to what is open
/// already, and that is all. It opens nothing for writing, changes no folder, makes no socket,
/// sends no signal and looks into no other process, whatever its account could do.
/// False where the kernel cannot do that (CONFIG_SECCOMP_FILTER).
bool Confine();

}  // namespace edgepack::device
