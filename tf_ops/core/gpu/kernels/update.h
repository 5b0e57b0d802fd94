// Sums gradients by row and applies a rule. SOK_RULE is the type of the rule, in programs that have
// one.
//
// The gradients of a row are added in the order of the batch: up to kLong gradients one after
// another, more of them in chunks whose bounds depend only on their number. So the sum has the same
// bits in every run, whatever else is in the batch.
#pragma once

#include "core/gpu/kernels/rows.h"

namespace sok::gpu {

SOK_DEVICE Piece GradientPiece(const Gradients& g, uint32_t at, int piece) {
  return reinterpret_cast<const Piece*>(
      g.data)[static_cast<uint64_t>(g.positions[at]) * PiecesOf(g.dim) + piece];
}

SOK_DEVICE void AddPiece(Piece* sum, const Piece& more) {
  SOK_UNROLL
  for (int k = 0; k < kPiece; ++k) sum->x[k] += more.x[k];
}

// Adds the gradients [begin, end). Several are read before the first is added.
SOK_DEVICE Piece SumRange(const Gradients& g, uint32_t begin, uint32_t end, int piece) {
  constexpr int kAtOnce = 4;
  Piece sum = GradientPiece(g, begin, piece);
  uint32_t i = begin + 1;
  for (; i + kAtOnce <= end; i += kAtOnce) {
    Piece read[kAtOnce];
    SOK_UNROLL
    for (int k = 0; k < kAtOnce; ++k) read[k] = GradientPiece(g, i + k, piece);
    SOK_UNROLL
    for (int k = 0; k < kAtOnce; ++k) AddPiece(&sum, read[k]);
  }
  for (; i < end; ++i) AddPiece(&sum, GradientPiece(g, i, piece));
  return sum;
}

// Returns a piece of the sum of a segment's gradients.
SOK_DEVICE Piece SumSegment(const Gradients& g, uint64_t u, int piece) {
  const uint32_t begin = g.starts[u], end = g.starts[u + 1];
  const uint32_t first = g.first_chunk[u];
  if (first == kNoChunk) return SumRange(g, begin, end, piece);
  const int pieces = PiecesOf(g.dim);
  const Piece* const sums = reinterpret_cast<const Piece*>(g.chunk_sums);
  const uint32_t chunks = (end - begin + kChunk - 1) / kChunk;
  Piece sum = sums[static_cast<uint64_t>(first) * pieces + piece];
  for (uint32_t c = 1; c < chunks; ++c) {
    AddPiece(&sum, sums[static_cast<uint64_t>(first + c) * pieces + piece]);
  }
  return sum;
}

}  // namespace sok::gpu

// Sums each chunk: its parts first, one gradient after another, then the sums of the parts.
SOK_KERNEL(SumChunks, sok::gpu::SumArguments) {
  using namespace sok::gpu;
  SOK_SHARED Piece parts[kThreads];
  const Gradients& g = a.gradients;
  const int pieces = PiecesOf(g.dim);
  const int width = pieces < kThreads ? pieces : kThreads;  // pieces that are summed at once
  const uint32_t count = kThreads / width;                  // parts of a chunk
  const uint32_t chunks = *g.chunk_count;
  for (uint32_t c = BlockIndex(); c < chunks; c += BlockCount()) {
    const Chunk chunk = g.chunks[c];
    const uint32_t each = (chunk.end - chunk.begin + count - 1) / count;
    const uint32_t filled = (chunk.end - chunk.begin + each - 1) / each;
    for (int first = 0; first < pieces; first += width) {
      for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
        const uint32_t part = static_cast<uint32_t>(t / width);
        const int piece = first + t % width;
        if (part >= filled || piece >= pieces) continue;
        const uint32_t begin = chunk.begin + part * each;
        const uint32_t end = begin + each < chunk.end ? begin + each : chunk.end;
        parts[t] = SumRange(g, begin, end, piece);
      }
      Barrier();
      for (int t = FirstThread(); t < width; t += ThreadStep()) {
        if (first + t >= pieces) continue;
        Piece sum = parts[t];
        for (uint32_t part = 1; part < filled; ++part) AddPiece(&sum, parts[part * width + t]);
        reinterpret_cast<Piece*>(g.chunk_sums)[static_cast<uint64_t>(c) * pieces + first + t] = sum;
      }
      Barrier();
    }
  }
}

// Writes the sum of every segment.
SOK_KERNEL(StoreSums, sok::gpu::SumArguments) {
  using namespace sok::gpu;
  const int pieces = PiecesOf(a.gradients.dim);
  const uint64_t items = static_cast<uint64_t>(*a.gradients.segments) * pieces;
  for (uint64_t i = FirstItem(); i < items; i += ItemStep()) {
    reinterpret_cast<Piece*>(a.sums)[i] =
        SumSegment(a.gradients, i / pieces, static_cast<int>(i % pieces));
  }
}
