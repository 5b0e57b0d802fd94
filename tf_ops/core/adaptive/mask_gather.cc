#include "core/adaptive/mask_gather.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/adaptive/decimal_fingerprint.h"
#include "core/base/bfloat16.h"
#include "core/base/remainder.h"
#include "core/base/status_macros.h"
#include "core/rows/row_copy.h"

namespace sok {
namespace {

std::string ShapeOf(const StaticRows& rows) {
  return "[" + std::to_string(rows.rows) + "," + std::to_string(rows.width) + "]";
}

Status AtPosition(const std::string& expected, int64_t value, size_t position) {
  return InvalidArgument("expected " + expected + ", got " + std::to_string(value) +
                         " at position " + std::to_string(position));
}

// Finds the static rows of some positions of a batch, by hashes of the digits of the keys.
void HashBuckets(const Key* keys, const uint32_t* positions, size_t n, int64_t buckets,
                 int64_t* out) {
  constexpr size_t kChunk = 256;
  const Remainder remainder(static_cast<uint64_t>(buckets));
  int64_t ids[kChunk];
  uint64_t fingerprints[kChunk];
  for (size_t base = 0; base < n; base += kChunk) {
    const size_t m = std::min(kChunk, n - base);
    for (size_t j = 0; j < m; ++j) ids[j] = static_cast<int64_t>(keys[positions[base + j]]);
    FingerprintsOfDigits(ids, m, fingerprints);
    for (size_t j = 0; j < m; ++j) {
      out[positions[base + j]] = static_cast<int64_t>(remainder(fingerprints[j]));
    }
  }
}

Status CheckMask(const int32_t* mask, size_t begin, size_t end) {
  bool wrong = false;
  for (size_t i = begin; i < end; ++i) wrong |= static_cast<uint32_t>(mask[i]) > 1;
  for (size_t i = begin; wrong && i < end; ++i) {
    if (mask[i] == 0 || mask[i] == 1) continue;
    return AtPosition("a mask of 1 (own row) or 0 (static row)", mask[i], i);
  }
  return Status();
}

Status CheckBuckets(const int64_t* buckets, size_t begin, size_t end, int64_t rows) {
  for (size_t i = begin; i < end; ++i) {
    if (static_cast<uint64_t>(buckets[i]) < static_cast<uint64_t>(rows)) continue;
    return AtPosition("buckets in [0, " + std::to_string(rows) + ")", buckets[i], i);
  }
  return Status();
}

}  // namespace

void MaskGather::HashStatic(size_t begin, size_t end, const StaticRows& rows) {
  // This is written without a branch on the mask, which would be mispredicted.
  std::vector<uint32_t> statics(end - begin);
  size_t sharing = 0;
  for (size_t i = begin; i < end; ++i) {
    statics[sharing] = static_cast<uint32_t>(i);
    sharing += lookup_.mask[i] == 0;
  }
  std::fill(lookup_.hashed + begin, lookup_.hashed + end, 0);
  HashBuckets(lookup_.keys, statics.data(), sharing, rows.rows, lookup_.hashed);
}

template <typename T>
void MaskGather::CopyStaticRows(const std::vector<uint32_t>& positions, const StaticRows& rows,
                                T* embeddings) const {
  constexpr size_t kAhead = 16;
  const int64_t* bucket = buckets();
  const int dim = table_->dim();
  for (size_t m = 0; m < positions.size(); ++m) {
    if (m + kAhead < positions.size()) {
      PrefetchForCopy(rows.values + bucket[positions[m + kAhead]] * dim, dim);
    }
    const size_t i = positions[m];
    CopyRow(rows.values + bucket[i] * dim, dim, embeddings + i * dim);
  }
}

template <typename T>
Status MaskGather::ReadBlock(size_t begin, size_t end, const StaticRows& rows, T* embeddings,
                             const ParallelFor& parallel_for, std::vector<uint32_t>* missing) {
  SOK_RETURN_IF_ERROR(CheckMask(lookup_.mask, begin, end));
  if (lookup_.given == nullptr) {
    HashStatic(begin, end, rows);
  } else {
    SOK_RETURN_IF_ERROR(CheckBuckets(lookup_.given, begin, end, rows.rows));
  }
  const int dim = table_->dim();
  const int64_t* bucket = buckets();
  std::vector<const float*> given(end - begin);
  for (size_t i = begin; i < end; ++i) {
    const float* row = rows.values + bucket[i] * dim;
    given[i - begin] = lookup_.mask[i] == 0 ? row : nullptr;
  }
  GatherOptions options;
  options.given = given.data();
  SOK_RETURN_IF_ERROR(table_->Find(lookup_.keys + begin, end - begin, options,
                                   embeddings + begin * dim, missing, &met_, parallel_for));
  for (uint32_t& i : *missing) i += static_cast<uint32_t>(begin);
  if (lookup_.given == nullptr) {
    HashBuckets(lookup_.keys, missing->data(), missing->size(), rows.rows, lookup_.hashed);
  }
  for (size_t i = begin; i < end; ++i) lookup_.own[i] = lookup_.mask[i] == 1;
  for (uint32_t i : *missing) lookup_.own[i] = false;
  CopyStaticRows(*missing, rows, embeddings);
  return Status();
}

template <typename T>
Status MaskGather::Read(const StaticRows& rows, T* embeddings, const ParallelFor& parallel_for) {
  const size_t n = lookup_.n;
  if (n > 0 && lookup_.given == nullptr && rows.rows == 0) {
    return InvalidArgument("expected at least one static row, got shape " + ShapeOf(rows));
  }
  const bool at_once = lookup_.stored || table_->gpu() >= 0;  // a GPU is read in one call
  const size_t block_size = at_once ? std::max<size_t>(n, 1) : kBlockSize;
  const ParallelFor serial = SerialFor;
  const ParallelFor& outer = at_once ? serial : parallel_for;
  const ParallelFor& inner = at_once ? parallel_for : serial;
  blocks_.resize((n + block_size - 1) / block_size);
  outer(static_cast<int64_t>(blocks_.size()), kBlockSize * 15, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const size_t begin = static_cast<size_t>(b) * block_size;
      Block& block = blocks_[b];
      block.status = ReadBlock(begin, std::min(begin + block_size, n), rows, embeddings, inner,
                               &block.missing);
    }
  });
  for (const Block& block : blocks_) {
    if (!block.status.ok()) return block.status;
  }
  return Status();
}

