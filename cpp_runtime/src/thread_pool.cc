#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <string>

#include <edgepack/error.h>
#include <edgepack/thread_pool.h>

namespace edgepack {
namespace {

/// Kernels follow each other within microseconds, waking a thread takes tens of them: look for a
/// new job this often (some 20 us) before sleeping.
constexpr int kSpins = 4000;

thread_local bool inside_task = false;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__arm__) || defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Pin(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<unsigned>(cpu), &set);
  const int status = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  if (status != 0) {
    throw UsageError(std::string("cannot run on the CPUs asked for: ") + std::strerror(status),
                     "use --affinity none");
  }
}

}  // namespace

bool ThreadPool::Group::Wait() {
  if (!concurrent_) return tasks_ == 1;
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_acq_rel);
    return true;
  }
  while (generation_.load(std::memory_order_acquire) == generation) {
    if (failed_) return false;
    sched_yield();
  }
  return true;
}

ThreadPool& ThreadPool::Global() {
  static ThreadPool pool;
  return pool;
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  stop_ = false;
}

void ThreadPool::Configure(int threads, const std::vector<int>& cpus) {
  const std::lock_guard<std::mutex> lock(launch_);
  Stop();
  // Workers inherit the mask of the thread that starts them.
  Pin(cpus);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const bool known = sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
  // Spinning would take the CPU from the very thread that is waited for.
  spins_ = known && threads <= CPU_COUNT(&allowed) ? kSpins : 0;
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back(&ThreadPool::Work, this, worker, job_.load());
  }
}

int ThreadPool::Run(int tasks, const Task& task) {
  if (inside_task || workers_.empty()) {
    Group group(tasks > 0 ? tasks : 1, false);
    for (int i = 0; i < group.tasks(); ++i) {
      if (const int result = task(i, group); result != 0) return result;
    }
    return 0;
  }
  const std::lock_guard<std::mutex> lock(launch_);
  Group group(tasks > 0 ? tasks : threads(), tasks <= threads());
  task_ = &task;
  group_ = &group;
  result_ = 0;
  pending_ = threads() - 1;
  ++job_;
  // Sequentially consistent on both sides: either the worker sees the job before it sleeps, or
  // this thread sees the sleeper.
  if (sleepers_ != 0) {
    { const std::lock_guard<std::mutex> sleepers(mutex_); }
    wake_.notify_all();
  }
  RunShare(0, threads());
  for (int spin = 0; pending_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < spins_) {
      Pause();
    } else {
      sched_yield();
    }
  }
  return result_;
}

void ThreadPool::RunShare(int first, int step) {
  inside_task = true;
  for (int i = first; i < group_->tasks(); i += step) {
    if (const int result = (*task_)(i, *group_); result != 0) {
      group_->Fail();
      int expected = 0;
      result_.compare_exchange_strong(expected, result);
    }
  }
  inside_task = false;
}

void ThreadPool::AwaitJob(std::uint32_t seen) {
  for (int spin = 0; spin < spins_; ++spin) {
    if (job_ != seen || stop_) return;
    Pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ++sleepers_;
  wake_.wait(lock, [&] { return job_ != seen || stop_; });
  --sleepers_;
}

void ThreadPool::Work(int worker, std::uint32_t seen) {
  // Every worker takes part in every job, if only to say that it has nothing to do.
  for (;;) {
    AwaitJob(seen);
    if (stop_) return;
    ++seen;
    RunShare(worker, threads());
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace edgepack
