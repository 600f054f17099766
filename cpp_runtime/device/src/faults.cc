#include "faults.h"

#ifdef EDGEPACK_FAULTS

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace edgepack::device {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// `text` after `prefix`, or "" if it begins otherwise.
std::string After(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0 ? text.substr(prefix.size()) : "";
}

/// What the environment asks for, and how many steps there were.
class Faults {
 public:
  Faults() : fault_(Variable("EDGEPACK_FAULT")), log_(Variable("EDGEPACK_FAULT_LOG")) {
    std::string which = After(fault_, "kill:");
    const std::size_t colon = which.find(':');
    if (colon != std::string::npos) {
      fatal_ = std::atoi(which.c_str() + colon + 1);
      which.resize(colon);
    } else if (!which.empty() && std::isdigit(static_cast<unsigned char>(which[0])) != 0) {
      fatal_ = std::atoi(which.c_str());
      which.clear();
    }
    name_ = which;
    kills_ = !After(fault_, "kill:").empty();
    stops_at_ = After(fault_, "stop:");
  }

  void Step(const char* name) {
    if (!log_.empty()) Log(name);
    if (stops_at_ == name) {
      stops_at_.clear();
      raise(SIGSTOP);
    }
    if (!kills_ || (!name_.empty() && name_ != name)) return;
    if (++count_ == fatal_) raise(SIGKILL);
  }

  [[nodiscard]] bool leaves_out_syncs() const { return fault_ == "nofsync"; }

 private:
  void Log(const char* name) const {
    const int fd = open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const std::string line = std::string(name) + "\n";
    if (fd < 0 || write(fd, line.data(), line.size()) < 0) std::abort();
    close(fd);
  }

  std::string fault_;
  std::string log_;
  std::string name_;
  std::string stops_at_;
  bool kills_ = false;
  int fatal_ = 1;
  int count_ = 0;
};

Faults& TheFaults() {
  static Faults faults;
  return faults;
}

}  // namespace

void Step(const char* name) { TheFaults().Step(name); }
bool SyncsAreLeftOut() { return TheFaults().leaves_out_syncs(); }

}  // namespace edgepack::device

#endif
