#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <edgepack/session.h>
#include <edgepack/thread_pool.h>
#include <edgepack/workspace.h>

#include "gpu.h"
#include "support.h"

namespace edgepack::testing {
namespace {

std::string LoadError(const std::filesystem::path& folder) {
  return MessageOf<BundleError>([&] { const Session session{Model(folder)}; });
}

/// What a run says in which the kernel `name` is called in place of add.
std::string RunError(const std::string& name) {
  const TempFolder folder;
  WriteModel(folder.path(), Replace(GraphText(), "\"add\"", "\"" + name + "\""));
  Session session{Model(folder.path())};
  return MessageOf<std::runtime_error>([&] { session.Run(); });
}

/// How often this process has mapped a file.
int MappingsOf(const std::filesystem::path& file) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += Contains(line, file.string()) ? 1 : 0;
  return count;
}

std::vector<float> Output(const Session& session) {
  const auto* data = static_cast<const float*>(session.outputs().at(0).data);
  return {data, data + session.outputs().at(0).info->size()};
}

}  // namespace

TEST_CASE("a model runs, again and again, on any number of threads") {
  const std::size_t before = Workspace::Global().peak_bytes();
  const TempFolder folder;
  WriteModel(folder.path());
  Session session{Model(folder.path())};
  CHECK(session.model().name() == "tiny");
  CHECK(session.model().arena_bytes() == 256);
  CHECK(session.model().params_bytes() == 16);
  CHECK(session.inputs().at(0).info->name == "x");
  for (const int threads : {1, 3, 2}) {
    ThreadPool::Global().Configure(threads, {});
    for (int i = 0; i < 50; ++i) {
      const float input[] = {1, 2, 3, static_cast<float>(i)};
      session.SetInput(0, Info(DType::kFloat32, {1, 4}), input);
      session.Run();
      CHECK(Output(session) == std::vector<float>{22, 44, 66, 2 * (40 + static_cast<float>(i))});
    }
  }
  CHECK(Workspace::Global().peak_bytes() == std::max<std::size_t>(before, 64));
  Session moved = std::move(session);
  moved.Run();
  CHECK(Output(moved).front() == 22);
  ThreadPool::Global().Configure(1, {});
}

TEST_CASE("a state is kept, written or reset") {
  const TempFolder folder;
  WriteModel(folder.path(), StateGraphText());
  const Model model(folder.path());
  Session session(model);
  Session other(model);
  const TensorInfo info = Info(DType::kFloat32, {1, 4});
  const float input[] = {1, 2, 3, 4};
  const auto run = [&](Session* one) {
    one->SetInput(0, info, input);
    one->Run();
    return Output(*one);
  };
  CHECK(run(&session) == std::vector<float>{1, 2, 3, 4});
  CHECK(run(&session) == std::vector<float>{2, 4, 6, 8});
  CHECK(run(&other) == std::vector<float>{1, 2, 3, 4});
  const float written[] = {10, 10, 10, 10};
  session.SetInput(1, info, written);
  CHECK(run(&session) == std::vector<float>{11, 12, 13, 14});
  // By hand, as if it were no state.
  session.SetInput(1, info, session.outputs().at(0).data);
  CHECK(run(&session) == std::vector<float>{12, 14, 16, 18});
  session.Reset();
  CHECK(run(&session) == std::vector<float>{1, 2, 3, 4});
  CHECK(InputsBesides(model.states(), 2) == std::vector<std::size_t>{0});
}

TEST_CASE("a state begins as the model says") {
  const TempFolder folder;
  WriteModel(folder.path(), StartGraphText());
  Session session{Model(folder.path())};
  const float zeros[] = {0, 0, 0, 0};
  const float input[] = {1, 2, 3, 4};
  const TensorInfo info = Info(DType::kFloat32, {1, 4});
  const auto run = [&](const float* given) {
    session.SetInput(0, info, given);
    session.Run();
    return Output(session);
  };
  CHECK(run(zeros) == std::vector<float>{10, 20, 30, 40});
  CHECK(run(input) == std::vector<float>{11, 22, 33, 44});
  session.Reset();
  CHECK(run(input) == std::vector<float>{11, 22, 33, 44});
}

