#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sender.h"

namespace edgepack::sinks {

/// Lines to an address, each by a POST.
class WebhookSender : public Sender {
 public:
  using Sender::Sender;
  void Run() override;

 protected:
  void See(const std::vector<Detection>& detections) override { (void)detections; }

 private:
  /// The status of the answer, or 0 and why there is none.
  int Post(const std::string& line, std::string* why);
};

/// The status of an answer that begins like this; 0 if more is needed, -1 if it is none.
int ReadStatus(std::string_view answer);

}  // namespace edgepack::sinks
