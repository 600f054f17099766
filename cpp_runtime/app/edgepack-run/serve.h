#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <edgepack/model.h>
#include <edgepack/tensor.h>

#include "http_server.h"
#include "sight.h"

namespace edgepack {

/// A model behind --serve. One request at a time uses it.
struct ServedModel {
  std::string name;
  std::vector<TensorView> inputs;
  std::vector<TensorInfo> outputs;  ///< as the model has them, before any run
  /// Inputs that a request need not give: no request sees what another one left.
  std::vector<ModelState> states;
  /// Which processor runs it; nothing if no plan is for a GPU.
  std::function<std::optional<Processor>()> processor;
  /// Makes the states what they are at first. None is needed where there are none.
  std::function<void()> reset;
  /// Runs the model on what its inputs hold; its outputs.
  std::function<const std::vector<TensorView>&()> run;
  /// The line of JSON that --image --json would print, for a JPEG's or a PNG's bytes. Sets how many
  /// milliseconds the model took. Throws Error.
  std::function<std::string(std::string_view photo, double* run_ms)> photo_line;
  /// Counts what it is given and says; a photo's part is `photo_line`'s to tell.
  Sight* sight = nullptr;
  /// --metrics.
  std::optional<std::filesystem::path> metrics = std::nullopt;
};

/// Serves a model by version 2 of the open inference protocol until SIGTERM or SIGINT, which must
/// be held (HoldStopSignals): requests that came before are answered. `queue` of them may wait,
/// others are sent away with status 429. Says on `err` where it listens. The model runs on this
/// thread. Throws UsageError if it cannot listen.
void Serve(const ServedModel& model, const HttpAddress& address, HttpAccess access,
           std::size_t queue, std::ostream& err);

}  // namespace edgepack
