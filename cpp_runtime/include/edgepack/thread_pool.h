#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace edgepack {

/// The threads that run the parallel loops of kernels; the calling thread is the first of them.
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

  /// Runs tasks 0 .. `tasks` - 1 (0 or less: one per thread) and waits for them. More tasks than
  /// threads, or a launch from inside a task, run one after the other on each thread.
  /// Returns the first result that is not 0, or 0.
  int Run(int tasks, const Task& task);

 private:
  void Work(int worker, std::uint32_t seen);
  void RunShare(int first, int step);
  void AwaitJob(std::uint32_t seen);
  void Stop();

  std::vector<std::thread> workers_;
  int spins_ = 0;

  std::mutex launch_;  // one launch at a time
  const Task* task_ = nullptr;
  Group* group_ = nullptr;
  std::atomic<int> pending_{0};  // workers that have not finished the job
  std::atomic<int> result_{0};
  std::atomic<std::uint32_t> job_{0};  // number of the current job

  std::mutex mutex_;  // for going to sleep only
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace edgepack
