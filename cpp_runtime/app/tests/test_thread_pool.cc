#include <atomic>
#include <chrono>
#include <sched.h>
#include <set>
#include <thread>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <edgepack/thread_pool.h>

#include "patience.h"

namespace edgepack {
namespace {

using Group = ThreadPool::Group;

}  // namespace

TEST_CASE("each task runs once") {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool;
    pool.Configure(threads, {});
    CHECK(pool.threads() == threads);
    for (const int tasks : {0, 1, 2, 5, 17}) {
      std::vector<std::atomic<int>> counts(static_cast<std::size_t>(tasks > 0 ? tasks : threads));
      const int status = pool.Run(tasks, [&](int task, Group& group) {
        ++counts[static_cast<std::size_t>(task)];
        return group.tasks() == static_cast<int>(counts.size()) ? 0 : 1;
      });
      CHECK(status == 0);
      for (const auto& count : counts) CHECK(count == 1);
    }
  }
}

TEST_CASE("many short launches") {
  ThreadPool pool;
  pool.Configure(3, {});
  std::atomic<int> sum{0};
  for (int i = 0; i < 5000; ++i) {
    pool.Run(0, [&](int /*task*/, Group& /*group*/) {
      ++sum;
      return 0;
    });
  }
  CHECK(sum == 15000);
}

TEST_CASE("what late threads leave is done by the others") {
  for (const int threads : {2, 3, 4}) {
    ThreadPool pool;
    pool.Configure(threads, {});
    const int tasks = 4 * threads;
    for (int i = 0; i < 100; ++i) {
      // The first task of every share but one lasts until all others are done, as if all cores but
      // one were slow: so many tasks are left to whichever thread has none of these.
      const int others = tasks - (threads - 1);
      std::atomic<int> done{0};
      const int status = pool.Run(tasks, [&](int task, Group& /*group*/) {
        if (task == 0 || task % 4 != 0) return ++done, 0;
        while (done != others) sched_yield();
        return 0;
      });
      CHECK(status == 0);
      CHECK(done == others);
    }
  }
}

TEST_CASE("waiting gives way") {
  using Step = Patience::Step;
  using std::chrono::microseconds;
  const Patience::Clock::time_point start(std::chrono::hours(1));
  Patience patience;
  SUBCASE("on a core of its own it goes on for a while, others may have the core soon") {
    for (int us = 0; us < 20; ++us) CHECK(patience.Next(start + microseconds(us)) == Step::kLook);
    for (int us = 20; us < 100; ++us) {
      CHECK(patience.Next(start + microseconds(us)) == Step::kYield);
    }
    CHECK(patience.Next(start + microseconds(100)) == Step::kSleep);
  }
  SUBCASE("it ends where another process has had the core") {
    CHECK(patience.Next(start) == Step::kLook);
    CHECK(patience.Next(start + microseconds(20)) == Step::kYield);
    CHECK(patience.Next(start + microseconds(41)) == Step::kSleep);
  }
}

TEST_CASE("threads that had time to sleep are woken") {
  ThreadPool pool;
  pool.Configure(3, {});
  std::atomic<int> sum{0};
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.Run(3, [&](int /*task*/, Group& group) {
      ++sum;
      return group.Wait() ? 0 : 1;
    });
  }
  CHECK(sum == 15);
}

TEST_CASE("threads that go to sleep as a launch begins are woken") {
  using Clock = std::chrono::steady_clock;
  ThreadPool pool;
  pool.Configure(3, {});
  for (int i = 0; i < 400; ++i) {
    // Around the time for which they look for work.
    const auto end = Clock::now() + std::chrono::microseconds(60 + i % 80);
    while (Clock::now() < end) continue;
    // A barrier opens if all have come; of other tasks all are done, by whomever.
    const bool barrier = i % 2 == 0;
    std::atomic<int> count{0};
    const int status = pool.Run(barrier ? 3 : 8, [&](int, Group& group) {
      ++count;
      return !barrier || group.Wait() ? 0 : 1;
    });
    CHECK(status == 0);
    CHECK(count == (barrier ? 3 : 8));
  }
}

TEST_CASE("the launching thread sleeps if it has to wait long") {
  ThreadPool pool;
  pool.Configure(2, {});
  std::atomic<bool> slept{false};
  const int status = pool.Run(2, [&](int /*task*/, Group& group) {
    if (!group.Wait()) return 1;
    // One of the two waits for the other.
    if (!slept.exchange(true)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return 0;
  });
  CHECK(status == 0);
}

TEST_CASE("a failed task fails the launch") {
  ThreadPool pool;
  for (const int threads : {1, 4}) {
    pool.Configure(threads, {});
    CHECK(pool.Run(4, [](int task, Group&) { return task == 2 ? 7 : 0; }) == 7);
    CHECK(pool.Run(4, [](int, Group&) { return 0; }) == 0);
  }
}

TEST_CASE("a launch from inside a task runs on its thread") {
  ThreadPool pool;
  pool.Configure(3, {});
  std::atomic<int> count{0};
  std::atomic<bool> elsewhere{false};
  pool.Run(0, [&](int, Group&) {
    const auto thread = std::this_thread::get_id();
    return pool.Run(4, [&](int, Group&) {
      ++count;
      if (std::this_thread::get_id() != thread) elsewhere = true;
      return 0;
    });
  });
  CHECK(count == 12);
  CHECK_FALSE(elsewhere);
}

TEST_CASE("barriers") {
  ThreadPool pool;
  pool.Configure(3, {});
  std::atomic<int> arrived{0};
  const int status = pool.Run(0, [&](int, Group& group) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      if (!group.Wait() || arrived < 3 * round || !group.Wait()) return 1;
    }
    return 0;
  });
  CHECK(status == 0);
  SUBCASE("cannot open with more tasks than threads") {
    CHECK(pool.Run(4, [](int, Group& group) { return group.Wait() ? 0 : 1; }) == 1);
  }
  SUBCASE("do not wait for a task that failed") {
    CHECK(pool.Run(3, [](int task, Group& group) { return task == 1 || !group.Wait() ? 1 : 0; }) ==
          1);
  }
  SUBCASE("of one task are open") {
    pool.Configure(1, {});
    CHECK(pool.Run(0, [](int, Group& group) { return group.Wait() ? 0 : 1; }) == 0);
  }
}

TEST_CASE("threads stay on their CPUs") {
  cpu_set_t before;
  CPU_ZERO(&before);
  REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
  int first = 0;
  while (!CPU_ISSET(static_cast<unsigned>(first), &before)) ++first;
  {
    ThreadPool pool;
    pool.Configure(2, {first});
    std::atomic<bool> outside{false};
    pool.Run(0, [&](int, Group&) {
      if (sched_getcpu() != first) outside = true;
      return 0;
    });
    CHECK_FALSE(outside);
    CHECK_THROWS_AS(pool.Configure(2, {CPU_SETSIZE - 1}), UsageError);
  }
  sched_setaffinity(0, sizeof(before), &before);
}

}  // namespace edgepack
