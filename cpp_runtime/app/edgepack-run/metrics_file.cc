#include "metrics_file.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <edgepack/errors.h>

#include "common/fd.h"

namespace edgepack {
namespace {

constexpr std::chrono::seconds kBetweenWrites{10};

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path, std::function<std::string()> text)
    : path_(std::move(path)), text_(std::move(text)) {
  if (const int reason = Write()) {
    throw UsageError("--metrics: cannot write " + path_.string() + ": " +
                     std::error_code(reason, std::generic_category()).message());
  }
  worker_.emplace([this] { Run(); });
}

MetricsFile::~MetricsFile() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
}

int MetricsFile::Write() const {
  const std::string text = text_();
  const std::string draft = path_.string() + ".new";
  // Not through a link that somebody put there.
  Fd fd(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd) return errno;
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t size = write(fd.get(), text.data() + done, text.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return errno;
    done += static_cast<std::size_t>(size);
  }
  fd.Close();
  return std::rename(draft.c_str(), path_.c_str()) == 0 ? 0 : errno;
}

void MetricsFile::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  bool ended = false;
  while (!ended) {
    ended = wake_.wait_for(lock, kBetweenWrites, [&] { return ends_; });
    lock.unlock();
    (void)Write();
    lock.lock();
  }
}

}  // namespace edgepack
