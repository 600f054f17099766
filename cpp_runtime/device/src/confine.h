#pragma once

#include <string>

namespace edgepack::device {

/// For this process, if it is root's: from now on it is nobody, if nobody can start `program`.
/// Where only root can, it stays root's, which reads and writes what root owns, but without a
/// capability: none of root's rights over what others own, and over the kernel. False if that
/// fails.
bool GiveUpRoot(const std::string& program);

/// For this process and all that it starts: from now on it reads files and writes to what is open
/// already, and that is all. It opens nothing for writing, changes no folder, makes no socket,
/// sends no signal and looks into no other process, whatever its account could do.
/// False where the kernel cannot do that (CONFIG_SECCOMP_FILTER).
bool Confine();
/// Whether this kernel has the filters that `Confine` needs.
bool CanConfine();

}  // namespace edgepack::device
