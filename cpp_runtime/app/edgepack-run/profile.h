#pragma once

#include <optional>
#include <vector>

#include <edgepack/model.h>

namespace edgepack {

/// Where the time of a run goes, kernel call by kernel call.
struct Profile {
  struct Entry {
    Layer layer;
    /// Median over the runs, and its part of the sum of all medians.
    double ms = 0;
    double share = 0;
    /// 10^9 floating-point operations per second, two per multiply-add; none without those.
    std::optional<double> gflops;
  };

  std::size_t runs = 0;
  /// What measuring adds to a run: the median of profiled runs less that of the others.
  double overhead_ms = 0;
  std::vector<Entry> entries;
};

/// Sums up profiled runs, one list of milliseconds (one per layer) each; `whole_ms` is what each of
/// them took. `plain_ms` are runs of the same model without a profile, made in turns with them.
/// None may be empty.
Profile MakeProfile(const std::vector<Layer>& layers,
                    const std::vector<std::vector<double>>& runs_ms,
                    const std::vector<double>& whole_ms, const std::vector<double>& plain_ms);

}  // namespace edgepack
