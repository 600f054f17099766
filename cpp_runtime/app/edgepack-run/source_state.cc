#include "source_state.h"

#include <utility>

namespace edgepack {

SourceState::SourceState(std::string name, FrameMetrics* metrics, std::ostream& err)
    : name_(std::move(name)), metrics_(metrics), err_(err) {
  Tell();
}

void SourceState::Say(const std::string& text) { err_ << name_ << " " << text << std::endl; }

void SourceState::Tell() {
  if (metrics_ != nullptr) metrics_->SetSource(!lost_ && !useless_);
}

void SourceState::Lose(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lost_) return;
  lost_ = Clock::now();
  Say(why);
  Tell();
}

void SourceState::Find() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!lost_) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - *lost_);
  lost_.reset();
  Say("is back, after " + std::to_string(seconds.count()) + " s");
  Tell();
}

void SourceState::Note(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Say(text);
}

void SourceState::Use() {
  const std::lock_guard<std::mutex> lock(mutex_);
  in_a_row_ = 0;
  if (!useless_) return;
  useless_ = false;
  Say("can be used again");
  Tell();
}

void SourceState::Reject(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++rejected_;
  last_reason_ = why;
  if (++in_a_row_ != kMostUnusable) return;
  useless_ = true;
  Say("gives nothing that can be used, " + std::to_string(in_a_row_) + " times in a row: " + why);
  Tell();
}

std::int64_t SourceState::rejected() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rejected_;
}

std::string SourceState::last_reason() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_reason_;
}

void Silence::Reset() {
  // It was said too soon: this source is slow, and not ill.
  if (std::exchange(said_, false)) limit_ *= 2;
  since_ = Clock::now();
}

bool Silence::Ends() {
  if (said_ || length() < limit_) return false;
  said_ = true;
  return true;
}

std::chrono::milliseconds Silence::length() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since_);
}

}  // namespace edgepack
