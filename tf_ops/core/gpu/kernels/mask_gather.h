// Reads own rows of keys and static rows, which keys share, into the places of their keys; starts
// own rows as copies of static rows; and sums the gradients of static rows.
#pragma once

#include "core/gpu/kernels/update.h"

namespace sok::gpu {

// Returns the value for an invalid bucket. If the host sees the buckets, it refuses such a bucket.
SOK_DEVICE float NotANumber() {
  const uint32_t bits = 0x7fc00000u;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Returns a piece of the static row of a bucket; NaN for an invalid bucket.
SOK_DEVICE Piece StaticPiece(const StaticRows& statics, int64_t bucket, int dim, int piece) {
  if (static_cast<uint64_t>(bucket) < statics.count) {
    return reinterpret_cast<const Piece*>(
        statics.rows)[static_cast<uint64_t>(bucket) * PiecesOf(dim) + piece];
  }
  Piece nothing;
  SOK_UNROLL
  for (int k = 0; k < kPiece; ++k) nothing.x[k] = NotANumber();
  return nothing;
}

// Returns float j of the slots of a static row, or the initial value of the slots of a new row if
// slots are not copied.
SOK_DEVICE float StaticSlot(const StaticRows& statics, int64_t bucket, uint32_t j,
                            const float* slot_start) {
  uint32_t begin = 0;
  for (int s = 0; s < statics.slot_count; ++s) {
    const uint32_t width = statics.slot_widths[s];
    if (j < begin + width)
      return statics.slots[s][static_cast<uint64_t>(bucket) * width + j - begin];
    begin += width;
  }
  return slot_start[j];
}

}  // namespace sok::gpu

// Copies the keys at some positions.
SOK_KERNEL(PickKeys, sok::gpu::PickKeysArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) a.picked[i] = a.keys[a.positions[i]];
}

// Fills the new rows of keys that PickKeys has picked.
SOK_KERNEL(StartAsStatic, sok::gpu::StartAsStaticArguments) {
  using namespace sok::gpu;
  const uint64_t items = static_cast<uint64_t>(a.counters->made) * a.rows.stride;
  for (uint64_t i = FirstItem(); i < items; i += ItemStep()) {
    const uint64_t made = i / a.rows.stride;
    const int j = static_cast<int>(i % a.rows.stride);
    const int64_t bucket = a.buckets[a.positions[a.makers[made]]];
    const bool is_there = static_cast<uint64_t>(bucket) < a.statics.count;
    float value;
    if (j < a.rows.dim) {
      value =
          is_there ? a.statics.rows[static_cast<uint64_t>(bucket) * a.rows.dim + j] : NotANumber();
    } else {
      const uint32_t slot = static_cast<uint32_t>(j - a.rows.dim);
      value = is_there ? StaticSlot(a.statics, bucket, slot, a.slot_start) : a.slot_start[slot];
    }
    RowAt(a.rows, a.made[made])[j] = value;
  }
}

// Writes the numbers of the rows of picked keys to the positions of the keys.
SOK_KERNEL(PlaceNumbers, sok::gpu::PlaceNumbersArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) a.placed[a.positions[i]] = a.numbers[i];
}

SOK_KERNEL(MaskGather, sok::gpu::MaskGatherArguments) {
  using namespace sok::gpu;
  const int pieces = PiecesOf(a.rows.dim);
  for (uint64_t i = FirstItem(); i < a.n * pieces; i += ItemStep()) {
    const uint64_t key = i / pieces;
    const int piece = static_cast<int>(i % pieces);
    const uint32_t row = a.numbers[key];
    const bool is_own = row != kNoRow;
    WritePiece(a.out, a.element, i,
               is_own ? *PieceAt(a.rows, row, piece)
                      : StaticPiece(a.statics, a.buckets[key], a.rows.dim, piece));
    if (piece == 0) a.own[key] = is_own;
  }
}

// Writes the keys by which the gradients of static rows are sorted. Own rows are skipped.
SOK_KERNEL(StaticKeys, sok::gpu::StaticKeysArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) {
    const bool is_static = !a.own[i] && static_cast<uint64_t>(a.buckets[i]) < a.count;
    a.keys[i] = is_static ? static_cast<uint32_t>(a.buckets[i]) : a.count;
  }
}

SOK_KERNEL(SegmentKeys, sok::gpu::SegmentKeysArguments) {
  using namespace sok::gpu;
  for (uint64_t u = FirstItem(); u < *a.segments; u += ItemStep()) {
    a.indices[u] = static_cast<int64_t>(a.keys[a.starts[u]]);
  }
}
