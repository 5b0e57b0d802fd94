// Gradients of hashed bags on a GPU. The contribution of each entry to each position is written to
// memory, sorted by position and summed, without atomic additions of floats. Up to kLong values of
// a position are added one after another, in the order of the entries. More values are added in
// chunks, whose bounds depend only on the number of values.
#pragma once

#include "core/gpu/kernels/bags.h"

namespace sok::gpu {

// Returns the bag of an entry.
SOK_DEVICE uint64_t BagOf(const BagInputs& bags, uint64_t entry) {
  if (bags.offsets == nullptr) return entry / bags.width;
  uint64_t low = 0, high = bags.bags;  // the bag is in [low, high)
  while (low + 1 < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (OffsetAt(bags, middle) <= static_cast<int64_t>(entry)) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Writes element d of a unit: its position and its value.
template <typename Sum>
SOK_DEVICE void WriteValue(const BagValueArguments& a, uint64_t at, uint64_t id, uint64_t key,
                           int d, Sum value) {
  const PositionArithmetic& positions = a.bags.positions;
  const uint64_t place = positions.Position(id, key, d) - a.first_position;
  a.keys[at] = place < a.positions ? static_cast<uint32_t>(place) : a.positions;
  if (positions.Minus(key, d)) value = -value;
  if constexpr (sizeof(Sum) == sizeof(double)) {
    a.wide[at] = value;
  } else {
    std::memcpy(&a.values[at], &value, sizeof(value));
  }
}

template <typename Sum>
SOK_DEVICE void WriteEntry(const BagValueArguments& a, uint64_t unit, int first, int n) {
  const BagInputs& bags = a.bags;
  const uint64_t dim = static_cast<uint64_t>(bags.positions.dim);
  const uint64_t at = (unit - a.first_unit) * dim + static_cast<uint64_t>(first);
  const int64_t id = IdAt(bags, unit);
  if (!IsGoodId(bags, id, unit) || id == bags.padding) {
    for (int j = 0; j < n; ++j) a.keys[at + static_cast<uint64_t>(j)] = a.positions;
    return;
  }
  const uint64_t bag = BagOf(bags, unit);
  const uint64_t key = bags.positions.KeyOf(static_cast<uint64_t>(id));
  Sum scale = 1, count = 1;
  if (a.scales != nullptr) ReadFloat(a.scales, a.element, unit, &scale);
  if (bags.is_mean) {
    const BagRange range = RangeOf(bags, bag);
    count = static_cast<Sum>(a.counts != nullptr ? a.counts[bag]
                                                 : static_cast<int64_t>(range.end - range.begin));
    if (count == 0) count = 1;
  }
  for (int j = 0; j < n; ++j) {
    Sum value;
    ReadFloat(a.upstream, a.element, bag * dim + static_cast<uint64_t>(first + j), &value);
    if (bags.is_mean) value /= count;
    if (a.scales != nullptr) value *= scale;
    WriteValue(a, at + static_cast<uint64_t>(j), static_cast<uint64_t>(id), key, first + j, value);
  }
}

// Each element of a maximum adds its gradient only to its winner.
template <typename Sum>
SOK_DEVICE void WriteWinners(const BagValueArguments& a, uint64_t bag, int first, int n) {
  const BagInputs& bags = a.bags;
  const uint64_t dim = static_cast<uint64_t>(bags.positions.dim);
  for (int j = 0; j < n; ++j) {
    const uint64_t of_bag = bag * dim + static_cast<uint64_t>(first + j);
    const uint64_t at = of_bag - a.first_unit * dim;
    a.keys[at] = a.positions;
    const int64_t winner = a.winners[of_bag];
    if (winner == -1) continue;
    if (static_cast<uint64_t>(winner) >= bags.entries) {
      NoteFault(bags, BagFaultKind::kWinner, winner, static_cast<int64_t>(bags.entries), of_bag);
      continue;
    }
    const int64_t id = IdAt(bags, static_cast<uint64_t>(winner));
    if (!IsGoodId(bags, id, static_cast<uint64_t>(winner))) continue;
    Sum value;
    ReadFloat(a.upstream, a.element, of_bag, &value);
    const uint64_t key = bags.positions.KeyOf(static_cast<uint64_t>(id));
    WriteValue(a, at, static_cast<uint64_t>(id), key, first + j, value);
  }
}

template <typename Sum>
SOK_DEVICE void RunValues(const BagValueArguments& a) {
  const int dim = a.bags.positions.dim;
  const uint64_t pieces = static_cast<uint64_t>((dim + kBagPiece - 1) / kBagPiece);
  for (uint64_t i = FirstItem(); i < a.units * pieces; i += ItemStep()) {
    const uint64_t unit = a.first_unit + i / pieces;
    const int first = static_cast<int>(i % pieces) * kBagPiece;
    const int n = dim - first < kBagPiece ? dim - first : kBagPiece;
    if (a.bags.is_max) {
      WriteWinners<Sum>(a, unit, first, n);
    } else {
      WriteEntry<Sum>(a, unit, first, n);
    }
  }
}

SOK_DEVICE void ReadValue(const SortedValues& sorted, uint32_t at, float* value) {
  std::memcpy(value, &sorted.values[at], sizeof(float));
}
SOK_DEVICE void ReadValue(const SortedValues& sorted, uint32_t at, double* value) {
  *value = sorted.wide[sorted.values[at]];
}

// Adds the values [begin, end), at least one.
template <typename Sum>
SOK_DEVICE Sum SumValues(const SortedValues& sorted, uint32_t begin, uint32_t end) {
  Sum sum;
  ReadValue(sorted, begin, &sum);
  for (uint32_t i = begin + 1; i < end; ++i) {
    Sum value;
    ReadValue(sorted, i, &value);
    sum += value;
  }
  return sum;
}

// Sums a chunk: each thread of a block sums a part, then the parts are added two by two.
template <typename Sum>
SOK_DEVICE void RunChunks(const SortedValues& sorted, Sum* parts) {
  constexpr uint32_t kEach = kChunk / kThreads;
  const uint32_t chunks = *sorted.chunk_count;
  for (uint32_t c = BlockIndex(); c < chunks; c += BlockCount()) {
    const Chunk chunk = sorted.chunks[c];
    const uint32_t filled = (chunk.end - chunk.begin + kEach - 1) / kEach;
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      const uint32_t part = static_cast<uint32_t>(t);
      if (part >= filled) continue;
      const uint32_t begin = chunk.begin + part * kEach;
      parts[t] =
          SumValues<Sum>(sorted, begin, begin + kEach < chunk.end ? begin + kEach : chunk.end);
    }
    Barrier();
    for (int step = kThreads / 2; step > 0; step /= 2) {
      for (int t = FirstThread(); t < step; t += ThreadStep()) {
        if (static_cast<uint32_t>(t + step) < filled) parts[t] += parts[t + step];
      }
      Barrier();
    }
    if (FirstThread() == 0) static_cast<Sum*>(sorted.chunk_sums)[c] = parts[0];
    Barrier();
  }
}

template <typename Sum>
SOK_DEVICE void RunSums(const BagSumArguments& a) {
  const SortedValues& sorted = a.sorted;
  const uint32_t segments = *sorted.segments;
  for (uint64_t u = FirstItem(); u < segments; u += ItemStep()) {
    const uint32_t begin = sorted.starts[u], end = sorted.starts[u + 1];
    const uint32_t first = sorted.first_chunk[u];
    Sum sum;
    if (first == kNoChunk) {
      sum = SumValues<Sum>(sorted, begin, end);
    } else {
      const Sum* const sums = static_cast<const Sum*>(sorted.chunk_sums) + first;
      const uint32_t chunks = (end - begin + kChunk - 1) / kChunk;
      sum = sums[0];
      for (uint32_t c = 1; c < chunks; ++c) sum += sums[c];
    }
    const uint64_t position = a.first_position + sorted.keys[begin];
    if (a.positions == nullptr) {
      static_cast<Sum*>(a.sums)[position] += sum;
    } else {
      a.positions[u] = static_cast<int64_t>(position);
      WriteFloat(a.sums, a.element, u, sum);
    }
  }
}

template <typename T>
SOK_DEVICE void RunScales(const BagScaleArguments& a) {
  using Sum = typename BagSum<T>::Type;
  const BagInputs& bags = a.bags;
  const int dim = bags.positions.dim;
  for (uint64_t e = FirstItem(); e < bags.entries; e += ItemStep()) {
    const int64_t id = IdAt(bags, e);
    Sum sum = 0;
    if (!IsGoodId(bags, id, e)) {
      sum = NotANumber<Sum>();
    } else if (id != bags.padding) {
      const uint64_t row = BagOf(bags, e) * static_cast<uint64_t>(dim);
      for (int first = 0; first < dim; first += kBagPiece) {
        const int n = dim - first < kBagPiece ? dim - first : kBagPiece;
        Sum elements[kBagPiece];
        ReadElements(bags.positions, static_cast<const T*>(a.weight), static_cast<uint64_t>(id),
                     first, n, elements);
        for (int j = 0; j < n; ++j) {
          Sum upstream;
          ReadFloat(a.upstream, a.element, row + static_cast<uint64_t>(first + j), &upstream);
          sum += upstream * elements[j];
        }
      }
    }
    WriteFloat(a.factors, a.element, e, sum);
  }
}

}  // namespace sok::gpu

SOK_KERNEL(BagCounts, sok::gpu::BagCountArguments) {
  using namespace sok::gpu;
  for (uint64_t bag = FirstItem(); bag < a.bags.bags; bag += ItemStep()) {
    const BagRange range = RangeOf(a.bags, bag);
    int64_t count = 0;
    for (uint64_t e = range.begin; e < range.end; ++e) count += IdAt(a.bags, e) != a.bags.padding;
    a.counts[bag] = count;
  }
}

SOK_KERNEL(BagValues, sok::gpu::BagValueArguments) {
  using namespace sok::gpu;
  if (a.wide == nullptr) {
    RunValues<float>(a);
  } else {
    RunValues<double>(a);
  }
}

SOK_KERNEL(BagChunks, sok::gpu::SortedValues) {
  using namespace sok::gpu;
  SOK_SHARED double parts[kThreads];
  if (a.wide == nullptr) {
    RunChunks(a, reinterpret_cast<float*>(parts));
  } else {
    RunChunks(a, parts);
  }
}

SOK_KERNEL(BagSums, sok::gpu::BagSumArguments) {
  using namespace sok::gpu;
  if (a.sorted.wide == nullptr) {
    RunSums<float>(a);
  } else {
    RunSums<double>(a);
  }
}

SOK_KERNEL(BagNarrow, sok::gpu::BagNarrowArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) {
    WriteFloat(a.to, a.element, i, a.from[i]);
  }
}

SOK_KERNEL(BagScales, sok::gpu::BagScaleArguments) {
  using namespace sok::gpu;
  if (a.weight_element == Element::kFloat32) {
    RunScales<float>(a);
  } else if (a.weight_element == Element::kBFloat16) {
    RunScales<sok::BFloat16>(a);
  } else if (a.weight_element == Element::kFloat16) {
    RunScales<sok::Float16>(a);
  } else {
    RunScales<double>(a);
  }
}
