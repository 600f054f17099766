// The C API, as a program uses it that makes every mistake there is.
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <edgepack/edgepack.h>

#include "common/json.h"
#include "support.h"

namespace edgepack::testing {
namespace {

/// The model of test_run_app.cc for a photo of 1 x 4 pixels.
void WritePhotoBundle(const TempFolder& folder) {
  WriteBundle(folder.path());
  WriteFile(folder / "model" / "graph.json", Replace(GraphText(), "[1, 4]", "[1, 1, 1, 4]"));
  WriteFile(folder / "preprocess.json", R"({
    "format": "edgepack-preprocess", "version": 1, "input": "x", "color": "gray", "resize": null,
    "interpolation": "linear", "crop": null, "scale": 1, "mean": [0], "std": [1],
    "layout": "NCHW", "dtype": "float32", "accept": []})");
  WriteFile(folder / "postprocess.json", R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "tensors", "outputs": ["y"],
    "count": 4})");
}

edgepack_model* OpenModel(const TempFolder& folder) {
  edgepack_model* model = nullptr;
  REQUIRE(edgepack_model_open(folder.path().c_str(), &model, nullptr) == EDGEPACK_OK);
  REQUIRE(model != nullptr);
  return model;
}

edgepack_session* OpenSession(edgepack_model* model, int threads = 1) {
  edgepack_session* session = nullptr;
  REQUIRE(edgepack_session_open(model, threads, &session, nullptr) == EDGEPACK_OK);
  return session;
}

