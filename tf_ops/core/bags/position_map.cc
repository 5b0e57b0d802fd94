#include "core/bags/position_map.h"

#include <algorithm>

#include "core/base/vector_clones.h"

namespace sok {
namespace {

// Computes MulHi for a b below 2^32, in steps that compilers turn into vector instructions: of the
// product with the low half of a, only the carry is used.
uint64_t MulHiNarrow(uint64_t a, uint64_t b) {
  return ((a >> 32) * b + ((a & 0xffffffffull) * b >> 32)) >> 32;
}

// Computes the bases (blocks) of kMixed, for a size below 2^32.
SOK_VECTOR_CLONES void NarrowMixedBases(uint64_t key, uint64_t size, int blocks, uint64_t* bases) {
  for (int k = 0; k < blocks; ++k) {
    bases[k] = MulHiNarrow(
        Mix64(key + (static_cast<uint64_t>(k) + 1) * PositionArithmetic::kGolden), size);
  }
}

Status AtLeastOne(const char* what, int64_t value) {
  if (value >= 1) return Status();
  return InvalidArgument(std::string("expected ") + what + " of at least 1, got " +
                         std::to_string(value));
}

}  // namespace

Result<PositionHash> PositionHashNamed(const std::string& name) {
  if (name == "mixed") return PositionHash::kMixed;
  if (name == "original") return PositionHash::kOriginal;
  if (name == "modulo") return PositionHash::kModulo;
  return InvalidArgument("expected the hash mixed, original or modulo, got " + name);
}

Result<PositionMap> PositionMap::Make(const PositionMapOptions& options) {
  for (const Status& status :
       {AtLeastOne("a weight size", options.size),
        AtLeastOne("num_embeddings", options.num_embeddings),
        AtLeastOne("embedding_dim", options.dim), AtLeastOne("block_size", options.block_size)}) {
    if (!status.ok()) return status;
  }
  if (options.dim > kMaxDim) {
    return InvalidArgument("expected embedding_dim of at most " + std::to_string(kMaxDim) +
                           ", got " + std::to_string(options.dim));
  }
  if (options.hash == PositionHash::kModulo && options.num_embeddings > INT64_MAX / options.dim) {
    return InvalidArgument("expected fewer than 2^63 elements with the hash modulo, got " +
                           std::to_string(options.num_embeddings) + " embeddings of " +
                           std::to_string(options.dim));
  }
  return PositionMap(options);
}

PositionMap::PositionMap(const PositionMapOptions& options)
    : numbers_{options.hash,
               options.sign,
               static_cast<int>(options.dim),
               static_cast<int>(std::min(options.block_size, options.dim)),
               Mix64(options.seed + PositionArithmetic::kGolden),
               static_cast<uint64_t>(options.size),
               Remainder(static_cast<uint64_t>(options.size))},
      blocks_((dim() + block_size() - 1) / block_size()) {}

void PositionMap::Bases(uint64_t id, uint64_t* bases) const {
  const uint64_t key = numbers_.KeyOf(id);
  if (numbers_.hash == PositionHash::kMixed && numbers_.size < (uint64_t{1} << 32)) {
    NarrowMixedBases(key, numbers_.size, blocks_, bases);
  } else {
    for (int k = 0; k < blocks_; ++k) bases[k] = numbers_.Base(id, key, k);
  }
}

void PositionMap::Positions(uint64_t id, uint64_t* positions) const {
  Bases(id, positions);
  if (block_size() == 1) return;
  // Goes backwards, so that no base is overwritten before it has been read.
  for (int k = blocks_ - 1; k >= 0; --k) {
    const int begin = k * block_size(), end = std::min(begin + block_size(), dim());
    const uint64_t base = positions[k];
    for (int d = begin; d < end; ++d) {
      positions[d] = numbers_.Wrap(base + static_cast<uint64_t>(d - begin));
    }
  }
}

void PositionMap::SignWords(uint64_t id, uint64_t* words) const {
  const uint64_t key = numbers_.KeyOf(id);
  for (int word = 0; word < sign_words(); ++word) {
    words[word] = PositionArithmetic::SignWord(key, word);
  }
}

}  // namespace sok