TEST_CASE("sessions share the parameters, not the arena, and run at the same time") {
  const TempFolder folder;
  WriteModel(folder.path());
  std::vector<Session> sessions;
  ThreadPool pool;
  pool.Configure(2, {});
  {
    const Model model(folder.path());
    for (int i = 0; i < 3; ++i) sessions.emplace_back(model);
    sessions.emplace_back(model, &pool);
  }
  for (const Session& session : sessions) {
    CHECK(session.tensor(1).data == sessions[0].tensor(1).data);
    CHECK((&session == sessions.data()) == (session.tensor(0).data == sessions[0].tensor(0).data));
  }
  CHECK(MappingsOf(folder / "params.bin") == 1);
  std::vector<std::vector<float>> wrong(sessions.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    threads.emplace_back([&sessions, &wrong, i] {
      for (int run = 0; run < 200 && wrong[i].empty(); ++run) {
        const float x = static_cast<float>(1000 * i) + static_cast<float>(run);
        const float input[] = {x, 2, 3, 4};
        sessions[i].SetInput(0, Info(DType::kFloat32, {1, 4}), input);
        sessions[i].Run();
        const std::vector<float> output = Output(sessions[i]);
        if (output != std::vector<float>{2 * (x + 10), 44, 66, 88}) wrong[i] = output;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& output : wrong) CHECK(output.empty());
  sessions.clear();
  CHECK(MappingsOf(folder / "params.bin") == 0);
}

TEST_CASE("a run with times computes the same") {
  const TempFolder folder;
  WriteModel(folder.path());
  Session session{Model(folder.path())};
  const float input[] = {1, 2, 3, 4};
  session.SetInput(0, Info(DType::kFloat32, {1, 4}), input);
  std::vector<double> times = {-1};
  session.Run(&times);
  CHECK(Output(session) == std::vector<float>{22, 44, 66, 88});
  REQUIRE(times.size() == session.model().layers().size());
  REQUIRE(times.size() == 2);
  for (const double time : times) CHECK(time >= 0);
  CHECK(session.model().layers()[0].name == "plus");
  CHECK(session.model().layers()[1].kernel == "twice");
}

TEST_CASE("blocks of calls are repeated, or left out") {
  const TempFolder folder;
  WriteModel(folder.path(), LoopGraphText());
  Session session{Model(folder.path())};
  std::vector<std::size_t> done;
  const auto run = [&](float first) {
    const float input[] = {first, 2, 3, 4};
    session.SetInput(0, Info(DType::kFloat32, {1, 4}), input);
    done.clear();
    session.Run([&](std::size_t i) { done.push_back(i); });
    return Output(session).front();
  };
  CHECK(run(0) == 20);
  CHECK(done == std::vector<std::size_t>{0, 1, 2, 7});
  CHECK(run(-7) == 24);
  CHECK(done == std::vector<std::size_t>{0, 1, 2, 4, 5, 6, 4, 5, 6, 7});
  // It never ends below 0.
  CHECK(MessageOf<ModelInputError>([&] { run(-11); }) ==
        "on this input, a loop goes on after 5 turns, the most that it may take");
  CHECK(done == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 3,
                                         4, 5, 6, 3, 4, 5, 6, 3, 4, 5, 6});
  CHECK(run(-9) == 32);
  std::vector<double> times;
  session.Run(&times);
  REQUIRE(times.size() == 8);
  CHECK(times[3] == 0);
}

TEST_CASE("an output is as large as its count says") {
  const TempFolder folder;
  WriteModel(folder.path(), CountedGraphText());
  Session session{Model(folder.path())};
  const TensorInfo& output = *session.outputs().at(0).info;
  CHECK(output.shape == Shape{2, 2});
  const auto run = [&](float count) {
    const float input[] = {count, 2, 3, 4};
    session.SetInput(0, Info(DType::kFloat32, {1, 4}), input);
    std::vector<double> times;
    count == 1 ? session.Run() : session.Run(&times);
  };
  run(1);
  CHECK(output.shape == Shape{2, 1});
  CHECK(Output(session) == std::vector<float>{22, 66});
  run(2);
  CHECK(Output(session) == std::vector<float>{24, 44, 66, 88});
  run(0);
  CHECK(output.shape == Shape{2, 0});
  CHECK(output.bound == Shape{2, 2});
  CHECK(Output(session).empty());
  CHECK(MessageOf<std::runtime_error>([&] { run(3); }) ==
        "output 'y' is said to have 3 of 2 elements along axis 1");
  CHECK(Contains(MessageOf<std::runtime_error>([&] { run(-1); }), "-1 of 2"));
}

TEST_CASE("tensors that do not fit") {
  const TempFolder folder;
  WriteModel(folder.path());
  Session session{Model(folder.path())};
  const float data[8] = {};
  const auto error = [&](std::size_t index, DType dtype, const Shape& shape) {
    return MessageOf<ModelInputError>([&] { session.SetInput(index, Info(dtype, shape), data); });
  };
  CHECK(error(0, DType::kFloat32, {4}) == "input 'x' is float32 (1, 4), not float32 (4,)");
  CHECK(error(0, DType::kInt32, {1, 4}) == "input 'x' is float32 (1, 4), not int32 (1, 4)");
  CHECK(error(1, DType::kFloat32, {1, 4}) == "the model has 1 inputs, there is no number 1");
}

TEST_CASE("damaged files") {
  const TempFolder folder;
  WriteModel(folder.path());
  const std::string library = ReadFile(folder / "model.so");

  SUBCASE("parameters cut off") {
    WriteFile(folder / "params.bin", "12345678");
    CHECK(LoadError(folder.path()) == "params.bin has 8 bytes, graph.json says 16");
  }
  SUBCASE("parameters gone") {
    std::filesystem::remove(folder / "params.bin");
    CHECK(Contains(LoadError(folder.path()), "params.bin: No such file"));
  }
  SUBCASE("library gone") {
    std::filesystem::remove(folder / "model.so");
    CHECK(Contains(LoadError(folder.path()), "model.so: No such file"));
  }
  SUBCASE("library is text") {
    WriteFile(folder / "model.so", "not a library, but long enough for an ELF header ...........");
    CHECK(Contains(LoadError(folder.path()), "model.so is not a shared library"));
  }
  SUBCASE("library empty") {
    WriteFile(folder / "model.so", "");
    CHECK(LoadError(folder.path()) == "model.so is not a shared library");
  }
  SUBCASE("library cut off at every place") {
    WriteFile(folder / "model.so", std::string_view(library).substr(0, 200));
    CHECK(LoadError(folder.path()) == "model.so is cut off");
    // What stands behind the last segment is not needed.
    for (std::size_t size = 0; size < library.size(); size += library.size() / 32) {
      WriteFile(folder / "model.so", std::string_view(library).substr(0, size));
      const std::string message = LoadError(folder.path());
      CHECK((message.empty() || Contains(message, "model.so")));
    }
  }
  SUBCASE("library of another machine") {
    std::string other = library;
    other[18] = '\x02';  // e_machine: SPARC
    WriteFile(folder / "model.so", other);
    CHECK(Contains(LoadError(folder.path()), "cannot load model.so"));
  }
  SUBCASE("kernel missing") {
    WriteFile(folder / "graph.json", Replace(GraphText(), "\"add\"", "\"subtract\""));
    CHECK(LoadError(folder.path()) == "model.so has no kernel 'subtract'");
  }
  SUBCASE("no memory for the arena") {
    // A 32-bit program may well get half of its address space from an emulator.
    if (sizeof(void*) == 4) return;
    WriteFile(folder / "graph.json", Replace(GraphText(), "256", "4611686018427387904"));
    CHECK(Contains(LoadError(folder.path()), "no memory for an arena"));
  }
}

TEST_CASE("a position outside of a tensor is the error of an input, and the session goes on") {
  const auto said = [](const std::string& kernel) {
    const TempFolder folder;
    WriteModel(folder.path(), Replace(GraphText(), "\"add\"", "\"" + kernel + "\""));
    Session session{Model(folder.path())};
    const float input[] = {1, 2, 3, 7};
    session.SetInput(0, Info(DType::kFloat32, {1, 4}), input);
    std::string first = MessageOf<PositionError>([&] { session.Run(); });
    CHECK(MessageOf<PositionError>([&] { session.Run(); }) == first);
    return first;
  };
  CHECK(said("outside") ==
        "Gather 'a|b': its input 'indices' ('x') has 7 at [0, 3], which is not between -2 and 1");
  CHECK(said("outside_of_nothing") == "Add 'plus': a position is not between 0 and 5");
  CHECK(RunError("outside_without_numbers") == "kernel outside_without_numbers: |0|5|x|-1");
}

TEST_CASE("kernels that fail say why") {
  CHECK(RunError("fail") == "kernel fail: expected 3 rows");
  CHECK(RunError("fail_silently") == "kernel fail_silently failed without a message");
  CHECK(Contains(RunError("call_outside"), "'runtime.something', which is not on the board"));
  for (const int threads : {1, 4}) {
    ThreadPool::Global().Configure(threads, {});
    CHECK(RunError("fail_in_a_thread") == "kernel fail_in_a_thread: the last task failed");
    // One thread cannot be in two tasks at a time.
    CHECK(RunError("barrier") ==
          (threads > 1 ? "" : "kernel barrier: a parallel barrier did not open"));
  }
  ThreadPool::Global().Configure(1, {});
  // The wrong number of tensors is for the kernel to find.
  const TempFolder folder;
  WriteModel(folder.path(), Replace(GraphText(), "[0, 1, 2]", "[0, 1, 2, 2]"));
  Session session{Model(folder.path())};
  CHECK(MessageOf<std::runtime_error>([&] { session.Run(); }) == "kernel add: add takes 3 tensors");
}

TEST_CASE("a GPU is given up after three failures in a row") {
  GpuHealth health;
  health.Failed("first");
  health.Failed("second");
  CHECK(health.works());
  health.Worked();
  health.Failed("third");
  health.Failed("fourth");
  CHECK(health.works());
  health.Failed("fifth");
  CHECK(!health.works());
  // A run that had begun before.
  health.Worked();
  CHECK(!health.works());
  CHECK(health.failures() == std::make_pair(std::size_t{5}, std::string("fifth")));
  GpuHealth absent;
  absent.GiveUp("no driver");
  CHECK(!absent.works());
  CHECK(absent.failures() == std::make_pair(std::size_t{0}, std::string("no driver")));
}

TEST_CASE("a plan for the CPU runs where the GPU's driver is not there") {
  const TempFolder folder;
  const std::string gpu =
      R"("gpu": {"api": "cuda", "arch": "sm_87", "driver": "12.2", "launches": [], "copies": []},)";
  WriteModel(folder.path(), Replace(GraphText(), "\"inputs\"", gpu + " \"inputs\""));
  std::filesystem::create_directory(folder.path() / "cpu");
  WriteModel(folder.path() / "cpu");
  // Where there is one, the kernels that it is to load are not.
  try {
    Session session{Model(folder.path())};
    const std::optional<Processor> processor = session.model().processor();
    REQUIRE(processor);
    CHECK(!processor->on_gpu);
    CHECK(!processor->why.empty());
    const std::vector<float> x = {1, 2, 3, 4};
    session.SetInput(0, Info(DType::kFloat32, {1, 4}), x.data());
    session.Run();
    const auto* y = static_cast<const float*>(session.outputs()[0].data);
    CHECK(std::vector<float>(y, y + 4) == std::vector<float>{22, 44, 66, 88});
  } catch (const BundleError& error) {
    CHECK(Contains(error.message, "kernels.cubin"));
  }
  WriteModel(folder.path());
  CHECK(!Model(folder.path() / "cpu").processor());
}

TEST_CASE("a plan for the CPU reads the parameters of the one beside it") {
  const TempFolder folder;
  const std::string gpu =
      R"("gpu": {"api": "cuda", "arch": "sm_87", "driver": "12.2", "launches": [], "copies": []},)";
  WriteModel(folder.path(), Replace(GraphText(), "\"inputs\"", gpu + " \"inputs\""));
  const std::filesystem::path on_cpu = folder.path() / "cpu";
  std::filesystem::create_directory(on_cpu);
  const std::string shared = Replace(
      Replace(GraphText(), "\"params_bytes\": 16", "\"params_bytes\": 0, \"shared_bytes\": 16"),
      "\"params\"", "\"shared\"");
  WriteModel(on_cpu, shared);
  WriteFile(on_cpu / "params.bin", "");
  try {
    Session session{Model(folder.path())};
    const std::vector<float> x = {1, 2, 3, 4};
    session.SetInput(0, Info(DType::kFloat32, {1, 4}), x.data());
    session.Run();
    const auto* y = static_cast<const float*>(session.outputs()[0].data);
    CHECK(std::vector<float>(y, y + 4) == std::vector<float>{22, 44, 66, 88});
  } catch (const BundleError& error) {
    CHECK(Contains(error.message, "kernels.cubin"));
  }
  CHECK(Contains(LoadError(on_cpu), "shares parameters, but of no other plan"));
  WriteFile(folder.path() / "params.bin", "12345678");
  CHECK(LoadError(folder.path()) == "params.bin has 8 bytes, graph.json says 16");
}

}  // namespace edgepack::testing
