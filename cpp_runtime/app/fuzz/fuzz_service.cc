// Input, apart by zero bytes: manifest.json, labels.txt, lines of earlier results, and the words of
// a command line.
#include <array>
#include <sstream>
#include <string>
#include <vector>

#include "bundle.h"
#include "files.h"
#include "options.h"
#include "watch.h"

namespace {

using namespace edgepack;

struct Files {
  Files() {
    folder.Link("manifest.json", manifest.path());
    folder.Link("labels.txt", labels.path());
    folder.Link("results", results.path());
  }
  MemoryFile manifest;
  MemoryFile labels;
  MemoryFile results;
  LinkFolder folder;
};

/// What stands before the next zero byte, which goes.
std::string_view Part(std::string_view* rest) {
  const std::string_view part = rest->substr(0, rest->find('\0'));
  rest->remove_prefix(std::min(part.size() + 1, rest->size()));
  return part;
}

template <typename Read>
void Try(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    RequireRefusal(error);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Files files;
  std::string_view rest = Text(data, size);
  files.manifest.Write(Part(&rest));
  files.labels.Write(Part(&rest));
  files.results.Write(Part(&rest));
  Try([] {
    const BundleFolder bundle = OpenBundle(files.folder.path());
    for (const std::string& label : bundle.labels) {
      EDGEPACK_REQUIRE(label.find('\n') == std::string::npos);
    }
  });
  Try([] {
    std::ostringstream out;
    const ResultLines lines(files.folder.path() / "results", out);
    const PhotoFolder::Key photo("a.png", 1);
    BegunPhotos begun(files.folder.path() / "results", {photo});
    int times = 0;
    while (!lines.Done(photo) && begun.Begin(photo)) ++times;
    EDGEPACK_REQUIRE(times <= BegunPhotos::kMost);
  });
  std::vector<std::string> words;
  while (!rest.empty()) words.emplace_back(Part(&rest));
  Try([&] {
    const Options options = ParseOptions(words);
    EDGEPACK_REQUIRE(options.tolerance >= 0);
    EDGEPACK_REQUIRE(!options.threads || *options.threads >= 1);
    EDGEPACK_REQUIRE(options.help || options.version || options.image || options.watch ||
                     options.images || options.frames || options.camera || options.serve ||
                     options.golden || !options.inputs.empty() || !options.postprocess.empty());
    EDGEPACK_REQUIRE(!options.serve || options.serve->path.empty() == !options.serve->host.empty());
  });
  return 0;
}
