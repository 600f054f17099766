#pragma once

#include <string>

#include "common/fd.h"
#include "config.h"

namespace edgepack::sinks {

/// A line of a GPIO chip, by version 2 of the kernel's character device, as an output that is off.
class GpioLine {
 public:
  explicit GpioLine(const GpioConfig& config) : config_(config) {}

  /// Sets it, after taking it if that has not been done. Empty if that went well, else why not.
  std::string Set(bool on);

 private:
  std::string Take();

  const GpioConfig& config_;
  Fd line_;
};

}  // namespace edgepack::sinks
