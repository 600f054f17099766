// Input: a byte, then what comes over the link: if the byte is even all of it, else the frames
// after a good request. The one blob that the device lacks has a hash that nothing has, so nothing
// is ever installed; an odd byte above 127 asks for a blob that an installed one can lend chunks
// to.
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

// The helpers for tests check with doctest.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "../tests/support.h"
#include "common/fuzz/fuzz.h"
#include "receive.h"

namespace {

using edgepack::device::testing::TempFolder;
using edgepack::device::testing::TestBundle;

constexpr size_t kLarge = 1200 * 1000;

int Answer(const std::string& root, const std::string& sent) {
  const int in = memfd_create("in", MFD_CLOEXEC);
  const int out = open("/dev/null", O_WRONLY | O_CLOEXEC);
  EDGEPACK_REQUIRE(in >= 0 && out >= 0);
  EDGEPACK_REQUIRE(write(in, sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()));
  lseek(in, 0, SEEK_SET);
  const int code = edgepack::device::Receive(root, in, out);
  close(in);
  close(out);
  return code;
}

std::string Request(const std::string& manifest) {
  return R"({"protocol":1,"op":"deploy","by":"a@b","keep":3,"wait_s":0,"allow_downgrade":false,)"
         R"("retest":false,"manifest_bytes":)" +
         std::to_string(manifest.size()) + R"(,"signature_bytes":0,"signers_bytes":0})" + "\n" +
         manifest;
}

std::string Frame(char kind, uint32_t a, const std::string& data) {
  std::string frame(1, kind);
  for (unsigned shift = 0; shift < 32; shift += 8) frame += static_cast<char>(a >> shift);
  return frame + std::string(4, '\0') + data;
}

// The manifest with another hash for the weights.
std::string WithUnknownWeights(TestBundle bundle, const std::string& release) {
  bundle.release = release;
  std::string manifest = bundle.Manifest();
  const size_t entry = manifest.find("\"model/params.bin\"");
  const size_t hash = manifest.find("\"sha256\":\"", entry) + 10;
  return manifest.replace(hash, 64, 64, 'f');
}

// A device with one release on it.
struct Device {
  TempFolder folder;
  std::string small;
  std::string large;

  Device() {
    TestBundle bundle;
    bundle.files["model/params.bin"] = "";
    for (size_t i = 0; i < kLarge; ++i) {
      bundle.files["model/params.bin"] += static_cast<char>(i * i >> 7);
    }
    std::string sent = Request(bundle.Manifest());
    for (const auto& [path, content] : bundle.files) {
      for (size_t place = 0; place < content.size(); place += 200'000) {
        const std::string part = content.substr(place, 200'000);
        sent += Frame(1, static_cast<uint32_t>(part.size()), part);
      }
      sent += Frame(4, 0, "");
    }
    EDGEPACK_REQUIRE(Answer(folder.path(), sent + Frame(5, 0, "")) == 0);
    large = WithUnknownWeights(bundle, "000000000002");
    bundle.files["model/params.bin"] = "weights";
    small = WithUnknownWeights(bundle, "000000000003");
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static doctest::Context context;
  static const Device device = [] {
    context.setAsDefaultForAssertsOutOfTestCases();
    return Device();
  }();
  const std::string rest(edgepack::Text(data + 1, size - 1));
  const bool framed = data[0] % 2 == 1;
  const std::string start =
      framed ? Request(data[0] > 127 ? device.large : device.small) : std::string();
  const int code = Answer(device.folder.path(), start + rest);
  // Only asking for something else than a deploy of these bytes can end well.
  EDGEPACK_REQUIRE(!framed || code != 0);
  EDGEPACK_REQUIRE(edgepack::device::testing::LinkAt(device.folder / "current") ==
                   "releases/000000000001");
  unlink((device.folder / ("incoming/" + std::string(64, 'f') + ".part")).c_str());
  return 0;
}
