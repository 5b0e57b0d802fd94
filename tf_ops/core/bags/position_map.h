// Maps elements of a virtual table to places in a shared one-dimensional weight: the hashing trick
// (Chen et al. 2015, "Compressing Neural Networks with the Hashing Trick", eq. 3), for single
// elements or for blocks of neighbours (Desai, Chou, Shrivastava 2022, "Random Offset Block
// Embedding Array", section 3).
//
// Element (id, d) of the table is sign(id, d) * weight[position(id, d)]. With k = d / block_size:
//
//   position(id, d) = (base(id, k) + d % block_size) % size
//
//   kMixed     base = floor(Mix64(key + (k + 1) G) size / 2^64), key = Mix64(id ^ Mix64(seed + G))
//   kOriginal  base = ((9824516537 id + 57857966300227 k + 104729) % 117130198221199) % size
//   kModulo    base = (id dim + k block_size) % size
//
//   sign(id, d) = -1 where bit d % 64 of Mix64((key ^ kSignSalt) + (d / 64 + 1) G) is set
//
// G is 2^64 over the golden ratio, so the bases of an id are a SplitMix64 sequence that starts at
// its key. All of it is arithmetic modulo 2^64. kOriginal is the hash of the PyTorch project
// HashedEmbeddingBag, for weights trained there; it maps many ids to equal positions. kModulo is
// the plain table if size is its number of elements, and shares rows by id % (size / dim) below
// that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/bags/position_arithmetic.h"
#include "core/base/status.h"

namespace sok {

// "mixed", "original" or "modulo".
Result<PositionHash> PositionHashNamed(const std::string& name);

struct PositionMapOptions {
  PositionHash hash = PositionHash::kMixed;
  uint64_t seed = 0;
  int64_t size = 0;  // the number of the weight's elements
  int64_t num_embeddings = 0;
  int64_t dim = 0;
  int64_t block_size = 1;
  bool sign = false;
};

// A map is immutable, so it is safe to use from any number of threads.
class PositionMap {
 public:
  // Positions are 64 bits wide, dims and blocks are counted in 32.
  static constexpr int64_t kMaxDim = int64_t{1} << 24;

  // kInvalidArgument for a size, num_embeddings, dim or block_size below 1, a dim above kMaxDim,
  // and for kModulo over a table of 2^63 elements or more.
  static Result<PositionMap> Make(const PositionMapOptions& options);

  int64_t size() const { return static_cast<int64_t>(numbers_.size); }
  int dim() const { return numbers_.dim; }
  int block_size() const { return numbers_.block_size; }  // at most dim
  int blocks() const { return blocks_; }                  // the last one may be short
  bool sign() const { return numbers_.sign; }
  int sign_words() const { return (numbers_.dim + 63) / 64; }
  const PositionArithmetic& arithmetic() const { return numbers_; }

  // Computes bases (blocks), the position of the first element of each block.
  void Bases(uint64_t id, uint64_t* bases) const;

  // Computes positions (dim), the positions of all elements of a row.
  void Positions(uint64_t id, uint64_t* positions) const;

  // Computes words (sign_words): bit d % 64 of words[d / 64] is set where element d has a minus.
  void SignWords(uint64_t id, uint64_t* words) const;

  uint64_t Position(uint64_t id, int d) const {
    return numbers_.Position(id, numbers_.KeyOf(id), d);
  }

  bool Minus(uint64_t id, int d) const { return numbers_.Minus(numbers_.KeyOf(id), d); }

 private:
  explicit PositionMap(const PositionMapOptions& options);

  PositionArithmetic numbers_;
  int blocks_;
};

// Changes the sign of each of the n elements from `first` on in their row for which `words`, from
// PositionMap::SignWords, has a bit set.
template <typename T>
void ApplySigns(const uint64_t* words, int first, int n, T* elements) {
  for (int i = 0; i < n;) {
    // This takes half a word at a time: 32 bits, the width of most elements.
    const int d = first + i;
    const auto half = static_cast<uint32_t>(words[d / 64] >> (d % 64));
    const int end = i + std::min(n - i, std::min(32, 64 - d % 64));
    for (int j = 0; i + j < end; ++j) {
      elements[i + j] *= static_cast<T>(1 - 2 * static_cast<int>(half >> j & 1));
    }
    i = end;
  }
}

}  // namespace sok
