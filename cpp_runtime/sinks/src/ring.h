#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace edgepack::sinks {

/// A queue whose places stay: what is put into one finds the memory of what was
/// there before.
template <typename T>
class Ring {
 public:
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  T& operator[](std::size_t index) { return slots_[(begin_ + index) % slots_.size()]; }
  T& front() { return (*this)[0]; }
  /// A place at the end, which is what it was.
  T& Add() {
    if (size_ == slots_.size()) Grow();
    return (*this)[size_++];
  }
  void pop_front() {
    begin_ = (begin_ + 1) % slots_.size();
    --size_;
  }
  void clear() { begin_ = size_ = 0; }

 private:
  void Grow() {
    std::vector<T> slots(slots_.size() * 2 + 8);
    for (std::size_t i = 0; i < size_; ++i) slots[i] = std::move((*this)[i]);
    slots_.swap(slots);
    begin_ = 0;
  }

  std::vector<T> slots_;
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
};

}  // namespace edgepack::sinks
