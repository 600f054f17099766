#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "graph.h"

namespace edgepack {

/// What one session has on a GPU: an arena, and its launches. For one thread at a time.
class GpuSession {
 public:
  virtual ~GpuSession() = default;
  GpuSession() = default;
  GpuSession(const GpuSession&) = delete;
  GpuSession& operator=(const GpuSession&) = delete;
  GpuSession(GpuSession&&) = delete;
  GpuSession& operator=(GpuSession&&) = delete;

  /// To be called by the thread that makes the following calls.
  virtual void Enter() = 0;
  /// Copies bytes of the host's arena into the GPU's, or back. All of this is done in order, and
  /// maybe later: see Wait.
  virtual void ToGpu(std::size_t offset, std::size_t bytes) = 0;
  virtual void ToCpu(std::size_t offset, std::size_t bytes) = 0;
  /// Starts launches `first` to `end` (excluded) of the plan.
  virtual void Launch(std::size_t first, std::size_t end) = 0;
  /// Returns when everything is done. Throws GpuError if something of it failed.
  virtual void Wait() = 0;
};

/// Whether a GPU still runs a model that the CPU could run, too. Any number of threads may use it.
class GpuHealth {
 public:
  /// So many runs may fail, one after the other, until nobody asks the GPU any more: a driver that
  /// has lost its device does not find it again while the program runs.
  static constexpr std::size_t kMostFailures = 3;

  [[nodiscard]] bool works() const;
  /// A run went well.
  void Worked();
  /// A run failed.
  void Failed(const std::string& why);
  /// The GPU was not there to begin with.
  void GiveUp(const std::string& why);
  /// All runs that failed, and why the last one did.
  [[nodiscard]] std::pair<std::size_t, std::string> failures() const;

 private:
  mutable std::mutex mutex_;
  std::size_t all_ = 0;
  std::size_t in_a_row_ = 0;
  std::string why_;
};

/// A model's kernels and parameters on a GPU, which sessions share.
class Gpu {
 public:
  virtual ~Gpu() = default;
  Gpu() = default;
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  Gpu(Gpu&&) = delete;
  Gpu& operator=(Gpu&&) = delete;

  /// The GPU's name, as its driver says it.
  [[nodiscard]] virtual std::string name() const = 0;
  /// `arena` is the host's, and outlives the session. Throws GpuError if there is no memory.
  [[nodiscard]] virtual std::unique_ptr<GpuSession> NewSession(char* arena) const = 0;
};

/// What a GPU is given of a model. All outlive it.
struct GpuModel {
  const Graph* graph = nullptr;
  std::filesystem::path folder;  ///< that has kernels.cubin, or kernels.cl
  const char* params = nullptr;
};

/// Opens the driver that the plan is for. Throws GpuError and BundleError.
std::shared_ptr<const Gpu> OpenGpu(const GpuModel& model);
namespace cuda {
std::shared_ptr<const Gpu> Open(const GpuModel& model);
}
namespace opencl {
std::shared_ptr<const Gpu> Open(const GpuModel& model);
}

}  // namespace edgepack
