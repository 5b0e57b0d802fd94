// Hashed bags on a GPU. Each thread computes up to kBagPiece elements of a bag's vector, and reads
// the bag's entries in their order. The program is compiled without fused multiply-add, so its
// results have the same bits as on the host.
//
// An invalid id or offset makes the bag's vector NaN and is recorded. The host does not wait for
// the GPU, so it raises the error at a later call.
#pragma once

#include "core/base/bfloat16.h"
#include "core/base/float16.h"
#include "core/gpu/kernels/bag_arguments.h"
#include "core/gpu/kernels/words.h"

namespace sok::gpu {

constexpr int kBagPiece = 4;

template <typename T>
struct BagSum {
  using Type = float;
};
template <>
struct BagSum<double> {
  using Type = double;
};

SOK_DEVICE float WidenElement(float x) { return x; }
SOK_DEVICE double WidenElement(double x) { return x; }
SOK_DEVICE float WidenElement(BFloat16 x) { return sok::ToFloat(x); }
SOK_DEVICE float WidenElement(Float16 x) { return sok::ToFloat(x); }

// These functions read a float of any type as the type of its sums, and write it back.
SOK_DEVICE void ReadFloat(const void* from, Element element, uint64_t i, float* x) {
  if (element == Element::kFloat32) {
    *x = static_cast<const float*>(from)[i];
  } else if (element == Element::kBFloat16) {
    *x = sok::ToFloat(static_cast<const BFloat16*>(from)[i]);
  } else {
    *x = sok::ToFloat(static_cast<const Float16*>(from)[i]);
  }
}
SOK_DEVICE void ReadFloat(const void* from, Element, uint64_t i, double* x) {
  *x = static_cast<const double*>(from)[i];
}
SOK_DEVICE void WriteFloat(void* to, Element element, uint64_t i, float x) {
  if (element == Element::kFloat32) {
    static_cast<float*>(to)[i] = x;
  } else if (element == Element::kBFloat16) {
    static_cast<BFloat16*>(to)[i] = FromFloat<BFloat16>(x);
  } else {
    static_cast<Float16*>(to)[i] = FromFloat<Float16>(x);
  }
}
SOK_DEVICE void WriteFloat(void* to, Element, uint64_t i, double x) {
  static_cast<double*>(to)[i] = x;
}

template <typename Sum>
SOK_DEVICE Sum NotANumber() {
  const uint32_t bits = 0x7fc00000u;
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

SOK_DEVICE void NoteFault(const BagInputs& bags, BagFaultKind kind, int64_t value, int64_t limit,
                          uint64_t place) {
  if (CompareAndSwap(bags.fault_is_taken, 0, 1) != 0) return;
  bags.fault->value = value;
  bags.fault->limit = limit;
  bags.fault->place = place;
  PublishToHost(reinterpret_cast<uint32_t*>(&bags.fault->kind), static_cast<uint32_t>(kind));
}

SOK_DEVICE int64_t IdAt(const BagInputs& bags, uint64_t entry) {
  return bags.wide_ids ? static_cast<const int64_t*>(bags.ids)[entry]
                       : static_cast<const int32_t*>(bags.ids)[entry];
}

// Returns whether an entry's id is valid for the table, and records a fault if it is not.
SOK_DEVICE bool IsGoodId(const BagInputs& bags, int64_t id, uint64_t entry) {
  if (static_cast<uint64_t>(id) < bags.num_embeddings) return true;
  NoteFault(bags, BagFaultKind::kId, id, static_cast<int64_t>(bags.num_embeddings), entry);
  return false;
}

SOK_DEVICE int64_t OffsetAt(const BagInputs& bags, uint64_t i) {
  return bags.wide_offsets ? static_cast<const int64_t*>(bags.offsets)[i]
                           : static_cast<const int32_t*>(bags.offsets)[i];
}

struct BagRange {
  uint64_t begin;
  uint64_t end;
  bool is_good;
};

// Returns the entries of a bag; none if its offsets are invalid.
SOK_DEVICE BagRange RangeOf(const BagInputs& bags, uint64_t bag) {
  if (bags.offsets == nullptr) return {bag * bags.width, (bag + 1) * bags.width, true};
  const int64_t entries = static_cast<int64_t>(bags.entries);
  const bool is_last = bag + 1 == bags.bags;
  const int64_t begin = OffsetAt(bags, bag);
  const int64_t end = is_last && !bags.ends ? entries : OffsetAt(bags, bag + 1);
  if (bag == 0 && begin != 0) {
    NoteFault(bags, BagFaultKind::kFirstOffset, begin, 0, 0);
  } else if (begin < 0 || begin > entries) {
    NoteFault(bags, BagFaultKind::kOffset, begin, 0, bag);
  } else if (end < begin || end > entries) {
    NoteFault(bags, BagFaultKind::kOffset, end, begin, bag + 1);
  } else if (is_last && end != entries) {
    NoteFault(bags, BagFaultKind::kLastOffset, end, entries, bag + 1);
  } else {
    return {static_cast<uint64_t>(begin), static_cast<uint64_t>(end), true};
  }
  return {0, 0, false};
}

// Returns the `n` elements of an id's row that begin at `first`.
template <typename T, typename Sum>
SOK_DEVICE void ReadElements(const PositionArithmetic& positions, const T* weight, uint64_t id,
                             int first, int n, Sum* elements) {
  const uint64_t key = positions.KeyOf(id);
  SOK_UNROLL
  for (int j = 0; j < kBagPiece; ++j) {
    if (j >= n) break;
    const Sum x = WidenElement(weight[positions.Position(id, key, first + j)]);
    elements[j] = positions.Minus(key, first + j) ? -x : x;
  }
}

template <typename T>
SOK_DEVICE void RunForward(const BagForwardArguments& a) {
  using Sum = typename BagSum<T>::Type;
  const BagInputs& bags = a.bags;
  const int dim = bags.positions.dim;
  const uint64_t pieces = static_cast<uint64_t>((dim + kBagPiece - 1) / kBagPiece);
  for (uint64_t i = FirstItem(); i < bags.bags * pieces; i += ItemStep()) {
    const uint64_t bag = i / pieces;
    const int first = static_cast<int>(i % pieces) * kBagPiece;
    const int n = dim - first < kBagPiece ? dim - first : kBagPiece;
    const BagRange range = RangeOf(bags, bag);
    bool is_good = range.is_good;
    Sum result[kBagPiece] = {};
    int64_t winners[kBagPiece] = {-1, -1, -1, -1};
    int64_t count = 0;
    for (uint64_t e = range.begin; e < range.end; ++e) {
      const int64_t id = IdAt(bags, e);
      if (!IsGoodId(bags, id, e)) {
        is_good = false;
        continue;
      }
      if (id == bags.padding) continue;
      Sum row[kBagPiece];
      ReadElements(bags.positions, static_cast<const T*>(a.weight), static_cast<uint64_t>(id),
                   first, n, row);
      Sum scale = 1;
      if (a.scales != nullptr) ReadFloat(a.scales, a.out_element, e, &scale);
      SOK_UNROLL
      for (int j = 0; j < kBagPiece; ++j) {
        if (j >= n) break;
        if (!bags.is_max) {
          result[j] += a.scales == nullptr ? row[j] : row[j] * scale;
        } else if (count == 0 || row[j] > result[j] ||
                   (row[j] != row[j] && result[j] == result[j])) {
          // A NaN wins against numbers.
          result[j] = row[j];
          winners[j] = static_cast<int64_t>(e);
        }
      }
      ++count;
    }
    SOK_UNROLL
    for (int j = 0; j < kBagPiece; ++j) {
      if (j >= n) break;
      if (bags.is_mean && count > 0) result[j] /= static_cast<Sum>(count);
      const uint64_t at = bag * static_cast<uint64_t>(dim) + static_cast<uint64_t>(first + j);
      WriteFloat(a.out, a.out_element, at, is_good ? result[j] : NotANumber<Sum>());
      if (a.winners != nullptr) a.winners[at] = is_good ? winners[j] : -1;
    }
  }
}

}  // namespace sok::gpu

SOK_KERNEL(BagForward, sok::gpu::BagForwardArguments) {
  using namespace sok::gpu;
  if (a.weight_element == Element::kFloat32) {
    RunForward<float>(a);
  } else if (a.weight_element == Element::kBFloat16) {
    RunForward<sok::BFloat16>(a);
  } else if (a.weight_element == Element::kFloat16) {
    RunForward<sok::Float16>(a);
  } else {
    RunForward<double>(a);
  }
}
