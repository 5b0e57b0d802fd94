// Memory for the time of one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/base/page_memory.h"

namespace sok {

// Room for elements that have no value yet. Large ones lie in huge pages: taking them from the
// system in small ones costs more than what is done with them.
template <typename T>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Loses what was there. Throws std::bad_alloc if there is no memory.
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
