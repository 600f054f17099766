#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace edgepack {

/// Objects by number. A number is never given twice, so that one which is not in use any more finds
/// nothing. Thread safe; whoever found an object keeps it alive.
template <typename Object>
class Handles {
 public:
  void Add(std::uintptr_t number, std::shared_ptr<Object> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.emplace(number, std::move(object));
  }

  [[nodiscard]] std::shared_ptr<Object> Find(std::uintptr_t number) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(number);
    return found == objects_.end() ? nullptr : found->second;
  }

  /// The object, whose number is of no use from now on; nullptr if it was not.
  [[nodiscard]] std::shared_ptr<Object> Take(std::uintptr_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(number);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<Object>> objects_;
};

}  // namespace edgepack