template Status MaskGather::Read(const StaticRows&, float*, const ParallelFor&);
template Status MaskGather::Read(const StaticRows&, BFloat16*, const ParallelFor&);

Status MaskGather::Admit(const StaticRows& rows) {
  std::vector<uint32_t> positions;
  for (const Block& block : blocks_) {
    positions.insert(positions.end(), block.missing.begin(), block.missing.end());
  }
  std::vector<Key> without;
  without.reserve(positions.size());
  for (uint32_t i : positions) without.push_back(lookup_.keys[i]);
  std::vector<int64_t> counts;
  for (size_t k = 0; lookup_.counts != nullptr && k < positions.size(); ++k) {
    counts.push_back(lookup_.counts[positions[k]]);
  }
  std::vector<uint32_t> admitted(without.size());
  std::iota(admitted.begin(), admitted.end(), 0);
  SOK_RETURN_IF_ERROR(table_->AdmitMissing(
      without.data(), lookup_.counts == nullptr ? nullptr : counts.data(), &admitted, &met_));
  const int dim = table_->dim();
  starts_.resize(admitted.size() * dim);
  float* start = starts_.data();
  for (uint32_t i : admitted) {
    const int64_t bucket = buckets()[positions[i]];
    admitted_.push_back(without[i]);
    sources_.push_back(bucket);
    start = std::copy_n(rows.values + bucket * dim, dim, start);
  }
  return Status();
}

Status MaskGather::CopySlots(const StaticRows& slot) {
  std::vector<float> values(sources_.size() * slot.width);
  float* to = values.data();
  for (int64_t bucket : sources_) {
    if (bucket >= slot.rows) {
      return InvalidArgument("expected a slot for each static row, got shape " + ShapeOf(slot));
    }
    to = std::copy_n(slot.values + bucket * slot.width, slot.width, to);
  }
  slots_.push_back({std::move(values), slot.width});
  return Status();
}

Status MaskGather::MakeRows(const ParallelFor& parallel_for) {
  if (admitted_.empty()) return Status();
  const int dim = table_->dim();
  int64_t copied = 0;  // the floats of all slots of a row
  for (const Slot& slot : slots_) copied += slot.width;
  SOK_RETURN_IF_ERROR(table_->MakeRowsAs(
      admitted_.data(), admitted_.size(),
      [&](size_t i, float* row, int slot_floats) {
        float* to = std::copy_n(starts_.data() + i * dim, dim, row);
        if (slot_floats != copied) return;  // these are the slots of another rule
        for (const Slot& slot : slots_) {
          to = std::copy_n(slot.values.data() + i * slot.width, slot.width, to);
        }
      },
      parallel_for));
  // The admission may have held back an earlier occurrence of a key, and admitted a later one.
  const std::unordered_set<Key> has_row(admitted_.begin(), admitted_.end());
  for (const Block& block : blocks_) {
    for (uint32_t i : block.missing) lookup_.own[i] = has_row.count(lookup_.keys[i]) > 0;
  }
  return Status();
}

Result<std::vector<uint32_t>> OwnPlaces(const int32_t* mask, const int64_t* buckets, size_t n,
                                        int64_t rows) {
  SOK_RETURN_IF_ERROR(CheckMask(mask, 0, n));
  SOK_RETURN_IF_ERROR(CheckBuckets(buckets, 0, n, rows));
  std::vector<uint32_t> places;
  for (size_t i = 0; i < n; ++i) {
    if (mask[i] == 1) places.push_back(static_cast<uint32_t>(i));
  }
  return places;
}

LookupKeys KeysOfOwnRows(const Key* keys, const bool* own, size_t n) {
  struct Owned {
    std::vector<Key> keys;
    std::vector<uint32_t> positions;
  };
  auto owned = std::make_shared<Owned>();
  for (size_t i = 0; i < n; ++i) {
    if (!own[i]) continue;
    owned->keys.push_back(keys[i]);
    owned->positions.push_back(static_cast<uint32_t>(i));
  }
  LookupKeys deposited;
  deposited.keys = owned->keys.data();
  deposited.positions = owned->positions.data();
  deposited.n = owned->keys.size();
  deposited.hold = std::move(owned);
  deposited.leave_absent = true;
  return deposited;
}

}  // namespace sok
