#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <utility>

#include <edgepack/errors.h>
#include <edgepack/thread_pool.h>

#include "patience.h"

namespace edgepack {
namespace {

/// Looks between two looks at the clock: about a microsecond.
constexpr int kLooks = 32;
/// What fits a share's state.
constexpr int kMaxTasks = 0xFFFF;

thread_local bool inside_task = false;
thread_local ThreadPool* current_pool = nullptr;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__arm__) || defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Job number, first task, and the one after the last, of a share.
std::uint64_t Pack(std::uint32_t job, std::uint32_t begin, std::uint32_t end) {
  return std::uint64_t{job} << 32U | begin << 16U | end;
}

/// Takes a task of `job` from a share, the first or the last one; -1 if there is none.
int Take(std::atomic<std::uint64_t>* share, std::uint32_t job, bool first) {
  std::uint64_t state = share->load(std::memory_order_acquire);
  for (;;) {
    const auto begin = static_cast<std::uint32_t>(state >> 16U & 0xFFFFU);
    const auto end = static_cast<std::uint32_t>(state & 0xFFFFU);
    // A thread may be late, and see the tasks of a job after the one it was called for.
    if (state >> 32U != job || begin == end) return -1;
    const std::uint64_t rest = first ? Pack(job, begin + 1, end) : Pack(job, begin, end - 1);
    if (share->compare_exchange_weak(state, rest, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      return static_cast<int>(first ? begin : end - 1);
    }
  }
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

ThreadPool& ThreadPool::Current() { return current_pool != nullptr ? *current_pool : Global(); }

ThreadPool::Use::Use(ThreadPool* pool) : before_(std::exchange(current_pool, pool)) {}
ThreadPool::Use::~Use() { current_pool = before_; }

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  launched_.notify_all();
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
  spins_ = known && threads <= CPU_COUNT(&allowed);
  shares_ = std::make_unique<Share[]>(static_cast<std::size_t>(threads));
  job_ = 0;
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back(&ThreadPool::Work, this, worker, job_);
  }
}

int ThreadPool::RunTasks(int tasks, const Task& task) {
  if (!inside_task && !workers_.empty() && tasks <= kMaxTasks) {
    return RunAll(tasks > 0 ? tasks : threads(), task);
  }
  Group group(tasks > 0 ? tasks : 1, false);
  for (int i = 0; i < group.tasks(); ++i) {
    if (const int result = task(i, group); result != 0) return result;
  }
  return 0;
}

int ThreadPool::RunAll(int tasks, const Task& task) {
  const std::lock_guard<std::mutex> lock(launch_);
  Group group(tasks, tasks <= threads());
  result_.store(0, std::memory_order_relaxed);
  ++job_;
  const auto part = [&](int thread) {
    return static_cast<std::uint32_t>((tasks * thread + threads() - 1) / threads());
  };
  for (int thread = threads() - 1; thread >= 0; --thread) {
    Share& share = shares_[static_cast<std::size_t>(thread)];
    share.task = task;
    share.group = &group;
    // The first task is this thread's. It begins at once: to take it from the share would be to
    // wait until all workers' cores have given up their lines.
    const std::uint32_t first = thread == 0 ? 1 : part(thread);
    share.state.store(Pack(job_, first, part(thread + 1)), std::memory_order_release);
  }
  // Nor does it look at once for workers that sleep, unless tasks wait for each other. One that
  // lies down right now is woken a task later.
  const bool now = group.concurrent() || idle_.load(std::memory_order_relaxed) != 0;
  if (now) Wake(&launched_, idle_);
  inside_task = true;
  RunTask(0, 0);
  if (!now) Wake(&launched_, idle_);
  counted_ += static_cast<std::uint32_t>(tasks - 1 - RunShare(0, job_));
  if (done_ != counted_) counted_ -= static_cast<std::uint32_t>(HelpOthers(0, job_));
  inside_task = false;
  Await(&finished_, &waiting_, [&] { return done_ == counted_; });
  return result_;
}

void ThreadPool::RunTask(int thread, int task) {
  // The job lasts at least until this task has been counted.
  const Share& share = shares_[static_cast<std::size_t>(thread)];
  const int result = share.task(task, *share.group);
  if (result == 0) return;
  share.group->Fail();
  int expected = 0;
  result_.compare_exchange_strong(expected, result);
}

int ThreadPool::RunShare(int thread, std::uint32_t job) {
  Share& share = shares_[static_cast<std::size_t>(thread)];
  int finished = 0;
  for (int task = 0; (task = Take(&share.state, job, true)) >= 0; ++finished) RunTask(thread, task);
  return finished;
}

int ThreadPool::HelpOthers(int thread, std::uint32_t job) {
  int finished = 0;
  for (int i = 1; i < threads(); ++i) {
    Share& share = shares_[static_cast<std::size_t>((thread + i) % threads())];
    for (int task = 0; (task = Take(&share.state, job, false)) >= 0; ++finished) {
      RunTask(thread, task);
    }
  }
  return finished;
}

void ThreadPool::Count(int finished) {
  if (finished == 0) return;
  done_ += static_cast<std::uint32_t>(finished);
  Wake(&finished_, waiting_);
}

template <typename Condition>
void ThreadPool::Await(std::condition_variable* condition, std::atomic<int>* sleepers,
                       Condition done) {
  Patience patience;
  for (Patience::Step step{}; step != Patience::Step::kSleep;) {
    for (int look = 0; look < kLooks; ++look) {
      if (done()) return;
      Pause();
    }
    step = spins_ ? patience.Next(Patience::Clock::now()) : Patience::Step::kSleep;
    if (step == Patience::Step::kYield) sched_yield();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ++*sleepers;
  condition->wait(lock, done);
  --*sleepers;
}

void ThreadPool::Wake(std::condition_variable* condition, const std::atomic<int>& sleepers) {
  // On both sides between a write and a read: either the other thread sees what it waits for before
  // it sleeps, or this one sees the sleeper.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleepers == 0) return;
  { const std::lock_guard<std::mutex> lock(mutex_); }
  condition->notify_all();
}

void ThreadPool::Work(int worker, std::uint32_t seen) {
  const std::atomic<std::uint64_t>& state = shares_[static_cast<std::size_t>(worker)].state;
  const auto job = [&] { return static_cast<std::uint32_t>(state.load() >> 32U); };
  inside_task = true;
  current_pool = this;
  for (;;) {
    Await(&launched_, &idle_, [&] { return job() != seen || stop_; });
    if (stop_) return;
    seen = job();
    // The others' shares are on other cores' lines: what is done is said before looking there.
    Count(RunShare(worker, seen));
    Count(HelpOthers(worker, seen));
  }
}

}  // namespace edgepack
