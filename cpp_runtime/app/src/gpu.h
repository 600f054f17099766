#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver_watch.h"
#include "graph.h"
#include "memory_map.h"

namespace edgepack {

/// Whether a GPU of this process hung, and was left as it was.
bool GpuHangs();

/// What one session has on a GPU: an arena, and its launches. For one thread at a time.
///
/// Its memory is the GPU's own; or what both processors use is in unified memory instead.
class GpuSession {
 public:
  virtual ~GpuSession() = default;
  GpuSession(const GpuSession&) = delete;
  GpuSession& operator=(const GpuSession&) = delete;
  GpuSession(GpuSession&&) = delete;
  GpuSession& operator=(GpuSession&&) = delete;

  /// To be called by the thread that makes the following calls. Throws GpuLostError for a GPU that
  /// still hangs. With `times` launches are timed until the next call of this.
  void Enter(bool times = false);
  /// The arena in unified memory, of zeros at first, or null. The CPU may use it up to the first
  /// Launch, and then what Use says.
  [[nodiscard]] virtual char* unified() const { return nullptr; }
  /// Copies bytes of the host's arena into the GPU's, or from there to `to`; or lets the CPU use
  /// bytes of unified memory up to the next Launch. All of this is done in order, and maybe later:
  /// see Wait.
  void ToGpu(std::size_t offset, std::size_t bytes);
  void ToCpu(std::size_t offset, std::size_t bytes, char* to);
  void Use(std::size_t offset, std::size_t bytes);
  /// Starts launches `first` to `end` (excluded) of the plan.
  void Launch(std::size_t first, std::size_t end);
  /// Returns when everything is done. Throws GpuError if something of it failed, and GpuLostError
  /// if it is not done within the limit: it may still be done later.
  void Wait();
  /// Milliseconds that the GPU took for the last Launch, by its own clock, once Wait has returned;
  /// nothing if it was not timed, or was asked for before.
  [[nodiscard]] std::optional<double> TakenMs();
  /// Waits for what is under way, whatever becomes of it. False if the GPU hangs: then nothing that
  /// the GPU or its driver may use, this object among it, must be freed ever.
  [[nodiscard]] bool Settles();

 protected:
  GpuSession(const Graph* graph, DriverLimit limit) : graph_(graph), limit_(limit), calls_(limit) {}

  /// The same, of one driver. `GiveAll` is called once everything was given that is waited for.
  virtual void EnterDriver() = 0;
  /// From now on StartLaunches times what it starts, or not. Nothing is under way.
  virtual void SetTimes(bool on) = 0;
  /// Of the last StartLaunches, which is done.
  [[nodiscard]] virtual double Taken() = 0;
  virtual void StartToGpu(std::size_t offset, std::size_t bytes) = 0;
  virtual void StartToCpu(std::size_t offset, std::size_t bytes, char* to) = 0;
  virtual void StartUse(std::size_t offset, std::size_t bytes) = 0;
  virtual void StartLaunches(std::size_t first, std::size_t end) = 0;
  virtual void GiveAll() = 0;
  /// Whether everything is done. Throws GpuError if something failed.
  [[nodiscard]] virtual bool Done() = 0;

  /// What is waited for, for messages.
  [[nodiscard]] std::string Doing() const;

 private:
  const Graph* graph_;
  DriverLimit limit_;
  DriverCalls calls_;
  /// Launches since the last Wait that went well.
  std::size_t first_ = 0;
  std::size_t end_ = 0;
  bool hangs_ = false;
  bool times_ = false;
  bool timed_ = false;
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
  /// The GPU was not there to begin with, or has made this program end before.
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
  /// Whether sessions have unified memory: the plan is made for it, and the driver says that the
  /// processors share theirs.
  [[nodiscard]] virtual bool has_unified_memory() const = 0;
  /// `arena` is the host's; the GPU's results come to it, or to `landing` if that is larger than
  /// nothing. Both outlive the session; neither is used with unified memory. Throws GpuError if
  /// there is no memory.
  [[nodiscard]] virtual std::unique_ptr<GpuSession> NewSession(char* arena,
                                                               const MemoryMap& landing) const = 0;
};

/// Bytes of the arena up to the last tensor that is in unified memory, or that is not.
std::size_t ArenaBytes(const Graph& graph, bool in_unified);

/// What a GPU is given of a model. All outlive it.
struct GpuModel {
  const Graph* graph = nullptr;
  std::filesystem::path folder;  ///< that has kernels.cubin and kernels.ptx, or kernels.cl
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
