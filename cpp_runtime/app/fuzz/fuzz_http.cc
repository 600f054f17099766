// Input: how many bytes come at a time, and what a client of --serve sends.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "common/fuzz/fuzz.h"
#include "http_access.h"
#include "http_parser.h"
#include "inference_api.h"

namespace edgepack {
namespace {

constexpr std::size_t kMostBody = 1000;

/// An input of each kind, in one piece of memory: whoever writes behind it is seen.
class Inputs {
 public:
  Inputs() {
    constexpr std::array<DType, 5> kTypes = {DType::kFloat32, DType::kInt8, DType::kBool,
                                             DType::kUInt64, DType::kFloat16};
    for (const DType dtype : kTypes) {
      TensorInfo& info = infos_.emplace_back();
      info.name = std::string(1, static_cast<char>('a' + infos_.size() - 1));
      info.dtype = dtype;
      info.shape = {1, 2};
      info.bytes = 2 * ItemSize(dtype);
      memory_.emplace_back(info.bytes);
    }
    for (std::size_t i = 0; i < infos_.size(); ++i) {
      views_.push_back({&infos_[i], memory_[i].data()});
    }
  }
  [[nodiscard]] const std::vector<TensorInfo>& infos() const { return infos_; }
  [[nodiscard]] const std::vector<TensorView>& views() const { return views_; }

 private:
  std::vector<TensorInfo> infos_;
  std::vector<std::vector<char>> memory_;
  std::vector<TensorView> views_;
};

/// Of a token that no input has; by what name whoever gets an answer has asked.
void Judge(const HttpRequest& request) {
  static const HttpGuard guard({});
  static const HttpGuard closed({{}, std::string(64, '~')});
  EDGEPACK_REQUIRE(closed.Judge(request));
  if (guard.Judge(request)) return;
  const std::optional<HttpAuthority> host = ParseAuthority(request.host);
  EDGEPACK_REQUIRE(host && host->host.find("evil") == std::string::npos);
  EDGEPACK_REQUIRE(!request.origin ||
                   LowerCase(*request.origin).find(host->host) != std::string::npos);
  EDGEPACK_REQUIRE(!request.fetch_site || *request.fetch_site != "cross-site");
}

void Infer(const HttpRequest& request) {
  const Inputs inputs;
  // One input, as most models have, or all of them.
  const std::size_t count = request.path == "/one" ? 1 : inputs.views().size();
  const std::vector<TensorView> views(inputs.views().begin(),
                                      inputs.views().begin() + static_cast<std::ptrdiff_t>(count));
  try {
    const InferenceRequest wanted = ReadInference(request, views, inputs.infos());
    for (const InferenceRequest::Output& output : wanted.outputs) {
      EDGEPACK_REQUIRE(output.index < inputs.infos().size());
    }
    const HttpAnswer answer = WriteInference(wanted, "tiny", inputs.views());
    EDGEPACK_REQUIRE(answer.status == 200 && !answer.body.empty());
  } catch (const Error& error) {
    RequireRefusal(error);
  }
}

}  // namespace
}  // namespace edgepack

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  if (size == 0) return 0;
  const std::size_t step = std::max<std::size_t>(data[0], 1);
  HttpParser parser([](const HttpRequest& head) { return head.path == "/none" ? 0 : kMostBody; });
  std::string_view rest = Text(data + 1, size - 1);
  while (!rest.empty() && parser.failed() == 0) {
    const std::size_t used = parser.Feed(rest.substr(0, step));
    EDGEPACK_REQUIRE(used <= step && used != 0);
    rest.remove_prefix(used);
    EDGEPACK_REQUIRE(parser.body_bytes() <= kMostBody);
    if (!parser.complete()) continue;
    const HttpRequest request = parser.Take();
    EDGEPACK_REQUIRE(!parser.begun() && request.body.size() <= kMostBody);
    EDGEPACK_REQUIRE(request.path.find('\0') == std::string::npos);
    Judge(request);
    Infer(request);
  }
  return 0;
}
