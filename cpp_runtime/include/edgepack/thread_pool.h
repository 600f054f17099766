#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace edgepack {

/// The threads that run the parallel loops of kernels; the calling thread is the first of them.
///
/// Each thread has an equal share of a launch's tasks and begins with its first one. Whoever is
/// through helps the others from the far end of theirs. So neighbouring tasks stay on one core, and
/// a thread whose core is slow, or taken by another process, holds nobody up for longer than the
/// one task it is at. Threads wait for each other awake for a moment only, then they sleep.
class ThreadPool {
 public:
  /// What the tasks of one launch share.
  class Group {
   public:
    Group(int tasks, bool concurrent) : tasks_(tasks), concurrent_(concurrent) {}

    [[nodiscard]] int tasks() const { return tasks_; }
    /// A barrier of all tasks. False if it can never open: a task has failed, or there are more
    /// tasks than threads.
    bool Wait();
    /// Says that a task has failed.
    void Fail() { failed_ = true; }

   private:
    int tasks_;
    bool concurrent_;
    std::atomic<bool> failed_{false};
    std::atomic<int> arrived_{0};
    std::atomic<std::uint32_t> generation_{0};
  };

  /// Returns 0 if all went well. Must not throw.
  using Task = std::function<int(int task, Group& group)>;

  /// The pool that kernels use: one thread until Configure.
  static ThreadPool& Global();

  ThreadPool() = default;
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ThreadPool(ThreadPool&&) = delete;
  ThreadPool& operator=(ThreadPool&&) = delete;

  /// Starts `threads` - 1 workers. With `cpus` they, and the calling thread, may run on these CPUs
  /// only. Throws UsageError if the kernel refuses them.
  void Configure(int threads, const std::vector<int>& cpus);
  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Runs tasks 0 .. `tasks` - 1 (0 or less: one per thread) and waits for them. A launch from
  /// inside a task runs them one after the other.
  /// Returns the first result that is not 0, or 0.
  int Run(int tasks, const Task& task);

 private:
  /// A thread's tasks that nobody has taken yet; on a cache line of its own.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> state{0};
  };

  void Work(int worker, std::uint32_t seen);
  int RunAll(int tasks, const Task& task);
  void RunShares(int thread, std::uint32_t job);
  template <typename Condition>
  void Await(std::condition_variable* condition, std::atomic<int>* sleepers, Condition done);
  void Wake(std::condition_variable* condition, const std::atomic<int>& sleepers);
  void Stop();

  std::vector<std::thread> workers_;
  std::unique_ptr<Share[]> shares_;  // one per thread
  bool spins_ = false;

  std::mutex launch_;  // one launch at a time
  const Task* task_ = nullptr;
  Group* group_ = nullptr;
  std::atomic<int> unfinished_{0};  // tasks of the job
  std::atomic<int> result_{0};
  std::atomic<std::uint32_t> job_{0};  // number of the current job

  std::mutex mutex_;  // for going to sleep only
  std::condition_variable launched_;
  std::condition_variable finished_;
  std::atomic<int> idle_{0};     // workers that sleep
  std::atomic<int> waiting_{0};  // 1 if the launching thread sleeps
  std::atomic<bool> stop_{false};
};

}  // namespace edgepack
