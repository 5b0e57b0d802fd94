// Reads rows of the virtual table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/bags/bags.h"
#include "core/bags/slot_map.h"

namespace sok {

// A reader keeps the row that it has read last, so each thread has one of its own.
template <typename T>
class RowReader {
 public:
  using Sum = typename SumOf<T>::type;

  // Both arguments must outlive the reader.
  RowReader(const SlotMap& slots, const T* weight)
      : slots_(slots),
        weight_(weight),
        // A block that is longer than the weight could wrap more than once.
        whole_blocks_(slots.block_size() > 1 && slots.block_size() <= slots.size()),
        places_(whole_blocks_ ? slots.blocks() : slots.dim()),
        signs_(slots.sign() ? slots.sign_words() : 0),
        row_(slots.dim()) {}

  // Returns the elements (dim) of an id, minus signs included. They are valid until the next call.
  const Sum* Read(uint64_t id) {
    if (whole_blocks_) {
      ReadBlocks(id);
    } else {
      slots_.Slots(id, places_.data());
      for (int d = 0; d < slots_.dim(); ++d) row_[d] = Widen(weight_[places_[d]]);
    }
    if (slots_.sign()) {
      slots_.SignWords(id, signs_.data());
      ApplySigns(signs_.data(), 0, slots_.dim(), row_.data());
    }
    return row_.data();
  }

 private:
  void ReadBlocks(uint64_t id) {
    slots_.Bases(id, places_.data());
    const int64_t size = slots_.size();
    const int dim = slots_.dim(), block_size = slots_.block_size();
    for (int k = 0, begin = 0; k < slots_.blocks(); ++k, begin += block_size) {
      const int length = std::min(block_size, dim - begin);
      const auto base = static_cast<int64_t>(places_[k]);
      const int unwrapped = static_cast<int>(std::min<int64_t>(length, size - base));
      for (int j = 0; j < unwrapped; ++j) row_[begin + j] = Widen(weight_[base + j]);
      for (int j = unwrapped; j < length; ++j) row_[begin + j] = Widen(weight_[base + j - size]);
    }
  }

  const SlotMap& slots_;
  const T* weight_;
  const bool whole_blocks_;
  std::vector<uint64_t> places_;
  std::vector<uint64_t> signs_;
  std::vector<Sum> row_;
};

}  // namespace sok
