#include "profile.h"

#include "statistics.h"

namespace edgepack {

Profile MakeProfile(const std::vector<Layer>& layers,
                    const std::vector<std::vector<double>>& runs_ms,
                    const std::vector<double>& whole_ms, const std::vector<double>& plain_ms) {
  Profile profile;
  profile.runs = runs_ms.size();
  profile.overhead_ms = Summarise(whole_ms).p50 - Summarise(plain_ms).p50;
  double sum = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::vector<double> times;
    times.reserve(runs_ms.size());
    for (const std::vector<double>& run : runs_ms) times.push_back(run[i]);
    Profile::Entry entry;
    entry.layer = layers[i];
    entry.ms = Summarise(std::move(times)).p50;
    sum += entry.ms;
    if (entry.layer.macs != 0 && entry.ms > 0) {
      entry.gflops = 2 * static_cast<double>(entry.layer.macs) / entry.ms / 1e6;
    }
    profile.entries.push_back(std::move(entry));
  }
  for (Profile::Entry& entry : profile.entries) entry.share = sum > 0 ? entry.ms / sum : 0;
  return profile;
}

}  // namespace edgepack
