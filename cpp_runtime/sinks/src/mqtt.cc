#include "mqtt.h"

#include <algorithm>
#include <mosquitto.h>
#include <poll.h>
#include <utility>

#include "common/error.h"
#include "common/json.h"
#include "secret.h"

namespace edgepack::sinks {
namespace {

constexpr int kKeepAliveS = 30;
constexpr std::size_t kMostFlying = 20;
constexpr double kAnswerS = 10;
constexpr double kAcknowledgeS = 30;
constexpr double kTickS = 1;
constexpr double kLeaveS = 2;
constexpr const char* kOnline = "online";
constexpr const char* kOffline = "offline";
/// Home Assistant's classes of what is measured; a total may begin anew.
constexpr const char* kNow = "measurement";
constexpr const char* kTotal = "total_increasing";

/// Not strerror's of an answer: the broker's own reasons.
std::string Refusal(int answer) {
  return "the broker refuses: " + std::string(mosquitto_connack_string(answer));
}

}  // namespace

void MqttSender::Free::operator()(mosquitto* client) const { mosquitto_destroy(client); }

MqttSender::MqttSender(SinkConfig config, std::string bundle, std::vector<const Counter*> counters)
    : Sender(std::move(config)),
      bundle_(std::move(bundle)),
      counters_(std::move(counters)),
      told_of_counters_(counters_.size()) {
  for (const Counter* counter : counters_) {
    counter_topics_.push_back(this->config().counters_topic + "/" + counter->config().name);
  }
  if (!this->config().counting) return;
  for (const std::string& name : this->config().counting->classes) seen_[name] = 0;
}

MqttSender::~MqttSender() = default;

void MqttSender::See(const std::vector<Detection>& detections) {
  if (!config().counting) return;
  const std::lock_guard<std::mutex> guard(mutex_);
  for (auto& entry : seen_) {
    entry.second = static_cast<int>(
        std::count_if(detections.begin(), detections.end(), [&](const Detection& one) {
          return one.label == entry.first && one.score >= config().counting->score;
        }));
  }
}

std::string MqttSender::CountsNow(std::string memory) {
  const std::lock_guard<std::mutex> guard(mutex_);
  JsonWriter json(std::move(memory));
  json.BeginObject();
  for (const auto& [name, count] : seen_) json.Key(name).Int(count);
  return json.EndObject().Take();
}

void MqttSender::Run() {
  while (!stopping()) {
    const std::string why = Session();
    client_.reset();
    spool().Rewind();
    spool().Spill();
    if (stopping()) break;
    Fail(why);
    Pause();
  }
}

/// A client that connects; a reason if it cannot.
std::string MqttSender::Begin() {
  client_.reset(mosquitto_new(config().client_id.c_str(), true, this));
  if (!client_) return "no memory";
  answer_ = -1;
  gone_ = 0;
  flying_.clear();
  told_.clear();
  for (std::string& told : told_of_counters_) told.clear();
  mosquitto* const client = client_.get();
  mosquitto_max_inflight_messages_set(client, kMostFlying + 8);
  mosquitto_connect_callback_set(client, [](mosquitto*, void* self, int answer) {
    static_cast<MqttSender*>(self)->answer_ = answer;
  });
  // Also of what the broker keeps, which is none of these.
  mosquitto_publish_callback_set(client, [](mosquitto*, void* self, int id) {
    Ring<Flying>& flying = static_cast<MqttSender*>(self)->flying_;
    for (std::size_t i = 0; i < flying.size(); ++i) {
      if (flying[i].id == id) flying[i].arrived = true;
    }
  });
  if (mosquitto_will_set(client, config().status_topic.c_str(), 7, kOffline, 1, true) != 0) {
    return "status_topic cannot be used";
  }
  if (config().username) {
    std::string password;
    try {
      if (config().password_file) {
        password = ReadSecret(*config().password_file, config().name + "-password");
      }
    } catch (const Error& error) {
      return error.message;
    }
    const char* const secret = config().password_file ? password.c_str() : nullptr;
    mosquitto_username_pw_set(client, config().username->c_str(), secret);
  }
  const int failed =
      mosquitto_connect_async(client, config().host.c_str(), config().port, kKeepAliveS);
  return failed == MOSQ_ERR_SUCCESS ? ""
                                    : "cannot connect: " + std::string(mosquitto_strerror(failed));
}

bool MqttSender::Keep(const std::string& topic, const std::string& payload) {
  return mosquitto_publish(client_.get(), nullptr, topic.c_str(), static_cast<int>(payload.size()),
                           payload.data(), 1, true) == MOSQ_ERR_SUCCESS;
}

/// A sensor for Home Assistant: the value of `key` in what `topic` says.
void MqttSender::Announce(const std::string& name, const std::string& topic, const std::string& key,
                          const char* state_class) {
  std::string id = config().client_id + "_" + name;
  std::replace_if(
      id.begin(), id.end(),
      [](char letter) {
        return (letter < 'a' || letter > 'z') && (letter < 'A' || letter > 'Z') &&
               (letter < '0' || letter > '9') && letter != '_' && letter != '-';
      },
      '_');
  JsonWriter json;
  json.BeginObject().Key("name").String(name).Key("unique_id").String(id);
  json.Key("state_topic").String(topic);
  std::string quoted;
  for (const char letter : key) {
    if (letter == '\'' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  json.Key("value_template").String("{{ value_json['" + quoted + "'] }}");
  json.Key("state_class").String(state_class);
  json.Key("availability_topic").String(config().status_topic);
  json.Key("device").BeginObject().Key("identifiers").BeginArray();
  json.String(config().client_id).EndArray().Key("name").String(bundle_);
  json.Key("manufacturer").String("edgepack").Key("sw_version").String(EDGEPACK_VERSION);
  json.EndObject().EndObject();
  Keep(*config().discovery + "/sensor/" + id + "/config", json.text());
}

/// What the broker keeps, once there is a connection.
void MqttSender::Greet() {
  Keep(config().status_topic, kOnline);
  if (!config().discovery) return;
  if (config().counting) {
    for (const std::string& name : config().counting->classes) {
      Announce(name, config().counting->topic, name, kNow);
    }
  }
  for (const Counter* counter : counters_) {
    const std::string& name = counter->config().name;
    const std::string topic = config().counters_topic + "/" + name;
    Announce(name + " in view", topic, "in_view", kNow);
    Announce(name + " seen", topic, "seen", kTotal);
    if (!counter->config().line) continue;
    Announce(name + " in", topic, "in", kTotal);
    Announce(name + " out", topic, "out", kTotal);
  }
}

void MqttSender::Tell(const std::string& topic, std::string* told) {
  if (now_ != *told && Keep(topic, now_)) told->swap(now_);
}

void MqttSender::TellState() {
  if (config().counting) {
    now_ = CountsNow(std::move(now_));
    Tell(config().counting->topic, &told_);
  }
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    now_ = counters_[i]->Text(std::move(now_));
    Tell(counter_topics_[i], &told_of_counters_[i]);
  }
}

/// Sends lines as long as the broker has not too many to acknowledge. False if that failed.
bool MqttSender::PublishMore() {
  while (!flying_.empty() && flying_.front().arrived) {
    flying_.pop_front();
    spool().Acknowledge();
    CountSent();
    heard_ = Monotonic();
  }
  if (flying_.empty()) heard_ = Monotonic();
  while (flying_.size() < kMostFlying && spool().Next(&line_)) {
    int id = 0;
    const int failed = mosquitto_publish(client_.get(), &id, config().topic.c_str(),
                                         static_cast<int>(line_.size()), line_.data(), 1, false);
    if (failed != MOSQ_ERR_SUCCESS) return false;
    flying_.Add() = {id, false};
  }
  return true;
}

std::string MqttSender::Session() {
  std::string why = Begin();
  if (!why.empty()) return why;
  mosquitto* const client = client_.get();
  const double begun = Monotonic();
  bool greeted = false;
  // A life that was short has something to say, too.
  while (greeted ? !stopping() : !late()) {
    const int fd = mosquitto_socket(client);
    if (fd < 0) return greeted ? "the connection is lost" : "cannot connect";
    const bool full = mosquitto_want_write(client) || answer_ < 0;
    const auto events = static_cast<short>(POLLIN | (full ? POLLOUT : 0));
    const short ready = Wait(kTickS, fd, events);
    int failed = MOSQ_ERR_SUCCESS;
    if ((ready & (POLLOUT | POLLERR | POLLHUP)) != 0) failed = mosquitto_loop_write(client, 1);
    if (failed == MOSQ_ERR_SUCCESS && (ready & (POLLIN | POLLERR | POLLHUP)) != 0) {
      failed = mosquitto_loop_read(client, 1);
    }
    if (failed == MOSQ_ERR_SUCCESS) failed = mosquitto_loop_misc(client);
    if (answer_ > 0) return Refusal(answer_);
    if (failed != MOSQ_ERR_SUCCESS) {
      return std::string(greeted ? "" : "cannot connect: ") + mosquitto_strerror(failed);
    }
    if (answer_ < 0) {
      if (Monotonic() - begun > kAnswerS) return "the broker gives no answer";
      // The socket is writable all the time: not more often than this.
      if ((ready & POLLOUT) != 0 && !mosquitto_want_write(client)) Wait(0.01);
      continue;
    }
    if (!std::exchange(greeted, true)) {
      Succeed();
      Greet();
      heard_ = Monotonic();
    }
    TellState();
    if (!PublishMore()) return "a line cannot be published";
    if (Monotonic() - heard_ > kAcknowledgeS) return "the broker acknowledges nothing";
  }
  if (greeted) Leave();
  return "";
}

/// The rest, for a moment, and a farewell.
void MqttSender::Leave() {
  mosquitto* const client = client_.get();
  const double until = Monotonic() + kLeaveS;
  bool told = false;
  while (Monotonic() < until) {
    const int fd = mosquitto_socket(client);
    if (fd < 0 || !PublishMore()) return;
    if (flying_.empty() && !std::exchange(told, true)) {
      TellState();
      Keep(config().status_topic, kOffline);
      mosquitto_disconnect(client);
    }
    if (told && !mosquitto_want_write(client)) return;
    const auto events = static_cast<short>(POLLIN | (mosquitto_want_write(client) ? POLLOUT : 0));
    const short ready = Wait(0.1, fd, events);
    if ((ready & POLLOUT) != 0 && mosquitto_loop_write(client, 1) != MOSQ_ERR_SUCCESS) return;
    if ((ready & ~POLLOUT) != 0 && mosquitto_loop_read(client, 1) != MOSQ_ERR_SUCCESS) return;
  }
}

}  // namespace edgepack::sinks
