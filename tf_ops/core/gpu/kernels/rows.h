// Reads and writes rows. SOK_DIM is the number of floats of an embedding if it is known when the
// program is compiled, else 0.
#pragma once

#include "core/base/bfloat16.h"
#include "core/base/float16.h"
#include "core/gpu/kernels/arguments.h"
#include "core/gpu/kernels/words.h"

#ifndef SOK_DIM
#define SOK_DIM 0
#endif

namespace sok::gpu {

// The number of floats that kernels move at once: 16 bytes if rows can be divided so.
constexpr int kPiece = SOK_DIM % 4 == 0 && SOK_DIM != 0 ? 4 : 1;

struct alignas(4 * kPiece) Piece {
  float x[kPiece];
};

SOK_DEVICE int DimOf(int dim) { return SOK_DIM != 0 ? SOK_DIM : dim; }
SOK_DEVICE int PiecesOf(int dim) { return DimOf(dim) / kPiece; }

SOK_DEVICE float* RowAt(const Rows& rows, uint32_t row) {
  return rows.data + static_cast<uint64_t>(row) * rows.stride;
}
SOK_DEVICE Piece* PieceAt(const Rows& rows, uint32_t row, int piece) {
  return reinterpret_cast<Piece*>(RowAt(rows, row)) + piece;
}

// Returns a key. Without keys it returns any value, since then every key has a row.
SOK_DEVICE uint64_t KeyAt(const uint64_t* keys, uint64_t i) {
  return keys == nullptr ? 0 : keys[i];
}

// Returns a piece of a row, or of the vector that replaces the row of a key without one.
SOK_DEVICE Piece ReadPiece(const Rows& rows, uint32_t row, uint64_t key, int piece,
                           bool fills_start, const StartVector& start) {
  if (row != kNoRow) return *PieceAt(rows, row, piece);
  Piece filled = {};
  if (fills_start) {
    const uint64_t state = start.State(key);
    SOK_UNROLL
    for (int k = 0; k < kPiece; ++k) filled.x[k] = start.Element(state, piece * kPiece + k);
  }
  return filled;
}

template <typename T>
struct alignas(sizeof(T) * kPiece) OutPiece {
  T x[kPiece];
};

SOK_DEVICE void WritePiece(void* out, Element element, uint64_t at, const Piece& piece) {
  if (element == Element::kFloat32) {
    static_cast<Piece*>(out)[at] = piece;
  } else if (element == Element::kBFloat16) {
    OutPiece<BFloat16> converted;
    SOK_UNROLL
    for (int k = 0; k < kPiece; ++k) converted.x[k] = FromFloat<BFloat16>(piece.x[k]);
    static_cast<OutPiece<BFloat16>*>(out)[at] = converted;
  } else {
    OutPiece<Float16> converted;
    SOK_UNROLL
    for (int k = 0; k < kPiece; ++k) converted.x[k] = FromFloat<Float16>(piece.x[k]);
    static_cast<OutPiece<Float16>*>(out)[at] = converted;
  }
}

}  // namespace sok::gpu

SOK_KERNEL(Start, sok::gpu::StartArguments) {
  using namespace sok::gpu;
  const uint64_t items = static_cast<uint64_t>(a.counters->made) * a.rows.stride;
  for (uint64_t i = FirstItem(); i < items; i += ItemStep()) {
    const uint32_t row = a.made[i / a.rows.stride];
    const int j = static_cast<int>(i % a.rows.stride);
    RowAt(a.rows, row)[j] = j < a.rows.dim ? a.start.Element(a.start.State(a.row_keys[row]), j)
                                           : a.slot_start[j - a.rows.dim];
  }
}

SOK_KERNEL(Gather, sok::gpu::GatherArguments) {
  using namespace sok::gpu;
  const int pieces = PiecesOf(a.rows.dim);
  for (uint64_t i = FirstItem(); i < a.n * pieces; i += ItemStep()) {
    const uint64_t key = i / pieces;
    const int piece = static_cast<int>(i % pieces);
    const uint32_t row = a.numbers[key];
    WritePiece(a.out, a.element, i,
               ReadPiece(a.rows, row, KeyAt(a.keys, key), piece, a.fills_start, a.start));
  }
}

SOK_KERNEL(ReadRows, sok::gpu::CopyRowsArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n * a.floats; i += ItemStep()) {
    const uint64_t key = i / a.floats;
    const uint32_t j = static_cast<uint32_t>(i % a.floats);
    const uint32_t row = a.numbers[key];
    a.buffer[i] = row == kNoRow ? 0.0f : RowAt(a.rows, row)[j];
    if (j == 0 && a.copied != nullptr) a.copied[key] = row == kNoRow ? Meta{0, 0} : a.metas[row];
  }
}

SOK_KERNEL(WriteRows, sok::gpu::CopyRowsArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n * a.floats; i += ItemStep()) {
    const uint64_t key = i / a.floats;
    const uint32_t j = static_cast<uint32_t>(i % a.floats);
    const uint32_t row = a.numbers[key];
    RowAt(a.rows, row)[j] = a.buffer[i];
    if (j == 0 && a.copied != nullptr) a.metas[row] = a.copied[key];
  }
}

SOK_KERNEL(Relayout, sok::gpu::RelayoutArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n * a.to.stride; i += ItemStep()) {
    const uint32_t row = static_cast<uint32_t>(i / a.to.stride);
    const int j = static_cast<int>(i % a.to.stride);
    RowAt(a.to, row)[j] = j < a.to.dim ? RowAt(a.from, row)[j] : a.slot_start[j - a.to.dim];
  }
}

SOK_KERNEL(Append, sok::gpu::AppendArguments) {
  using namespace sok::gpu;
  const int dim = DimOf(a.dim);
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) {
    const uint64_t from =
        a.positions == nullptr ? i : static_cast<uint64_t>(a.positions[i / dim]) * dim + i % dim;
    float x;
    if (a.element == Element::kFloat32) {
      x = static_cast<const float*>(a.from)[from];
    } else if (a.element == Element::kBFloat16) {
      x = sok::ToFloat(static_cast<const sok::BFloat16*>(a.from)[from]);
    } else {
      x = sok::ToFloat(static_cast<const sok::Float16*>(a.from)[from]);
    }
    a.to[i] = a.factor == 1.0f ? x : x * a.factor;
  }
}

SOK_KERNEL(Assign, sok::gpu::AssignArguments) {
  using namespace sok::gpu;
  const int pieces = PiecesOf(a.rows.dim);
  const uint64_t items = static_cast<uint64_t>(*a.segments) * pieces;
  for (uint64_t i = FirstItem(); i < items; i += ItemStep()) {
    const uint64_t u = i / pieces;
    const int piece = static_cast<int>(i % pieces);
    const uint64_t last = a.positions[a.starts[u + 1] - 1];
    *PieceAt(a.rows, a.keys[a.starts[u]], piece) =
        reinterpret_cast<const Piece*>(a.values)[last * pieces + piece];
  }
}
