#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
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
// The padding keeps lines apart. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class ThreadPool {
 public:
  /// What the tasks of one launch share. On a line of its own: all threads read it while the
  /// launching one writes to the stack around it.
  class alignas(64) Group {
   public:
    Group(int tasks, bool concurrent) : tasks_(tasks), concurrent_(concurrent) {}

    [[nodiscard]] int tasks() const { return tasks_; }
    /// Whether each task has a thread of its own, so that one may wait for another.
    [[nodiscard]] bool concurrent() const { return concurrent_; }
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

  /// The pool that kernels use unless told otherwise: one thread until Configure.
  static ThreadPool& Global();
  /// The pool that kernels use which this thread calls.
  static ThreadPool& Current();

  /// As long as it lives, kernels that this thread calls use `pool`.
  class Use {
   public:
    explicit Use(ThreadPool* pool);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Use(Use&&) = delete;
    Use& operator=(Use&&) = delete;

   private:
    ThreadPool* before_;
  };

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
  ///
  /// A task is `int function(int task, Group& group)`, called by many threads at a time. It returns
  /// 0 if all went well, and must not throw. Returns the first result that is not 0, or 0.
  template <typename Function>
  int Run(int tasks, const Function& function) {
    return RunTasks(tasks, Task(function));
  }

 private:
  /// A reference to a function: smaller than std::function, and never on the heap.
  class Task {
   public:
    Task() = default;
    template <typename Function>
    explicit Task(const Function& function)
        : function_(&function), call_([](const void* called, int task, Group& group) {
            return (*static_cast<const Function*>(called))(task, group);
          }) {}

    int operator()(int task, Group& group) const { return call_(function_, task, group); }

   private:
    const void* function_ = nullptr;
    int (*call_)(const void* function, int task, Group& group) = nullptr;
  };

  /// What a thread has to know of a job, and its tasks that nobody has taken yet. All of it comes
  /// with the one cache line that the thread watches: each line more would take it a tenth of a
  /// microsecond to get from the launching core.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> state{0};
    // Those of the state's job; not to be read before a task of it has been taken, which holds
    // the next job up.
    Task task;
    Group* group = nullptr;
  };

  void Work(int worker, std::uint32_t seen);
  int RunTasks(int tasks, const Task& task);
  int RunAll(int tasks, const Task& task);
  int RunShare(int thread, std::uint32_t job);
  int HelpOthers(int thread, std::uint32_t job);
  void RunTask(int thread, int task);
  void Count(int finished);
  template <typename Condition>
  void Await(std::condition_variable* condition, std::atomic<int>* sleepers, Condition done);
  void Wake(std::condition_variable* condition, const std::atomic<int>& sleepers);
  void Stop();

  std::vector<std::thread> workers_;
  std::unique_ptr<Share[]> shares_;  // one per thread
  bool spins_ = false;

  // The launching thread's, on lines that workers have no business with.
  alignas(64) std::mutex launch_;  // one launch at a time
  std::uint32_t job_ = 0;          // number of the current job
  std::uint32_t counted_ = 0;      // what `done_` is when all jobs have ended
  std::atomic<int> result_{0};

  // What both sides look at when a job ends.
  alignas(64) std::atomic<std::uint32_t> done_{0};  // tasks that workers have done, of all jobs
  std::atomic<int> idle_{0};                        // workers that sleep
  std::atomic<int> waiting_{0};                     // 1 if the launching thread sleeps
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // for going to sleep only
  std::condition_variable launched_;
  std::condition_variable finished_;
};

}  // namespace edgepack
