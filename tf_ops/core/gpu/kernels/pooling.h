// Pools the rows of bags, and computes gradients of rows and weights from gradients of vectors. The
// formulas are the same as in core/collection/pooling.h.
#pragma once

#include "core/gpu/kernels/rows.h"

namespace sok::gpu {

SOK_DEVICE uint64_t BeginOfBag(const BagsOfIds& bags, uint64_t bag) {
  return bags.splits == nullptr ? bag * bags.length : static_cast<uint64_t>(bags.splits[bag]);
}

// Returns the factor of a bag's sum: 1 / divisor, or 0 if the divisor is 0.
SOK_DEVICE float ScaleOfBag(const BagsOfIds& bags, uint64_t begin, uint64_t end) {
  const bool is_mean = bags.combiner == Combiner::kMean;
  if (!is_mean && bags.combiner != Combiner::kSqrtN) return 1.0f;
  float divisor = bags.weights == nullptr ? static_cast<float>(end - begin) : 0.0f;
  for (uint64_t id = begin; bags.weights != nullptr && id < end; ++id) {
    const float weight = bags.weights[id];
    divisor += is_mean ? weight : weight * weight;
  }
  if (!is_mean) divisor = std::sqrt(divisor);
  return divisor == 0.0f ? 0.0f : 1.0f / divisor;
}

SOK_DEVICE float WeightOf(const BagsOfIds& bags, uint64_t id) {
  return bags.weights == nullptr ? 1.0f : bags.weights[id];
}

// Reads element j of the vector of a bag.
SOK_DEVICE float ReadVector(const BagFloats& from, uint64_t bag, int j) {
  const uint64_t at = bag * from.stride + static_cast<uint64_t>(j);
  if (from.element == Element::kFloat32) return static_cast<const float*>(from.data)[at];
  if (from.element == Element::kBFloat16) {
    return ToFloat(static_cast<const BFloat16*>(from.data)[at]);
  }
  return ToFloat(static_cast<const Float16*>(from.data)[at]);
}

SOK_DEVICE Piece ReadVectorPiece(const BagFloats& from, uint64_t bag, int piece) {
  if (from.is_aligned && from.element == Element::kFloat32) {
    return static_cast<const Piece*>(from.data)[bag * from.stride / kPiece + piece];
  }
  Piece read;
  SOK_UNROLL
  for (int k = 0; k < kPiece; ++k) read.x[k] = ReadVector(from, bag, piece * kPiece + k);
  return read;
}

SOK_DEVICE void WriteVectorPiece(const BagFloats& to, uint64_t bag, int piece, const Piece& value) {
  if (to.is_aligned) {
    WritePiece(to.data, to.element, bag * to.stride / kPiece + piece, value);
    return;
  }
  const uint64_t at = bag * to.stride + static_cast<uint64_t>(piece) * kPiece;
  SOK_UNROLL
  for (int k = 0; k < kPiece; ++k) {
    if (to.element == Element::kFloat32) {
      static_cast<float*>(to.data)[at + k] = value.x[k];
    } else if (to.element == Element::kBFloat16) {
      static_cast<BFloat16*>(to.data)[at + k] = FromFloat<BFloat16>(value.x[k]);
    } else {
      static_cast<Float16*>(to.data)[at + k] = FromFloat<Float16>(value.x[k]);
    }
  }
}

// Returns whether an element is the mark of an unused gradient.
SOK_DEVICE bool IsUnused(float element) {
  uint32_t bits;
  std::memcpy(&bits, &element, sizeof(bits));
  return bits == kUnusedBits;
}

// Returns piece `piece` of a row with the mark of an unused gradient.
SOK_DEVICE Piece UnusedPiece(int piece) {
  Piece marked = {};
  const uint32_t bits = kUnusedBits;
  if (piece == 0) std::memcpy(&marked.x[0], &bits, sizeof(bits));
  return marked;
}

// Returns a piece of the row of an id; `rows` is (ids, dim).
SOK_DEVICE Piece ReadIdPiece(const float* rows, int dim, uint64_t id, int piece) {
  return reinterpret_cast<const Piece*>(rows)[id * PiecesOf(dim) + piece];
}

}  // namespace sok::gpu

