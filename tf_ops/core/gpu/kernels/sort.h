// Sorts numbers by their digits, the lowest digit first, and finds the segments of equal numbers.
// Equal numbers keep their order, so results that depend on the order are the same in every run.
#pragma once

#include "core/gpu/kernels/arguments.h"
#include "core/gpu/kernels/words.h"

namespace sok::gpu {

SOK_DEVICE uint32_t DigitOf(const SortArguments& a, uint64_t i) {
  const uint32_t key = a.keys[i] < a.most ? a.keys[i] : a.most;
  return key >> a.shift & (kDigits - 1);
}

// Replaces each of the kThreads values by the sum of the values before it, and returns the sum of
// all values. `scratch` has 2 * kThreads elements.
SOK_DEVICE uint32_t ScanBlock(uint32_t* values, uint32_t* scratch) {
  for (int t = FirstThread(); t < kThreads; t += ThreadStep()) scratch[t] = values[t];
  Barrier();
  int from = 0;
  for (int step = 1; step < kThreads; step *= 2) {
    const uint32_t* const source = scratch + from * kThreads;
    uint32_t* const target = scratch + (1 - from) * kThreads;
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      target[t] = source[t] + (t >= step ? source[t - step] : 0);
    }
    Barrier();
    from = 1 - from;
  }
  const uint32_t* const sums = scratch + from * kThreads;
  for (int t = FirstThread(); t < kThreads; t += ThreadStep()) values[t] = t == 0 ? 0 : sums[t - 1];
  const uint32_t total = sums[kThreads - 1];
  Barrier();
  return total;
}

// Returns whether element i begins a segment.
SOK_DEVICE bool IsHead(const SegmentArguments& a, uint64_t i) {
  return i < a.n && (i == 0 || a.keys[i] != a.keys[i - 1]);
}

// The counters of a tile are ordered by digit, and within a digit by thread. After every 64
// half-words a word is unused, so that the threads of a scan use different banks.
SOK_DEVICE int CounterPlace(int flat) { return flat + (flat >> 6) * 2; }

}  // namespace sok::gpu

// Counts the digits of each tile.
SOK_KERNEL(CountDigits, sok::gpu::SortArguments) {
  using namespace sok::gpu;
  SOK_SHARED uint32_t counts[kDigits];
  const uint64_t tiles = (a.n + kTile - 1) / kTile;
  for (uint64_t tile = BlockIndex(); tile < tiles; tile += BlockCount()) {
    for (int t = FirstThread(); t < kDigits; t += ThreadStep()) counts[t] = 0;
    Barrier();
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      for (int k = 0; k < kItemsOfThread; ++k) {
        const uint64_t i = tile * kTile + static_cast<uint64_t>(k) * kThreads + t;
        if (i < a.n) FetchAdd(&counts[DigitOf(a, i)], 1);
      }
    }
    Barrier();
    for (int t = FirstThread(); t < kDigits; t += ThreadStep()) {
      a.counts[t * tiles + tile] = counts[t];
    }
    Barrier();
  }
}

// Replaces the counts of each digit by the sums over the tiles before, and writes the digit's total
// after all counts. A block handles one digit at a time.
SOK_KERNEL(ScanDigits, sok::gpu::SortArguments) {
  using namespace sok::gpu;
  SOK_SHARED uint32_t values[kThreads];
  SOK_SHARED uint32_t scratch[2 * kThreads];
  const uint64_t tiles = (a.n + kTile - 1) / kTile;
  for (uint32_t digit = BlockIndex(); digit < kDigits; digit += BlockCount()) {
    uint32_t* const counts = a.counts + digit * tiles;
    uint32_t before = 0;
    for (uint64_t first = 0; first < tiles; first += kThreads) {
      for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
        values[t] = first + t < tiles ? counts[first + t] : 0;
      }
      Barrier();
      const uint32_t total = ScanBlock(values, scratch);
      for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
        if (first + t < tiles) counts[first + t] = before + values[t];
      }
      before += total;
      Barrier();
    }
    if (FirstThread() == 0) a.counts[kDigits * tiles + digit] = before;
  }
}

// Replaces each number by the sum of the numbers before it. Runs as one block.
SOK_KERNEL(Scan, sok::gpu::ScanArguments) {
  using namespace sok::gpu;
  SOK_SHARED uint32_t sums[kThreads];
  SOK_SHARED uint32_t scratch[2 * kThreads];
  if (BlockIndex() != 0) return;
  const uint64_t each = (a.n + kThreads - 1) / kThreads;
  for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
    uint32_t sum = 0;
    for (uint64_t i = each * t; i < each * (t + 1) && i < a.n; ++i) sum += a.values[i];
    sums[t] = sum;
  }
  Barrier();
  ScanBlock(sums, scratch);
  for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
    uint32_t sum = sums[t];
    for (uint64_t i = each * t; i < each * (t + 1) && i < a.n; ++i) {
      const uint32_t value = a.values[i];
      a.values[i] = sum;
      sum += value;
    }
  }
}

