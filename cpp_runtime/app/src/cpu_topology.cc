#include <algorithm>
#include <charconv>
#include <fstream>
#include <sched.h>
#include <string_view>

#include <edgepack/cpu_topology.h>
#include <edgepack/errors.h>

namespace edgepack {
namespace {

/// CPUs whose capacity differs by less than this are of one kind: the cores of a PC differ by a
/// few per cent in their highest frequency.
constexpr double kSameKind = 0.9;

std::int64_t ReadNumber(const std::filesystem::path& path) {
  std::int64_t value = 0;
  std::ifstream(path) >> value;
  return value;
}

/// CPUs of one kind each, fastest first.
std::vector<std::vector<int>> Kinds(const std::vector<Cpu>& allowed) {
  std::vector<std::vector<int>> kinds;
  std::int64_t top = 0;
  for (const Cpu& cpu : allowed) {
    if (kinds.empty() || static_cast<double>(cpu.capacity) < kSameKind * static_cast<double>(top)) {
      kinds.emplace_back();
      top = cpu.capacity;
    }
    kinds.back().push_back(cpu.id);
  }
  return kinds;
}

[[noreturn]] void BadList(const std::string& text) {
  throw UsageError("--affinity: '" + text + "' is no list of CPUs",
                   "use big, little, all, none, or CPU numbers such as 0,2-3");
}

std::vector<int> ParseList(const std::string& text, const std::vector<Cpu>& allowed) {
  std::vector<int> cpus;
  const char* cursor = text.data();
  const char* const end = text.data() + text.size();
  const auto number = [&] {
    int value = -1;
    const auto [next, status] = std::from_chars(cursor, end, value);
    if (status != std::errc() || value < 0) BadList(text);
    cursor = next;
    return value;
  };
  for (;;) {
    const int first = number();
    int last = first;
    if (cursor != end && *cursor == '-') {
      ++cursor;
      last = number();
    }
    if (last < first || last >= CPU_SETSIZE) BadList(text);
    for (int cpu = first; cpu <= last; ++cpu) {
      if (std::none_of(allowed.begin(), allowed.end(),
                       [&](const Cpu& known) { return known.id == cpu; })) {
        throw UsageError("--affinity: there is no CPU " + std::to_string(cpu) + " to run on");
      }
      if (std::find(cpus.begin(), cpus.end(), cpu) == cpus.end()) cpus.push_back(cpu);
    }
    if (cursor == end) return cpus;
    if (*cursor++ != ',') BadList(text);
  }
}

}  // namespace

std::vector<Cpu> AllowedCpus(const std::filesystem::path& sys) {
  std::vector<Cpu> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) CPU_SET(0, &set);
  for (int id = 0; id < CPU_SETSIZE; ++id) {
    if (!CPU_ISSET(static_cast<unsigned>(id), &set)) continue;
    const std::filesystem::path folder = sys / ("cpu" + std::to_string(id));
    std::int64_t capacity = ReadNumber(folder / "cpu_capacity");
    if (capacity == 0) capacity = ReadNumber(folder / "cpufreq" / "cpuinfo_max_freq");
    cpus.push_back({id, capacity});
  }
  std::stable_sort(cpus.begin(), cpus.end(),
                   [](const Cpu& a, const Cpu& b) { return a.capacity > b.capacity; });
  return cpus;
}

Placement Place(const std::vector<Cpu>& allowed, std::optional<int> threads,
                const std::optional<std::string>& affinity) {
  const std::vector<std::vector<int>> kinds = Kinds(allowed);
  std::vector<int> chosen;
  if (!affinity) {
    const int wanted = threads.value_or(1);
    for (const std::vector<int>& kind : kinds) {
      if (!chosen.empty() && static_cast<int>(chosen.size()) >= wanted) break;
      chosen.insert(chosen.end(), kind.begin(), kind.end());
    }
  } else if (*affinity == "big") {
    chosen = kinds.front();
  } else if (*affinity == "little") {
    chosen = kinds.back();
  } else if (*affinity == "all" || *affinity == "none") {
    for (const Cpu& cpu : allowed) chosen.push_back(cpu.id);
  } else {
    chosen = ParseList(*affinity, allowed);
  }
  const int count = threads.value_or(static_cast<int>(chosen.size()));
  // All CPUs is what the process has anyway.
  const bool pinned = chosen.size() != allowed.size() && affinity != "none";
  return {count, pinned ? chosen : std::vector<int>{}};
}

}  // namespace edgepack