// Adds the rows of each bag in the order of its ids, or takes the maximum of each element.
SOK_KERNEL(Pool, sok::gpu::PoolArguments) {
  using namespace sok::gpu;
  const int pieces = PiecesOf(a.rows.dim);
  for (uint64_t i = FirstItem(); i < a.bags.bags * pieces; i += ItemStep()) {
    const uint64_t bag = i / pieces;
    const int piece = static_cast<int>(i % pieces);
    const uint64_t begin = BeginOfBag(a.bags, bag), end = BeginOfBag(a.bags, bag + 1);
    Piece sum = {};
    for (uint64_t id = begin; id < end; ++id) {
      const Piece row =
          ReadPiece(a.rows, a.numbers[id], KeyAt(a.keys, id), piece, a.fills_start, a.start);
      const float weight = WeightOf(a.bags, id);
      SOK_UNROLL
      for (int k = 0; k < kPiece; ++k) {
        if (a.bags.combiner == Combiner::kMax) {
          sum.x[k] = id == begin || row.x[k] > sum.x[k] ? row.x[k] : sum.x[k];
        } else {
          sum.x[k] = id == begin ? weight * row.x[k] : sum.x[k] + weight * row.x[k];
        }
      }
    }
    const float scale = ScaleOfBag(a.bags, begin, end);
    SOK_UNROLL
    for (int k = 0; k < kPiece; ++k) sum.x[k] *= scale;
    WriteVectorPiece(a.out, bag, piece, sum);
  }
}

// Writes the gradient of the row of each id.
SOK_KERNEL(PoolGradient, sok::gpu::PoolGradientArguments) {
  using namespace sok::gpu;
  const int pieces = PiecesOf(a.dim);
  Piece* const gradients = reinterpret_cast<Piece*>(a.gradients);
  for (uint64_t i = FirstItem(); i < a.bags.bags * pieces; i += ItemStep()) {
    const uint64_t bag = i / pieces;
    const int piece = static_cast<int>(i % pieces);
    const uint64_t begin = BeginOfBag(a.bags, bag), end = BeginOfBag(a.bags, bag + 1);
    if (a.skips_marked && IsUnused(ReadVector(a.upstream, bag, 0))) {
      const Piece marked = UnusedPiece(piece);
      for (uint64_t id = begin; id < end; ++id) gradients[id * pieces + piece] = marked;
      continue;
    }
    const Piece upstream = ReadVectorPiece(a.upstream, bag, piece);
    if (a.bags.combiner == Combiner::kMax) {
      // The gradient of an element goes to the first row that has the maximum.
      uint64_t winners[kPiece] = {};
      Piece most = {};
      for (uint64_t id = begin; id < end; ++id) {
        const Piece row = ReadIdPiece(a.rows, a.dim, id, piece);
        SOK_UNROLL
        for (int k = 0; k < kPiece; ++k) {
          if (id != begin && !(row.x[k] > most.x[k])) continue;
          winners[k] = id;
          most.x[k] = row.x[k];
        }
      }
      for (uint64_t id = begin; id < end; ++id) {
        Piece share;
        SOK_UNROLL
        for (int k = 0; k < kPiece; ++k) share.x[k] = winners[k] == id ? upstream.x[k] : 0.0f;
        gradients[id * pieces + piece] = share;
      }
      continue;
    }
    const float scale = ScaleOfBag(a.bags, begin, end);
    for (uint64_t id = begin; id < end; ++id) {
      const float factor = a.bags.weights == nullptr ? scale : scale * a.bags.weights[id];
      Piece share;
      SOK_UNROLL
      for (int k = 0; k < kPiece; ++k) share.x[k] = factor * upstream.x[k];
      gradients[id * pieces + piece] = share;
    }
  }
}

// With g the upstream gradient of a bag and y = s / d its vector, s = sum(w_i x_i):
//   sum    g.x_i
//   mean   (g.x_i - g.y) / d
//   sqrtn  (g.x_i - (g.y / d) w_i) / d
SOK_KERNEL(WeightGradient, sok::gpu::WeightGradientArguments) {
  using namespace sok::gpu;
  const int dim = DimOf(a.dim);
  for (uint64_t bag = FirstItem(); bag < a.bags.bags; bag += ItemStep()) {
    const uint64_t begin = BeginOfBag(a.bags, bag), end = BeginOfBag(a.bags, bag + 1);
    const float scale = ScaleOfBag(a.bags, begin, end);
    float of_vector = 0.0f;  // g.y
    for (uint64_t id = begin; id < end; ++id) {
      float product = 0.0f;
      for (int j = 0; j < dim; ++j) {
        product += ReadVector(a.upstream, bag, j) * a.rows[id * dim + j];
      }
      a.gradients[id] = product;
      of_vector += scale * a.bags.weights[id] * product;
    }
    if (a.bags.combiner != Combiner::kMean && a.bags.combiner != Combiner::kSqrtN) continue;
    for (uint64_t id = begin; id < end; ++id) {
      const float share =
          a.bags.combiner == Combiner::kMean ? of_vector : of_vector * scale * a.bags.weights[id];
      a.gradients[id] = (a.gradients[id] - share) * scale;
    }
  }
}