// Moves the elements of each tile to where their digits belong.
SOK_KERNEL(MoveByDigit, sok::gpu::SortArguments) {
  using namespace sok::gpu;
  constexpr int kCounters = kDigits * kThreads;
  SOK_SHARED uint16_t counters[kCounters + kCounters / 64 * 2];
  SOK_SHARED uint32_t sums[kThreads];
  SOK_SHARED uint32_t scratch[2 * kThreads];
  SOK_SHARED uint32_t begins[kDigits];
  const uint64_t tiles = (a.n + kTile - 1) / kTile;
  for (uint64_t tile = BlockIndex(); tile < tiles; tile += BlockCount()) {
    // Each thread has kItemsOfThread adjacent elements.
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      for (int digit = 0; digit < kDigits; ++digit) {
        counters[CounterPlace(digit * kThreads + t)] = 0;
      }
      for (int k = 0; k < kItemsOfThread; ++k) {
        const uint64_t i = tile * kTile + static_cast<uint64_t>(t) * kItemsOfThread + k;
        if (i < a.n) {
          const int digit = static_cast<int>(DigitOf(a, i));
          counters[CounterPlace(digit * kThreads + t)] += 1;
        }
      }
    }
    Barrier();
    // Each counter becomes the sum of the counters before it. Each thread has kDigits of them.
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      uint32_t sum = 0;
      for (int k = 0; k < kDigits; ++k) sum += counters[CounterPlace(t * kDigits + k)];
      sums[t] = sum;
    }
    Barrier();
    ScanBlock(sums, scratch);
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      uint32_t sum = sums[t];
      for (int k = 0; k < kDigits; ++k) {
        uint16_t& counter = counters[CounterPlace(t * kDigits + k)];
        const uint16_t count = counter;
        counter = static_cast<uint16_t>(sum);
        sum += count;
      }
    }
    Barrier();
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      sums[t] = t < kDigits ? a.counts[kDigits * tiles + t] : 0;
    }
    Barrier();
    ScanBlock(sums, scratch);
    for (int t = FirstThread(); t < kDigits; t += ThreadStep()) {
      begins[t] = sums[t] + a.counts[t * tiles + tile] - counters[CounterPlace(t * kThreads)];
    }
    Barrier();
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      for (int k = 0; k < kItemsOfThread; ++k) {
        const uint64_t i = tile * kTile + static_cast<uint64_t>(t) * kItemsOfThread + k;
        if (i >= a.n) break;
        const int digit = static_cast<int>(DigitOf(a, i));
        uint16_t& counter = counters[CounterPlace(digit * kThreads + t)];
        const uint32_t to = begins[digit] + counter;
        counter += 1;
        a.sorted_keys[to] = a.keys[i] < a.most ? a.keys[i] : a.most;
        a.sorted_values[to] = a.values == nullptr ? static_cast<uint32_t>(i) : a.values[i];
      }
    }
    Barrier();
  }
}

// Counts the segments that begin in each tile.
SOK_KERNEL(CountHeads, sok::gpu::SegmentArguments) {
  using namespace sok::gpu;
  SOK_SHARED uint32_t count;
  const uint64_t tiles = (a.n + kTile - 1) / kTile;
  for (uint64_t tile = BlockIndex(); tile < tiles; tile += BlockCount()) {
    if (FirstThread() == 0) count = 0;
    Barrier();
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      uint32_t heads = 0;
      for (int k = 0; k < kItemsOfThread; ++k) {
        heads += IsHead(a, tile * kTile + static_cast<uint64_t>(k) * kThreads + t);
      }
      FetchAdd(&count, heads);
    }
    Barrier();
    if (FirstThread() == 0) a.counts[tile] = count;
    Barrier();
  }
}

// Writes the beginning of each segment. `counts` has the number of segments before each tile.
SOK_KERNEL(WriteHeads, sok::gpu::SegmentArguments) {
  using namespace sok::gpu;
  SOK_SHARED uint32_t sums[kThreads];
  SOK_SHARED uint32_t scratch[2 * kThreads];
  const uint64_t tiles = (a.n + kTile - 1) / kTile;
  for (uint64_t tile = BlockIndex(); tile < tiles; tile += BlockCount()) {
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      uint32_t heads = 0;
      for (int k = 0; k < kItemsOfThread; ++k) {
        heads += IsHead(a, tile * kTile + static_cast<uint64_t>(t) * kItemsOfThread + k);
      }
      sums[t] = heads;
    }
    Barrier();
    const uint32_t total = ScanBlock(sums, scratch);
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      uint32_t at = a.counts[tile] + sums[t];
      for (int k = 0; k < kItemsOfThread; ++k) {
        const uint64_t i = tile * kTile + static_cast<uint64_t>(t) * kItemsOfThread + k;
        if (IsHead(a, i)) a.starts[at++] = static_cast<uint32_t>(i);
      }
    }
    if (FirstThread() == 0 && tile == tiles - 1) {
      const uint32_t all = a.counts[tile] + total;
      a.starts[all] = static_cast<uint32_t>(a.n);
      *a.segments = a.keys[a.n - 1] == a.missing ? all - 1 : all;
    }
    Barrier();
  }
}

// Cuts long segments into chunks.
SOK_KERNEL(CutChunks, sok::gpu::ChunkArguments) {
  using namespace sok::gpu;
  const uint32_t segments = *a.segments;
  for (uint64_t u = FirstItem(); u < segments; u += ItemStep()) {
    const uint32_t begin = a.starts[u], end = a.starts[u + 1];
    if (end - begin <= kLong) {
      a.first_chunk[u] = kNoChunk;
      continue;
    }
    const uint32_t chunks = (end - begin + kChunk - 1) / kChunk;
    const uint32_t first = FetchAdd(a.chunk_count, chunks);
    a.first_chunk[u] = first;
    for (uint32_t c = 0; c < chunks; ++c) {
      const uint32_t from = begin + c * kChunk;
      a.chunks[first + c] = {from, from + kChunk < end ? from + kChunk : end};
    }
  }
}

SOK_KERNEL(Rank, sok::gpu::RankArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) {
    const Meta& meta = a.metas[a.numbers[i]];
    a.ranks[i] = a.by_time ? meta.update_time : meta.update_num;
  }
}

SOK_KERNEL(Pick, sok::gpu::PickArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.k; i += ItemStep()) {
    a.keys[i] = a.row_keys[a.numbers[a.order[i]]];
  }
}
