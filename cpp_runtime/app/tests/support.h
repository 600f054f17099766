#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <edgepack/npy.h>
#include <edgepack/tensor.h>

#include "common/tests/support.h"

namespace edgepack::testing {

/// y = 2 * (x + w) for a float32 x of shape (1, 4) and w = {10, 20, 30, 40}: graph.json.
const std::string& GraphText();
/// The same with y as (2, 2), of which the first x[0] columns are in use.
std::string CountedGraphText();
/// y = x + s, and y is s of the next run.
std::string StateGraphText();
/// The same, with s as w before the first run.
std::string StartGraphText();
/// y = 2 * s of s = x + w, which is doubled while s[0] < 10, at most 5 times, and inside of that,
/// while s[0] < 0, once more.
std::string LoopGraphText();
/// The three files of that model in `folder`; the graph may be another.
void WriteModel(const std::filesystem::path& folder, const std::string& graph = GraphText());
/// A bundle with that model and its golden tensors in `folder`.
void WriteBundle(const std::filesystem::path& folder);

TensorInfo Info(DType dtype, Shape shape);
void WriteFloats(const std::filesystem::path& path, const Shape& shape,
                 const std::vector<float>& values);
std::vector<float> ReadFloats(const std::filesystem::path& path);

}  // namespace edgepack::testing
