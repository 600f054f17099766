#include <stdexcept>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <edgepack/model.h>
#include <edgepack/thread_pool.h>
#include <edgepack/workspace.h>

#include "support.h"

namespace edgepack::testing {
namespace {

std::string LoadError(const std::filesystem::path& folder) {
  return MessageOf<BundleError>([&] { const Model model(folder); });
}

/// What a run says in which the kernel `name` is called in place of add.
std::string RunError(const std::string& name) {
  const TempFolder folder;
  WriteModel(folder.path(), Replace(GraphText(), "\"add\"", "\"" + name + "\""));
  Model model(folder.path());
  return MessageOf<std::runtime_error>([&] { model.Run(); });
}

std::vector<float> Output(const Model& model) {
  const auto* data = static_cast<const float*>(model.outputs().at(0).data);
  return {data, data + model.outputs().at(0).info->size()};
}

}  // namespace

TEST_CASE("a model runs, again and again, on any number of threads") {
  const TempFolder folder;
  WriteModel(folder.path());
  Model model(folder.path());
  CHECK(model.name() == "tiny");
  CHECK(model.arena_bytes() == 256);
  CHECK(model.params_bytes() == 16);
  CHECK(model.inputs().at(0).info->name == "x");
  for (const int threads : {1, 3, 2}) {
    ThreadPool::Global().Configure(threads, {});
    for (int i = 0; i < 50; ++i) {
      const float input[] = {1, 2, 3, static_cast<float>(i)};
      model.SetInput(0, Info(DType::kFloat32, {1, 4}), input);
      model.Run();
      CHECK(Output(model) == std::vector<float>{22, 44, 66, 2 * (40 + static_cast<float>(i))});
    }
  }
  CHECK(Workspace::Global().peak_bytes() == 64);
  Model moved = std::move(model);
  moved.Run();
  CHECK(Output(moved).front() == 22);
  ThreadPool::Global().Configure(1, {});
}

TEST_CASE("a run with times computes the same") {
  const TempFolder folder;
  WriteModel(folder.path());
  Model model(folder.path());
  const float input[] = {1, 2, 3, 4};
  model.SetInput(0, Info(DType::kFloat32, {1, 4}), input);
  std::vector<double> times = {-1};
  model.Run(&times);
  CHECK(Output(model) == std::vector<float>{22, 44, 66, 88});
  REQUIRE(times.size() == model.layers().size());
  REQUIRE(times.size() == 2);
  for (const double time : times) CHECK(time >= 0);
  CHECK(model.layers()[0].name == "plus");
  CHECK(model.layers()[1].kernel == "twice");
}

TEST_CASE("an output is as large as its count says") {
  const TempFolder folder;
  WriteModel(folder.path(), CountedGraphText());
  Model model(folder.path());
  const TensorInfo& output = *model.outputs().at(0).info;
  CHECK(output.shape == Shape{2, 2});
  const auto run = [&](float count) {
    const float input[] = {count, 2, 3, 4};
    model.SetInput(0, Info(DType::kFloat32, {1, 4}), input);
    std::vector<double> times;
    count == 1 ? model.Run() : model.Run(&times);
  };
  run(1);
  CHECK(output.shape == Shape{2, 1});
  CHECK(Output(model) == std::vector<float>{22, 66});
  run(2);
  CHECK(Output(model) == std::vector<float>{24, 44, 66, 88});
  run(0);
  CHECK(output.shape == Shape{2, 0});
  CHECK(output.bound == Shape{2, 2});
  CHECK(Output(model).empty());
  CHECK(MessageOf<std::runtime_error>([&] { run(3); }) ==
        "output 'y' is said to have 3 of 2 elements along axis 1");
  CHECK(Contains(MessageOf<std::runtime_error>([&] { run(-1); }), "-1 of 2"));
}

TEST_CASE("tensors that do not fit") {
  const TempFolder folder;
  WriteModel(folder.path());
  Model model(folder.path());
  const float data[8] = {};
  const auto error = [&](std::size_t index, DType dtype, const Shape& shape) {
    return MessageOf<ModelInputError>([&] { model.SetInput(index, Info(dtype, shape), data); });
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

TEST_CASE("kernels that fail say why") {
  CHECK(RunError("fail") == "kernel fail: expected 3 rows");
  CHECK(RunError("fail_silently") == "kernel fail_silently failed without a message");
  CHECK(
      Contains(RunError("call_outside"), "'runtime.something', which edgepack-run does not have"));
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
  Model model(folder.path());
  CHECK(MessageOf<std::runtime_error>([&] { model.Run(); }) == "kernel add: add takes 3 tensors");
}

}  // namespace edgepack::testing
