#pragma once

#include <exception>
#include <thread>
#include <utility>

namespace edgepack {

/// A thread whose exception is kept for whoever waits for it.
class Worker {
 public:
  template <typename Function>
  explicit Worker(Function function)
      : thread_([this, function = std::move(function)] {
          try {
            function();
          } catch (...) {
            failed_ = std::current_exception();
          }
        }) {}
  ~Worker() {
    if (thread_.joinable()) thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Worker(Worker&&) = delete;
  Worker& operator=(Worker&&) = delete;

  /// Waits for its end, and throws what it threw.
  void Join() {
    thread_.join();
    if (failed_) std::rethrow_exception(failed_);
  }

 private:
  std::exception_ptr failed_;
  std::thread thread_;
};

/// Calls something at the end of a scope, however that ends.
template <typename Function>
class AtExit {
 public:
  explicit AtExit(Function function) : function_(std::move(function)) {}
  ~AtExit() { function_(); }
  AtExit(const AtExit&) = delete;
  AtExit& operator=(const AtExit&) = delete;
  AtExit(AtExit&&) = delete;
  AtExit& operator=(AtExit&&) = delete;

 private:
  Function function_;
};

}  // namespace edgepack
