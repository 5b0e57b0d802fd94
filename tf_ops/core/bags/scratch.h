// Memory that one call needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/base/page_memory.h"

namespace sok {

// Room for elements that have no value yet. Large buffers use huge pages, since getting the memory
// from the system in small pages takes longer than the work on it.
template <typename T>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Makes room for another number of elements, and loses what was there. Throws std::bad_alloc if
  // there is no memory.
  void Resize(int64_t n) {
    small_.reset();
    pages_ = PageBuffer();
    data_ = nullptr;
    const size_t bytes = static_cast<size_t>(n) * sizeof(T);
    if (bytes >= kPagesFrom) {
      pages_ = PageBuffer(bytes, true);
      data_ = reinterpret_cast<T*>(pages_.data());
    }
    if (data_ == nullptr) {
      small_.reset(new T[static_cast<size_t>(n)]);
      data_ = small_.get();
    }
  }

  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  static constexpr size_t kPagesFrom = size_t{4} << 20;
  PageBuffer pages_;
  std::unique_ptr<T[]> small_;
  T* data_ = nullptr;
};

}  // namespace sok
