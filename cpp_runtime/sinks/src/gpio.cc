#include "gpio.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/gpio.h>
#include <string_view>
#include <sys/ioctl.h>

namespace edgepack::sinks {
namespace {

constexpr std::string_view kConsumer = "edgepack";

/// Why a line was not given. Both a line that the chip does not have and a request that the kernel
/// does not know are EINVAL.
std::string Refusal(const Fd& chip, std::uint32_t line, int error) {
  gpiochip_info info = {};
  if (error == EBUSY) return "another program has it";
  if (ioctl(chip.get(), GPIO_GET_CHIPINFO_IOCTL, &info) != 0) return "is no GPIO chip";
  if (line >= info.lines) return "the chip has " + std::to_string(info.lines) + " lines, from 0 on";
  if (error == EINVAL || error == ENOTTY) return "this kernel is too old, 5.10 is needed";
  return std::strerror(error);
}

}  // namespace

std::string GpioLine::Take() {
  const std::string where = config_.chip + " line " + std::to_string(config_.line);
  const Fd chip(open(config_.chip.c_str(), O_RDWR | O_CLOEXEC));
  if (!chip) return config_.chip + ": " + std::strerror(errno);
  gpio_v2_line_request request = {};
  request.offsets[0] = config_.line;
  request.num_lines = 1;
  std::copy(kConsumer.begin(), kConsumer.end(), static_cast<char*>(request.consumer));
  request.config.flags =
      GPIO_V2_LINE_FLAG_OUTPUT | (config_.active_low ? GPIO_V2_LINE_FLAG_ACTIVE_LOW : 0U);
  if (ioctl(chip.get(), GPIO_V2_GET_LINE_IOCTL, &request) != 0) {
    return where + ": " + Refusal(chip, config_.line, errno);
  }
  line_ = Fd(request.fd);
  return "";
}

std::string GpioLine::Set(bool on) {
  if (!line_) {
    const std::string problem = Take();
    if (!problem.empty()) return problem;
  }
  gpio_v2_line_values values = {};
  values.mask = 1;
  values.bits = on ? 1 : 0;
  if (ioctl(line_.get(), GPIO_V2_LINE_SET_VALUES_IOCTL, &values) == 0) return "";
  const std::string problem = config_.chip + ": " + std::strerror(errno);
  line_.Close();
  return problem;
}

}  // namespace edgepack::sinks
