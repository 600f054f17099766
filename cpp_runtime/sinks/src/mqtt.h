#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "counter.h"
#include "ring.h"
#include "sender.h"

struct mosquitto;

namespace edgepack::sinks {

/// Lines to a broker of MQTT 3.1.1, at least once each (QoS 1), in order. What the broker keeps:
/// whether the device is there ("online", "offline" by its last will), how many of some classes are
/// seen, what counters say, and what Home Assistant has to know of that.
class MqttSender : public Sender {
 public:
  /// `counters` outlive it.
  MqttSender(SinkConfig config, std::string bundle, std::vector<const Counter*> counters);
  ~MqttSender() override;

  void Run() override;

 protected:
  void See(const std::vector<Detection>& detections) override;

 private:
  /// A line that was sent, by the client's number for it.
  struct Flying {
    int id = 0;
    bool arrived = false;
  };
  struct Free {
    void operator()(mosquitto* client) const;
  };

  /// Until the connection is lost; why.
  std::string Session();
  std::string Begin();
  void Greet();
  void Announce(const std::string& name, const std::string& topic, const std::string& key,
                const char* state_class);
  bool PublishMore();
  bool Keep(const std::string& topic, const std::string& payload);
  void TellState();
  void Tell(const std::string& topic, std::string* told);
  void Leave();
  [[nodiscard]] std::string CountsNow(std::string memory);

  std::string bundle_;
  std::vector<const Counter*> counters_;
  std::vector<std::string> counter_topics_;
  std::vector<std::string> told_of_counters_;
  std::unique_ptr<mosquitto, Free> client_;
  int answer_ = -1;  // to the connection
  int gone_ = 0;
  Ring<Flying> flying_;
  double heard_ = 0;
  std::string line_;
  std::string now_;  // what is told of, if it is not what was told before

  std::mutex mutex_;
  std::map<std::string, int> seen_;
  std::string told_;
};

}  // namespace edgepack::sinks
