#include "core/bags/position_map.h"

#include <algorithm>

#include "core/base/vector_clones.h"

namespace sok {
namespace {

constexpr uint64_t kOriginalIdFactor = 9824516537ull;
constexpr uint64_t kOriginalDimFactor = 57857966300227ull;
constexpr uint64_t kOriginalTerm = 104729ull;
constexpr uint64_t kOriginalPrime = 117130198221199ull;

// Computes MulHi for a b below 2^32, in steps that compilers turn into vector instructions: the low
// half of a contributes its carry only.
uint64_t MulHiNarrow(uint64_t a, uint64_t b) {
  return ((a >> 32) * b + ((a & 0xffffffffull) * b >> 32)) >> 32;
}

uint64_t Original(uint64_t id, uint64_t k) {
  return (id * kOriginalIdFactor + k * kOriginalDimFactor + kOriginalTerm) % kOriginalPrime;
}

// Computes the bases (blocks) of kMixed, for a size below 2^32.
SOK_VECTOR_CLONES void NarrowMixedBases(uint64_t key, uint64_t size, int blocks, uint64_t* bases) {
  for (int k = 0; k < blocks; ++k) {
    bases[k] =
        MulHiNarrow(Mix64(key + (static_cast<uint64_t>(k) + 1) * PositionMap::kGolden), size);
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
    : hash_(options.hash),
      seed_key_(Mix64(options.seed + kGolden)),
      size_(static_cast<uint64_t>(options.size)),
      remainder_(size_),
      dim_(static_cast<int>(options.dim)),
      block_size_(static_cast<int>(std::min(options.block_size, options.dim))),
      blocks_((dim_ + block_size_ - 1) / block_size_),
      sign_(options.sign) {}

uint64_t PositionMap::Base(uint64_t id, int k) const {
  const auto block = static_cast<uint64_t>(k);
  switch (hash_) {
    case PositionHash::kMixed:
      return MulHi(Mix64(KeyOf(id) + (block + 1) * kGolden), size_);
    case PositionHash::kOriginal:
      return remainder_(Original(id, block));
    case PositionHash::kModulo:
      break;
  }
  return remainder_(id * static_cast<uint64_t>(dim_) + block * static_cast<uint64_t>(block_size_));
}

void PositionMap::Bases(uint64_t id, uint64_t* bases) const {
  if (hash_ != PositionHash::kMixed) {
    for (int k = 0; k < blocks_; ++k) bases[k] = Base(id, k);
    return;
  }
  const uint64_t key = KeyOf(id);
  if (size_ < (uint64_t{1} << 32)) {
    NarrowMixedBases(key, size_, blocks_, bases);
  } else {
    for (int k = 0; k < blocks_; ++k) {
      bases[k] = MulHi(Mix64(key + (static_cast<uint64_t>(k) + 1) * kGolden), size_);
    }
  }
}

void PositionMap::Positions(uint64_t id, uint64_t* positions) const {
  Bases(id, positions);
  if (block_size_ == 1) return;
  // This goes from the end, so that no base is overwritten before it has been read.
  for (int k = blocks_ - 1; k >= 0; --k) {
    const int begin = k * block_size_, end = std::min(begin + block_size_, dim_);
    const uint64_t base = positions[k];
    for (int d = begin; d < end; ++d) positions[d] = Wrap(base + static_cast<uint64_t>(d - begin));
  }
}

void PositionMap::SignWords(uint64_t id, uint64_t* words) const {
  const uint64_t key = KeyOf(id);
  for (int word = 0; word < sign_words(); ++word) words[word] = SignWord(key, word);
}

}  // namespace sok
