#pragma once

namespace edgepack::device {

// Every step that changes something on the disk, or may end the program, has a name. In a build
// with EDGEPACK_FAULTS (never shipped), the environment says what happens there:
//
//   EDGEPACK_FAULT=kill:<n>         SIGKILL at the n-th step
//   EDGEPACK_FAULT=kill:<name>[:k]  SIGKILL at the k-th step of that name
//   EDGEPACK_FAULT=stop:<name>      SIGSTOP at the first step of that name; SIGCONT goes on
//   EDGEPACK_FAULT=nofsync          leave out every fsync: the mistake that power cuts must show
//   EDGEPACK_FAULT_LOG=<file>       append the name of each step
#ifdef EDGEPACK_FAULTS
void Step(const char* name);
bool SyncsAreLeftOut();
#else
inline void Step(const char* /*name*/) {}
constexpr bool SyncsAreLeftOut() { return false; }
#endif

}  // namespace edgepack::device
