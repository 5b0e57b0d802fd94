// Sums the gradients of rows that workers send to each other, and skips the unused ones.
#pragma once

#include "core/gpu/kernels/pooling.h"
#include "core/gpu/kernels/update.h"

SOK_KERNEL(StartSums, sok::gpu::StartSumsArguments) {
  using namespace sok::gpu;
  const int pieces = PiecesOf(a.dim);
  for (uint64_t i = FirstItem(); i < a.count * pieces; i += ItemStep()) {
    const int piece = static_cast<int>(i % pieces);
    reinterpret_cast<Piece*>(a.sums)[i] = a.marks_unused ? UnusedPiece(piece) : Piece{};
  }
}

SOK_KERNEL(PlaceSums, sok::gpu::PlaceSumsArguments) {
  using namespace sok::gpu;
  const Gradients& g = a.gradients;
  const int pieces = PiecesOf(g.dim);
  const uint64_t items = static_cast<uint64_t>(*g.segments) * pieces;
  for (uint64_t i = FirstItem(); i < items; i += ItemStep()) {
    const uint64_t u = i / pieces;
    const int piece = static_cast<int>(i % pieces);
    const uint64_t number = a.numbers[g.starts[u]];
    reinterpret_cast<Piece*>(a.sums)[number * pieces + piece] = SumSegment(g, u, piece);
  }
}

SOK_KERNEL(RestRows, sok::gpu::RestArguments) {
  using namespace sok::gpu;
  const uint64_t dim = static_cast<uint64_t>(DimOf(a.dim));
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) {
    if (IsUnused(a.gradients[i * dim])) a.numbers[i] = kNoRow;
  }
}
