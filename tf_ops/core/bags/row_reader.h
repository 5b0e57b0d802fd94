// Reads rows of the virtual table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/bags/bags.h"
#include "core/bags/position_map.h"

namespace sok {

// A reader keeps the row that it has read last, so each thread needs its own reader.
template <typename T>
class RowReader {
 public:
  using Sum = typename SumOf<T>::type;

  // Both arguments must outlive the reader.
  RowReader(const PositionMap& positions, const T* weight)
      : positions_(positions),
        weight_(weight),
        // A block that is longer than the weight could wrap more than once.
        whole_blocks_(positions.block_size() > 1 && positions.block_size() <= positions.size()),
        places_(whole_blocks_ ? positions.blocks() : positions.dim()),
        signs_(positions.sign() ? positions.sign_words() : 0),
        row_(positions.dim()) {}

  // Returns the elements (dim) of an id, minus signs included. They are valid until the next call.
  const Sum* Read(uint64_t id) {
    if (whole_blocks_) {
      ReadBlocks(id);
    } else {
      positions_.Positions(id, places_.data());
      for (int d = 0; d < positions_.dim(); ++d) row_[d] = Widen(weight_[places_[d]]);
    }
    if (positions_.sign()) {
      positions_.SignWords(id, signs_.data());
      ApplySigns(signs_.data(), 0, positions_.dim(), row_.data());
    }
    return row_.data();
  }

 private:
  void ReadBlocks(uint64_t id) {
    positions_.Bases(id, places_.data());
    const int64_t size = positions_.size();
    const int dim = positions_.dim(), block_size = positions_.block_size();
    for (int k = 0, begin = 0; k < positions_.blocks(); ++k, begin += block_size) {
      const int length = std::min(block_size, dim - begin);
      const auto base = static_cast<int64_t>(places_[k]);
      const int unwrapped = static_cast<int>(std::min<int64_t>(length, size - base));
      for (int j = 0; j < unwrapped; ++j) row_[begin + j] = Widen(weight_[base + j]);
      for (int j = unwrapped; j < length; ++j) row_[begin + j] = Widen(weight_[base + j - size]);
    }
  }

  const PositionMap& positions_;
  const T* weight_;
  const bool whole_blocks_;
  std::vector<uint64_t> places_;
  std::vector<uint64_t> signs_;
  std::vector<Sum> row_;
};

}  // namespace sok