std::vector<float> RunOn(edgepack_session* session, const std::vector<float>& input) {
  std::vector<float> output(4);
  CHECK(edgepack_session_set_input(session, 0, input.data(), 16, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_session_run(session, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_session_get_output(session, 0, output.data(), 16, nullptr) == EDGEPACK_OK);
  return output;
}

/// The values of the first tensor of the results.
std::vector<double> ResultsIn(edgepack_session* session) {
  const char* json = nullptr;
  REQUIRE(edgepack_session_results(session, &json, nullptr) == EDGEPACK_OK);
  const JsonDocument document(json, "results", "kind");
  return document.Root().Objects("tensors").at(0).Numbers("values");
}

/// What a call says that is to fail with `status`.
std::string Refusal(edgepack_status status,
                    const std::function<edgepack_status(edgepack_error*)>& call) {
  edgepack_error error;
  std::memset(&error, 0x7f, sizeof(error));
  CHECK(call(&error) == status);
  CHECK(call(nullptr) == status);
  CHECK(error.status == status);
  CHECK(std::memchr(error.message, 0, sizeof(error.message)) != nullptr);
  CHECK(std::memchr(error.hint, 0, sizeof(error.hint)) != nullptr);
  return error.message;
}

}  // namespace

TEST_CASE("C: a model and its sessions") {
  const TempFolder folder;
  WriteBundle(folder.path());
  CHECK(edgepack_api() == EDGEPACK_API);
  CHECK(std::strlen(edgepack_version()) > 0);
  edgepack_model* model = OpenModel(folder);
  edgepack_model_info info = {};
  CHECK(edgepack_model_get_info(model, &info, nullptr) == EDGEPACK_OK);
  CHECK(std::string(info.name) == "tiny");
  CHECK(info.params_bytes == 16);
  CHECK(info.arena_bytes == 256);
  CHECK(info.inputs == 1);
  CHECK(info.outputs == 1);
  CHECK(info.labels == 3);
  const char* label = nullptr;
  CHECK(edgepack_model_label(model, 2, &label, nullptr) == EDGEPACK_OK);
  CHECK(std::string(label) == "cat");
  edgepack_tensor tensor = {};
  CHECK(edgepack_model_input(model, 0, &tensor, nullptr) == EDGEPACK_OK);
  CHECK(std::string(tensor.name) == "x");
  CHECK(std::string(edgepack_dtype_name(tensor.dtype)) == "float32");
  CHECK(edgepack_dtype_size(tensor.dtype) == 4);
  REQUIRE(tensor.rank == 2);
  CHECK(tensor.shape[1] == 4);
  CHECK(tensor.bound == nullptr);
  CHECK(tensor.data == nullptr);
  CHECK(edgepack_model_output(model, 0, &tensor, nullptr) == EDGEPACK_OK);
  CHECK(std::string(tensor.name) == "y");

  edgepack_session* one = OpenSession(model);
  edgepack_session* two = OpenSession(model, 3);
  edgepack_session* all = OpenSession(model, 0);
  // Sessions stay when their model is closed.
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);
  CHECK(RunOn(one, {1, 2, 3, 4}) == std::vector<float>{22, 44, 66, 88});
  CHECK(RunOn(two, {0, 0, 0, 0}) == std::vector<float>{20, 40, 60, 80});
  CHECK(RunOn(all, {0, 0, 0, 1}) == std::vector<float>{20, 40, 60, 82});
  // In place.
  CHECK(edgepack_session_input(one, 0, &tensor, nullptr) == EDGEPACK_OK);
  static_cast<float*>(tensor.data)[0] = 5;
  CHECK(edgepack_session_run(one, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_session_output(one, 0, &tensor, nullptr) == EDGEPACK_OK);
  CHECK(static_cast<float*>(tensor.data)[0] == 30);
  // Without postprocess.json the first output is taken for scores.
  const char* json = nullptr;
  CHECK(edgepack_session_results(one, &json, nullptr) == EDGEPACK_OK);
  CHECK(Contains(json, R"({"top":[{"index":3,"score":88},{"index":2,"label":"cat","score":66})"));
  for (edgepack_session* session : {one, two, all}) {
    CHECK(edgepack_session_close(session, nullptr) == EDGEPACK_OK);
  }
}

TEST_CASE("C: an output whose shape depends on the data") {
  const TempFolder folder;
  WriteBundle(folder.path());
  WriteFile(folder / "model" / "graph.json", CountedGraphText());
  edgepack_model* model = OpenModel(folder);
  edgepack_session* session = OpenSession(model);
  const float input[] = {1, 2, 3, 4};
  CHECK(edgepack_session_set_input(session, 0, input, 16, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_session_run(session, nullptr) == EDGEPACK_OK);
  edgepack_tensor tensor = {};
  CHECK(edgepack_session_output(session, 0, &tensor, nullptr) == EDGEPACK_OK);
  CHECK(tensor.bytes == 8);
  CHECK(tensor.shape[1] == 1);
  REQUIRE(tensor.bound != nullptr);
  CHECK(tensor.bound[1] == 2);
  float output[4] = {};
  CHECK(edgepack_session_get_output(session, 0, output, 8, nullptr) == EDGEPACK_OK);
  CHECK(output[1] == 66);
  CHECK(Contains(Refusal(EDGEPACK_INVALID_ARGUMENT,
                         [&](edgepack_error* error) {
                           return edgepack_session_get_output(session, 0, output, 16, error);
                         }),
                 "output 'y' is float32 (2, 1), 8 bytes, not 16"));
  const float many[] = {3, 2, 3, 4};
  CHECK(edgepack_session_set_input(session, 0, many, 16, nullptr) == EDGEPACK_OK);
  CHECK(Contains(Refusal(EDGEPACK_KERNEL_FAILED,
                         [&](edgepack_error* error) {
                           CHECK(edgepack_session_set_input(session, 0, many, 16, nullptr) ==
                                 EDGEPACK_OK);
                           return edgepack_session_run(session, error);
                         }),
                 "said to have 3 of 2 elements"));
  CHECK(edgepack_session_close(session, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);
}

TEST_CASE("C: images and pixels") {
  const TempFolder folder;
  WritePhotoBundle(folder);
  edgepack_model* model = OpenModel(folder);
  edgepack_session* session = OpenSession(model);
  const unsigned char gray[] = {1, 2, 3, 4, 99, 5, 6, 7, 8};
  CHECK(edgepack_session_set_pixels(session, gray, 1, 4, 0, EDGEPACK_GRAY, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_session_run(session, nullptr) == EDGEPACK_OK);
  CHECK(ResultsIn(session) == std::vector<double>{22, 44, 66, 88});
  // One colour at a time, at 0.299, 0.587 and 0.114 of a gray of 100 (ITU-R BT.601).
  const unsigned char rgb[] = {100, 0, 0, 0, 100, 0, 0, 0, 100, 100, 100, 100};
  CHECK(edgepack_session_set_pixels(session, rgb, 1, 4, 12, EDGEPACK_RGB, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_session_run(session, nullptr) == EDGEPACK_OK);
  CHECK(ResultsIn(session) == std::vector<double>{80, 158, 82, 280});
  CHECK(edgepack_session_set_pixels(session, rgb, 1, 4, 12, EDGEPACK_BGR, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_session_run(session, nullptr) == EDGEPACK_OK);
  CHECK(ResultsIn(session) == std::vector<double>{42, 158, 120, 280});

  const auto pixels = [&](int height, int width, std::uint64_t stride, int format) {
    return [=](edgepack_error* error) {
      return edgepack_session_set_pixels(session, gray, height, width, stride, format, error);
    };
  };
  CHECK(Contains(Refusal(EDGEPACK_WRONG_INPUT, pixels(2, 4, 5, EDGEPACK_GRAY)),
                 "the preprocessing makes float32 (1, 1, 2, 4) of this image, input 'x' is "));
  CHECK(Contains(Refusal(EDGEPACK_INVALID_ARGUMENT, pixels(1, 4, 3, EDGEPACK_GRAY)),
                 "stride is 3, a row has 4 bytes"));
  Refusal(EDGEPACK_INVALID_ARGUMENT,
          pixels(2, 4, std::numeric_limits<std::uint64_t>::max(), EDGEPACK_GRAY));
  Refusal(EDGEPACK_INVALID_ARGUMENT, pixels(0, 4, 0, EDGEPACK_GRAY));
  Refusal(EDGEPACK_INVALID_ARGUMENT, pixels(1, -4, 0, EDGEPACK_GRAY));
  Refusal(EDGEPACK_INVALID_ARGUMENT, pixels(1, 4, 0, 3));
  Refusal(EDGEPACK_BAD_IMAGE, pixels(1 << 16, 1 << 16, 0, EDGEPACK_GRAY));
  CHECK(Contains(Refusal(EDGEPACK_BAD_IMAGE,
                         [&](edgepack_error* error) {
                           return edgepack_session_set_image(session, "GIF89a", 6, error);
                         }),
                 "not a JPEG or PNG image: (in memory)"));
  CHECK(Contains(Refusal(EDGEPACK_BAD_IMAGE,
                         [&](edgepack_error* error) {
                           return edgepack_session_set_image_file(
                               session, (folder / "none.jpg").c_str(), error);
                         }),
                 "none.jpg"));
  CHECK(edgepack_session_close(session, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);
}

TEST_CASE("C: boxes have tracks") {
  const TempFolder folder;
  WriteBundle(folder.path());
  WriteFile(folder / "model" / "graph.json", R"({
    "format": "edgepack-graph", "version": 1, "model": "rows", "arena_bytes": 256,
    "params_bytes": 16, "tensors": [
      {"name": "x", "dtype": "float32", "shape": [1, 1, 6], "storage": "arena", "offset": 0,
       "bytes": 24},
      {"name": "y", "dtype": "float32", "shape": [1, 1, 6], "storage": "arena", "offset": 64,
       "bytes": 24}],
    "inputs": [0], "outputs": [1], "calls": [{"kernel": "twice", "args": [0, 1]}]})");
  WriteFile(folder / "postprocess.json", R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "yolo", "outputs": ["y"],
    "size": [100, 100], "score": 0.5, "iou": 0.5, "max_boxes": 7, "class_aware": true,
    "head": "end2end", "anchors": [], "bins": 1, "units": "pixels", "points": 0, "point_size": 2,
    "masks": 0, "rotated": false})");
  edgepack_model* model = OpenModel(folder);
  edgepack_session* session = OpenSession(model);
  // Of a box as wide as high at `left`, 0 if there is no box.
  const auto track = [&](float left, float score = 0.45F) {
    const float input[] = {left, 10, left + 10, 20, score, 0};
    CHECK(edgepack_session_set_input(session, 0, input, sizeof(input), nullptr) == EDGEPACK_OK);
    REQUIRE(edgepack_session_run(session, nullptr) == EDGEPACK_OK);
    const char* json = nullptr;
    for (int time = 0; time < 2; ++time) {  // of one run, however often it is asked
      REQUIRE(edgepack_session_results(session, &json, nullptr) == EDGEPACK_OK);
    }
    const JsonDocument document(json, "results", "kind");
    JsonObject results = document.Root();
    std::vector<JsonObject> boxes = results.Objects("boxes");
    return boxes.empty() || !boxes[0].HasValue("track") ? 0 : boxes[0].Int("track");
  };
  CHECK(track(10) == 0);
  const auto begin = [&](int most_missed) {
    return
        [=](edgepack_error* error) { return edgepack_session_track(session, most_missed, error); };
  };
  CHECK(begin(1)(nullptr) == EDGEPACK_OK);
  // What was found before is not said to be of a run.
  const char* json = nullptr;
  CHECK(Contains(
      Refusal(EDGEPACK_INVALID_ARGUMENT,
              [&](auto* error) { return edgepack_session_results(session, &json, error); }),
      "there are no results"));
  CHECK(track(10) == 1);
  CHECK(track(11) == 1);
  CHECK(track(40) == 2);  // the first is missed once
  CHECK(track(13) == 1);
  CHECK(track(0, 0) == 0);
  CHECK(track(0, 0) == 0);
  CHECK(track(15) == 3);  // after twice it is forgotten
  CHECK(edgepack_session_reset(session, nullptr) == EDGEPACK_OK);
  CHECK(track(15) == 4);
  CHECK(begin(2)(nullptr) == EDGEPACK_OK);
  CHECK(track(0, 0) == 0);
  CHECK(track(0, 0) == 0);
  CHECK(track(15) == 4);
  for (const int wrong : {-1, 10001}) {
    CHECK(Contains(Refusal(EDGEPACK_INVALID_ARGUMENT, begin(wrong)), ": 0 to 10000"));
  }
  CHECK(track(15) == 4);
  CHECK(edgepack_session_close(session, nullptr) == EDGEPACK_OK);
  Refusal(EDGEPACK_INVALID_HANDLE, begin(1));
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);

  WritePhotoBundle(folder);
  model = OpenModel(folder);
  session = OpenSession(model);
  CHECK(Contains(Refusal(EDGEPACK_INVALID_ARGUMENT, begin(1)), "the bundle gives no boxes"));
  CHECK(edgepack_session_close(session, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);
}

TEST_CASE("C: mistakes are answered, and nothing is written") {
  const TempFolder folder;
  WriteBundle(folder.path());
  edgepack_model* const model = OpenModel(folder);
  edgepack_session* const session = OpenSession(model);
  float data[16] = {};
  edgepack_tensor tensor = {};

  SUBCASE("NULL") {
    edgepack_model* opened = nullptr;
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_model_open(nullptr, &opened, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT, [&](auto* error) {
      return edgepack_model_open(folder.path().c_str(), nullptr, error);
    });
    CHECK(opened == nullptr);
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_session_open(model, 1, nullptr, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_model_get_info(model, nullptr, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_session_input(session, 0, nullptr, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_session_output(session, 0, nullptr, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_model_input(model, 0, nullptr, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_model_output(model, 0, nullptr, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_model_label(model, 0, nullptr, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT, [&](auto* error) {
      return edgepack_session_set_pixels(session, nullptr, 1, 4, 0, EDGEPACK_GRAY, error);
    });
    Refusal(EDGEPACK_INVALID_ARGUMENT, [&](auto* error) {
      return edgepack_session_set_input(session, 0, nullptr, 16, error);
    });
    Refusal(EDGEPACK_INVALID_ARGUMENT, [&](auto* error) {
      return edgepack_session_get_output(session, 0, nullptr, 16, error);
    });
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_session_results(session, nullptr, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_session_set_image(session, nullptr, 4, error); });
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_session_set_image_file(session, nullptr, error); });
    for (const auto& call : std::vector<std::function<edgepack_status(edgepack_error*)>>{
             [](auto* error) { return edgepack_model_close(nullptr, error); },
             [](auto* error) { return edgepack_session_close(nullptr, error); },
             [](auto* error) { return edgepack_session_run(nullptr, error); },
             [](auto* error) { return edgepack_session_open(nullptr, 1, nullptr, error); }}) {
      Refusal(EDGEPACK_INVALID_HANDLE, call);
    }
  }
  SUBCASE("numbers out of range") {
    for (const int index : {-1, 1, std::numeric_limits<int>::max()}) {
      CHECK(Contains(Refusal(EDGEPACK_INVALID_ARGUMENT,
                             [&](auto* error) {
                               return edgepack_session_input(session, index, &tensor, error);
                             }),
                     "there is no input " + std::to_string(index) + ": the model has 1"));
      Refusal(EDGEPACK_INVALID_ARGUMENT,
              [&](auto* error) { return edgepack_session_output(session, index, &tensor, error); });
      Refusal(EDGEPACK_INVALID_ARGUMENT,
              [&](auto* error) { return edgepack_model_output(model, index, &tensor, error); });
    }
    for (const int dtype : {-1, 12}) {
      CHECK(edgepack_dtype_size(dtype) == 0);
      CHECK(edgepack_dtype_name(dtype) == nullptr);
    }
    const char* label = nullptr;
    Refusal(EDGEPACK_INVALID_ARGUMENT,
            [&](auto* error) { return edgepack_model_label(model, 3, &label, error); });
    edgepack_session* other = nullptr;
    for (const int threads : {-1, 257}) {
      Refusal(EDGEPACK_INVALID_ARGUMENT,
              [&](auto* error) { return edgepack_session_open(model, threads, &other, error); });
    }
    CHECK(other == nullptr);
    CHECK(tensor.name == nullptr);
  }
  SUBCASE("buffers of another size") {
    for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{15}, std::uint64_t{17},
                                      std::numeric_limits<std::uint64_t>::max()}) {
      CHECK(Contains(Refusal(EDGEPACK_INVALID_ARGUMENT,
                             [&](auto* error) {
                               return edgepack_session_set_input(session, 0, data, bytes, error);
                             }),
                     "input 'x' is float32 (1, 4), 16 bytes, not " + std::to_string(bytes)));
      Refusal(EDGEPACK_INVALID_ARGUMENT, [&](auto* error) {
        return edgepack_session_get_output(session, 0, data, bytes, error);
      });
    }
  }
  SUBCASE("handles that are none") {
    edgepack_session* const closed = OpenSession(model);
    CHECK(edgepack_session_close(closed, nullptr) == EDGEPACK_OK);
    for (edgepack_session* const handle :
         {closed, reinterpret_cast<edgepack_session*>(model),
          reinterpret_cast<edgepack_session*>(data), reinterpret_cast<edgepack_session*>(~0UL)}) {
      const auto refused = [&](const std::function<edgepack_status(edgepack_error*)>& call) {
        CHECK(Contains(Refusal(EDGEPACK_INVALID_HANDLE, call), "this is no open session"));
      };
      refused([&](auto* error) { return edgepack_session_close(handle, error); });
      refused([&](auto* error) { return edgepack_session_run(handle, error); });
      refused([&](auto* error) { return edgepack_session_input(handle, 0, &tensor, error); });
      refused([&](auto* error) { return edgepack_session_set_input(handle, 0, data, 16, error); });
      refused([&](auto* error) { return edgepack_session_results(handle, nullptr, error); });
      refused([&](auto* error) { return edgepack_session_output(handle, 0, &tensor, error); });
      refused([&](auto* error) { return edgepack_session_get_output(handle, 0, data, 16, error); });
      refused([&](auto* error) { return edgepack_session_set_image(handle, data, 16, error); });
      refused([&](auto* error) { return edgepack_session_set_image_file(handle, "x", error); });
      refused([&](auto* error) {
        return edgepack_session_set_pixels(handle, data, 1, 4, 0, EDGEPACK_GRAY, error);
      });
    }
    edgepack_model* const other = OpenModel(folder);
    CHECK(edgepack_model_close(other, nullptr) == EDGEPACK_OK);
    edgepack_model_info info = {};
    for (edgepack_model* const handle : {other, reinterpret_cast<edgepack_model*>(session)}) {
      Refusal(EDGEPACK_INVALID_HANDLE,
              [&](auto* error) { return edgepack_model_close(handle, error); });
      Refusal(EDGEPACK_INVALID_HANDLE,
              [&](auto* error) { return edgepack_model_get_info(handle, &info, error); });
      Refusal(EDGEPACK_INVALID_HANDLE,
              [&](auto* error) { return edgepack_session_open(handle, 1, nullptr, error); });
      Refusal(EDGEPACK_INVALID_HANDLE,
              [&](auto* error) { return edgepack_model_input(handle, 0, &tensor, error); });
      Refusal(EDGEPACK_INVALID_HANDLE,
              [&](auto* error) { return edgepack_model_output(handle, 0, &tensor, error); });
      Refusal(EDGEPACK_INVALID_HANDLE,
              [&](auto* error) { return edgepack_model_label(handle, 0, nullptr, error); });
    }
    CHECK(tensor.name == nullptr);
    CHECK(info.name == nullptr);
  }
  SUBCASE("no such bundle, or a damaged one") {
    edgepack_model* opened = nullptr;
    CHECK(Contains(Refusal(EDGEPACK_BAD_BUNDLE,
                           [&](auto* error) {
                             return edgepack_model_open("/nowhere/at/all", &opened, error);
                           }),
                   "there is no bundle in /nowhere/at/all"));
    WriteFile(folder / "model" / "params.bin", "1234");
    CHECK(Contains(Refusal(EDGEPACK_BAD_BUNDLE,
                           [&](auto* error) {
                             return edgepack_model_open(folder.path().c_str(), &opened, error);
                           }),
                   "params.bin has 4 bytes"));
    // Longer than an error has room for: cut before a character, never within.
    std::string longest = "/";
    while (longest.size() < 5000) longest += "\xc3\xa4";
    const std::string message = Refusal(EDGEPACK_BAD_BUNDLE, [&](auto* error) {
      return edgepack_model_open(longest.c_str(), &opened, error);
    });
    CHECK(message.size() >= 1020);
    CHECK(message.back() == '\xa4');
    CHECK(opened == nullptr);
  }
  SUBCASE("a bundle without preprocessing has no images") {
    CHECK(Contains(Refusal(EDGEPACK_BAD_BUNDLE,
                           [&](auto* error) {
                             return edgepack_session_set_pixels(session, data, 1, 4, 0,
                                                                EDGEPACK_GRAY, error);
                           }),
                   "the bundle has no preprocess.json"));
  }
  // Whatever was refused, the session is as it was.
  CHECK(RunOn(session, {1, 2, 3, 4}) == std::vector<float>{22, 44, 66, 88});
  CHECK(edgepack_session_close(session, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);
}

TEST_CASE("C: kernels that fail, and a session that is in use") {
  const TempFolder folder;
  WriteBundle(folder.path());
  WriteFile(folder / "model" / "graph.json", Replace(GraphText(), "\"add\"", "\"fail\""));
  edgepack_model* model = OpenModel(folder);
  edgepack_session* session = OpenSession(model);
  CHECK(Refusal(EDGEPACK_KERNEL_FAILED, [&](auto* error) {
          return edgepack_session_run(session, error);
        }) == "kernel fail: expected 3 rows");
  CHECK(edgepack_session_close(session, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);

  WriteFile(folder / "model" / "graph.json", Replace(GraphText(), "\"add\"", "\"outside\""));
  model = OpenModel(folder);
  session = OpenSession(model);
  for (int run = 0; run < 2; ++run) {
    CHECK(Contains(Refusal(EDGEPACK_BAD_POSITION,
                           [&](auto* error) { return edgepack_session_run(session, error); }),
                   "its input 'indices' ('x') has"));
  }
  CHECK(edgepack_session_close(session, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);

  // Many threads on one session: each call ends well or is refused, and one that ends well is
  // whole.
  WriteFile(folder / "model" / "graph.json", GraphText());
  model = OpenModel(folder);
  session = OpenSession(model);
  std::atomic<int> ran{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 300; ++turn) {
        const edgepack_status status = edgepack_session_run(session, nullptr);
        ran += status == EDGEPACK_OK ? 1 : 0;
        wrong += status == EDGEPACK_OK || status == EDGEPACK_BUSY ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ran > 0);
  CHECK(wrong == 0);
  CHECK(edgepack_session_close(session, nullptr) == EDGEPACK_OK);
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);
}

TEST_CASE("C: threads that use and close what others use") {
  const TempFolder folder;
  WriteBundle(folder.path());
  std::atomic<edgepack_model*> model{OpenModel(folder)};
  std::atomic<edgepack_session*> session{OpenSession(model)};
  std::atomic<int> wrong{0};
  // Whatever the others have done meanwhile: an answer, or a refusal, and no other.
  const auto check = [&](edgepack_status status) {
    const bool fine =
        status == EDGEPACK_OK || status == EDGEPACK_BUSY || status == EDGEPACK_INVALID_HANDLE;
    wrong += fine ? 0 : 1;
    return status == EDGEPACK_OK;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      float values[4] = {1, 2, 3, 4};
      for (int turn = 0; turn < 200; ++turn) {
        check(edgepack_session_set_input(session, 0, values, sizeof(values), nullptr));
        check(edgepack_session_run(session, nullptr));
        check(edgepack_session_get_output(session, 0, values, sizeof(values), nullptr));
        if (turn % 10 != i) continue;
        // Twice, too: the handle is the one that somebody else closes at this moment.
        edgepack_session* const old = session;
        check(edgepack_session_close(old, nullptr));
        check(edgepack_session_close(old, nullptr));
        edgepack_session* made = nullptr;
        if (check(edgepack_session_open(model, 1 + i % 2, &made, nullptr))) session = made;
        if (i != 0 || turn % 50 != 0) continue;
        edgepack_model* const old_model = model.exchange(OpenModel(folder));
        check(edgepack_model_close(old_model, nullptr));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  edgepack_session_close(session, nullptr);
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);
}

TEST_CASE("C: sessions on threads of their own give what one alone gives") {
  const TempFolder folder;
  WriteBundle(folder.path());
  edgepack_model* const model = OpenModel(folder);
  constexpr int kSessions = 4;
  std::vector<std::string> wrong(kSessions);
  std::vector<std::thread> threads;
  for (int i = 0; i < kSessions; ++i) {
    threads.emplace_back([&wrong, model, i] {
      edgepack_session* session = nullptr;
      if (edgepack_session_open(model, 1 + i % 2, &session, nullptr) != EDGEPACK_OK) {
        wrong[static_cast<std::size_t>(i)] = "not opened";
        return;
      }
      for (int turn = 0; turn < 200; ++turn) {
        const float x = static_cast<float>(turn * kSessions + i);
        const float input[] = {x, x, x, x};
        const float expected[] = {2 * (x + 10), 2 * (x + 20), 2 * (x + 30), 2 * (x + 40)};
        float output[4] = {};
        edgepack_session_set_input(session, 0, input, 16, nullptr);
        edgepack_session_run(session, nullptr);
        edgepack_session_get_output(session, 0, output, 16, nullptr);
        if (std::memcmp(output, expected, 16) != 0) wrong[static_cast<std::size_t>(i)] = "differs";
      }
      edgepack_session_close(session, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& what : wrong) CHECK(what.empty());
  CHECK(edgepack_model_close(model, nullptr) == EDGEPACK_OK);
}

}  // namespace edgepack::testing
