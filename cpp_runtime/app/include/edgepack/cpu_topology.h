#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace edgepack {

/// A CPU this process may use. `capacity` compares CPUs of one machine; 0 if nothing is known.
struct Cpu {
  int id = 0;
  std::int64_t capacity = 0;
};

/// The CPUs of this process's affinity mask, fastest first: by the kernel's cpu_capacity, or by
/// the highest frequency.
std::vector<Cpu> AllowedCpus(const std::filesystem::path& sys = "/sys/devices/system/cpu");

/// How many threads, and where. No `cpus`: wherever the kernel puts them.
struct Placement {
  int threads = 1;
  std::vector<int> cpus;
};

/// Chooses threads and CPUs. `affinity`: "big" and "little" are the fastest and the slowest kind of
/// core, "all", "none", or a list such as "0,2-3". Without it the fastest kinds of core are taken
/// until there is one for each thread. Without `threads` there is one per CPU chosen, and without
/// both one per fast core. Throws UsageError.
Placement Place(const std::vector<Cpu>& allowed, std::optional<int> threads,
                const std::optional<std::string>& affinity);

}  // namespace edgepack
