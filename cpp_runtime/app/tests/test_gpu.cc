#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include <doctest/doctest.h>
#include <edgepack/errors.h>

#include "driver_watch.h"
#include "gpu.h"
#include "support.h"

namespace edgepack::testing {
namespace {

using std::chrono::milliseconds;

/// A driver that is done when it is told to be.
class ToldSession final : public GpuSession {
 public:
  ToldSession(const Graph* graph, DriverLimit limit) : GpuSession(graph, limit) {}

  bool done = false;
  bool fails = false;
  std::function<void()> in_launch = [] {};
  int launched = 0;
  bool times = false;

 private:
  void EnterDriver() override {}
  void SetTimes(bool on) override { times = on; }
  [[nodiscard]] double Taken() override { return 2.5; }
  void StartToGpu(std::size_t /*offset*/, std::size_t /*bytes*/) override {}
  void StartToCpu(std::size_t /*offset*/, std::size_t /*bytes*/, char* /*to*/) override {}
  void StartUse(std::size_t /*offset*/, std::size_t /*bytes*/) override {}
  void StartLaunches(std::size_t first, std::size_t end) override {
    in_launch();
    launched += static_cast<int>(end - first);
  }
  void GiveAll() override {}
  [[nodiscard]] bool Done() override {
    if (fails) throw GpuError("gpu-failed", Doing() + " failed");
    return done;
  }
};

Graph TwoLaunches() {
  Graph graph;
  for (const char* const name : {"first", "second"}) {
    GraphCall call;
    call.layer.kernel = std::string("gpu_") + name;
    call.layer.name = name;
    GpuLaunch launch;
    launch.call = graph.calls.size();
    graph.gpu.launches.push_back(launch);
    graph.calls.push_back(call);
  }
  return graph;
}

}  // namespace

TEST_CASE("a GPU that does not end is said to hang, until it ends") {
  const Graph graph = TwoLaunches();
  ToldSession session(&graph, milliseconds(30));
  session.Enter();
  session.Launch(0, 2);
  CHECK(MessageOf<GpuLostError>([&] { session.Wait(); }) ==
        "the GPU hangs: it has not ended one of 2 kernels, from gpu_first of layer 'first' to "
        "gpu_second of layer 'second' within 30 ms");
  CHECK(GpuHangs());
  CHECK(Contains(MessageOf<GpuLostError>([&] { session.Enter(); }), "still hangs"));
  CHECK(!session.Settles());
  session.done = true;
  session.Enter();
  session.Launch(1, 2);
  session.Wait();
  CHECK(session.launched == 3);
  CHECK(session.Settles());
}

TEST_CASE("launches are timed if that is asked for, and told once") {
  const Graph graph = TwoLaunches();
  ToldSession session(&graph, milliseconds(1000));
  session.done = true;
  session.Enter();
  session.Launch(0, 1);
  session.Wait();
  CHECK(!session.times);
  CHECK(!session.TakenMs());
  session.Enter(true);
  CHECK(session.times);
  CHECK(!session.TakenMs());
  session.Launch(0, 1);
  session.Wait();
  CHECK(session.TakenMs() == 2.5);
  CHECK(!session.TakenMs());
  session.Enter();
  CHECK(!session.times);
}

TEST_CASE("what fails on a GPU is named, and nothing of it is under way") {
  const Graph graph = TwoLaunches();
  ToldSession session(&graph, milliseconds(1000));
  session.Enter();
  session.Launch(1, 2);
  session.fails = true;
  CHECK(MessageOf<GpuError>([&] { session.Wait(); }) ==
        "kernel gpu_second of layer 'second' failed");
  CHECK(session.Settles());
}

TEST_CASE("a driver that does not come back has the process ended") {
  static std::atomic<bool> ended;
  static std::string message;
  EndIfDriverBlocks([](const GpuLostError& error) {
    if (!ended.exchange(true)) message = error.message;
  });
  const Graph graph = TwoLaunches();
  ToldSession session(&graph, milliseconds(20));
  session.in_launch = [] {
    while (!ended) std::this_thread::sleep_for(milliseconds(1));
  };
  session.Launch(0, 1);
  CHECK(ended);
  EndIfDriverBlocks([](const GpuLostError& /*error*/) {});  // waits for the call above
  CHECK(message == "the GPU's driver has not come back from a call within 20 ms");
}

TEST_CASE("how long a GPU may take is what somebody says, else by its kind") {
  CHECK(CurrentDriverLimit(false) == DriverLimit(kDriverLimit));
  CHECK(!CurrentDriverLimit(true));
  SetDefaultDriverLimit(milliseconds(7000));
  CHECK(CurrentDriverLimit(false) == DriverLimit(milliseconds(7000)));
  CHECK(!CurrentDriverLimit(true));
  SetDefaultDriverLimit(kDriverLimit);
  // NOLINTBEGIN(concurrency-mt-unsafe): no other thread looks at it
  setenv("EDGEPACK_GPU_LIMIT_S", "2.5", 1);
  CHECK(CurrentDriverLimit(false) == DriverLimit(milliseconds(2500)));
  CHECK(CurrentDriverLimit(true) == DriverLimit(milliseconds(2500)));
  for (const char* const wrong : {"0", "-1", "1s", "nan", "inf", "86401"}) {
    setenv("EDGEPACK_GPU_LIMIT_S", wrong, 1);
    CHECK(Contains(ErrorOf([] { CurrentDriverLimit(false); }), wrong));
  }
  unsetenv("EDGEPACK_GPU_LIMIT_S");
  setenv("EDGEPACK_GPU_LOST", "3", 1);
  CHECK(StartsLostToGpu() == 3);
  unsetenv("EDGEPACK_GPU_LOST");
  // NOLINTEND(concurrency-mt-unsafe)
  CHECK(StartsLostToGpu() == 0);
}

}  // namespace edgepack::testing
