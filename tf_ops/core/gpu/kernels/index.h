// The index of a table on a GPU: finds the rows of keys, and makes and erases them.
//
// Any 64-bit key is legal. The hash of a key chooses its bucket. If the bucket is full, the key is
// in one of the next buckets, at the latest in the first bucket that no key has passed.
//
// Rows are made by several kernels, one after another, so that no thread waits for a thread that
// may not be running: Claim takes a place for each new key, Make gives the places rows, Settle
// updates the counters, Link writes the row of every key.
#pragma once

#include "core/gpu/kernels/arguments.h"
#include "core/gpu/kernels/words.h"

namespace sok::gpu {

SOK_DEVICE uint64_t HomeBucket(const Index& index, uint64_t key) {
  return MultiplyHigh(Mix64(key), index.count);
}

SOK_DEVICE uint64_t NextBucket(const Index& index, uint64_t bucket) {
  return bucket + 1 == index.count ? 0 : bucket + 1;
}

// Reads a bucket that no thread changes meanwhile.
SOK_DEVICE Bucket LoadBucket(const Bucket* bucket) {
#ifdef __CUDACC_RTC__
  union {
    uint4 parts[4];
    Bucket bucket;
  } loaded;
  const uint4* const parts = reinterpret_cast<const uint4*>(bucket);
  SOK_UNROLL
  for (int i = 0; i < 4; ++i) loaded.parts[i] = __ldg(parts + i);
  return loaded.bucket;
#else
  return *bucket;
#endif
}

// Returns the row of a key, or kNoRow.
SOK_DEVICE uint32_t FindRow(const Index& index, uint64_t key) {
  uint64_t at = HomeBucket(index, key);
  for (uint64_t looked = 0; looked < index.count; ++looked) {
    const Bucket bucket = LoadBucket(index.buckets + at);
    uint32_t row = kNoRow;
    SOK_UNROLL
    for (int s = 0; s < kBucketKeys; ++s) {
      if (bucket.keys[s] == key && (bucket.state >> (kReady + s) & 1u) != 0) row = bucket.rows[s];
    }
    if (row != kNoRow || (bucket.state & kPassed) == 0) return row;
    at = NextBucket(index, at);
  }
  return kNoRow;
}

// Returns the place of a key, with kIsNew if the key is new. The index must have room. A new key
// goes to the first bucket with room on its way. Two threads with the same new key choose the same
// bucket: buckets only get fuller, and the slower thread notices the change and starts again.
SOK_DEVICE uint32_t ClaimPlace(const Index& index, uint64_t key) {
  for (;;) {
    uint64_t at = HomeBucket(index, key);
    uint64_t candidate = 0;
    uint32_t candidate_state = kClaimed;  // no room
    // After erasures every bucket may be marked as passed, so the search ends after one round.
    for (uint64_t looked = 0; looked < index.count; ++looked) {
      Bucket* const bucket = index.buckets + at;
      uint32_t state = LoadFresh(&bucket->state);
      // Once a place is claimed, another thread writes its key within a few instructions.
      while ((state & kClaimed) != (state >> kReady & kClaimed)) state = LoadFresh(&bucket->state);
      for (int s = 0; s < kBucketKeys; ++s) {
        if ((state >> s & 1u) != 0 && LoadFresh(&bucket->keys[s]) == key) {
          return static_cast<uint32_t>(at * kBucketKeys + s);
        }
      }
      const bool has_room = (state & kClaimed) != kClaimed;
      const bool is_chosen = (candidate_state & kClaimed) != kClaimed;
      if (has_room && !is_chosen) {
        candidate = at;
        candidate_state = state;
      }
      if ((state & kPassed) == 0) {
        if (has_room || is_chosen) break;
        FetchOr(&bucket->state, kPassed);
      }
      at = NextBucket(index, at);
    }
    const int s = LowestBit(~candidate_state & kClaimed);
    if (s < 0) continue;  // other threads took the last place that was free
    Bucket* const bucket = index.buckets + candidate;
    const uint32_t claimed = candidate_state | 1u << s;
    if (CompareAndSwap(&bucket->state, candidate_state, claimed) != candidate_state) continue;
    StoreFresh(&bucket->keys[s], key);
    StoreFresh(&bucket->rows[s], kNoRow);
    Publish(&bucket->state, 1u << (kReady + s));
    return static_cast<uint32_t>(candidate * kBucketKeys + s) | kIsNew;
  }
}

SOK_DEVICE uint32_t* RowOfPlace(const Index& index, uint32_t place) {
  place &= ~kIsNew;
  return &index.buckets[place / kBucketKeys].rows[place % kBucketKeys];
}

}  // namespace sok::gpu

SOK_KERNEL(Find, sok::gpu::FindArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) a.rows[i] = FindRow(a.index, a.keys[i]);
}

SOK_KERNEL(CountAbsent, sok::gpu::CountArguments) {
  using namespace sok::gpu;
  SOK_SHARED uint32_t count;
  if (FirstThread() == 0) count = 0;
  Barrier();
  for (uint64_t tile = BlockIndex(); tile * kThreads < a.n; tile += BlockCount()) {
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      const uint64_t i = tile * kThreads + t;
      if (i < a.n && a.rows[i] == kNoRow) FetchAdd(&count, 1);
    }
  }
  Barrier();
  if (FirstThread() == 0 && count != 0) FetchAdd(a.count, count);
}

SOK_KERNEL(Claim, sok::gpu::ClaimArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) {
    if (a.rows[i] == kNoRow) a.places[i] = ClaimPlace(a.index, a.keys[i]);
  }
}

SOK_KERNEL(Make, sok::gpu::MakeArguments) {
  using namespace sok::gpu;
  SOK_SHARED uint32_t count;
  SOK_SHARED uint32_t base;
  SOK_SHARED uint32_t tickets[kThreads];
  const uint32_t free = a.counters->free;
  const uint32_t end = a.counters->end;
  for (uint64_t tile = BlockIndex(); tile * kThreads < a.n; tile += BlockCount()) {
    if (FirstThread() == 0) count = 0;
    Barrier();
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      const uint64_t i = tile * kThreads + t;
      const bool is_new = i < a.n && a.rows[i] == kNoRow && (a.places[i] & kIsNew) != 0;
      tickets[t] = is_new ? FetchAdd(&count, 1) : kNoRow;
    }
    Barrier();
    if (FirstThread() == 0) base = count == 0 ? 0 : FetchAdd(&a.counters->made, count);
    Barrier();
    for (int t = FirstThread(); t < kThreads; t += ThreadStep()) {
      if (tickets[t] == kNoRow) continue;
      const uint64_t i = tile * kThreads + t;
      const uint32_t ticket = base + tickets[t];
      const uint32_t row = ticket < free ? a.free_rows[free - 1 - ticket] : end + (ticket - free);
      *RowOfPlace(a.index, a.places[i]) = row;
      a.row_keys[row] = a.keys[i];
      a.metas[row] = {0, a.now};
      a.made[ticket] = row;
      if (a.makers != nullptr) a.makers[ticket] = static_cast<uint32_t>(i);
    }
    Barrier();
  }
}

SOK_KERNEL(Settle, sok::gpu::SettleArguments) {
  using namespace sok::gpu;
  if (BlockIndex() != 0 || FirstThread() != 0) return;
  Counters& counters = *a.counters;
  const uint32_t again = counters.made < counters.free ? counters.made : counters.free;
  counters.free -= again;
  counters.end += counters.made - again;
  counters.made = 0;
  counters.calls += 1;
}

SOK_KERNEL(Link, sok::gpu::LinkArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) {
    if (a.rows[i] == kNoRow) a.rows[i] = *RowOfPlace(a.index, a.places[i]);
  }
}

SOK_KERNEL(Rehash, sok::gpu::RehashArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.from.count * kBucketKeys; i += ItemStep()) {
    const Bucket& bucket = a.from.buckets[i / kBucketKeys];
    const int s = static_cast<int>(i % kBucketKeys);
    if ((bucket.state >> s & 1u) == 0) continue;
    *RowOfPlace(a.to, ClaimPlace(a.to, bucket.keys[s])) = bucket.rows[s];
  }
}

SOK_KERNEL(Erase, sok::gpu::EraseArguments) {
  using namespace sok::gpu;
  for (uint64_t i = FirstItem(); i < a.n; i += ItemStep()) {
    const uint64_t key = a.keys[i];
    uint64_t at = HomeBucket(a.index, key);
    for (uint64_t looked = 0; looked < a.index.count; ++looked) {
      Bucket* const bucket = a.index.buckets + at;
      const uint32_t state = LoadFresh(&bucket->state);
      for (int s = 0; s < kBucketKeys; ++s) {
        const uint32_t bits = 1u << s | 1u << (kReady + s);
        if ((state >> s & 1u) == 0 || LoadFresh(&bucket->keys[s]) != key) continue;
        // Another thread may erase the same key.
        if ((FetchAnd(&bucket->state, ~bits) >> s & 1u) == 0) continue;
        a.free_rows[FetchAdd(&a.counters->free, 1)] = bucket->rows[s];
        FetchAdd(a.erased, 1);
      }
      if ((state & kPassed) == 0) break;
      at = NextBucket(a.index, at);
    }
  }
}

SOK_KERNEL(List, sok::gpu::ListArguments) {
  using namespace sok::gpu;
  const uint64_t places = (a.end - a.begin) * kBucketKeys;
  for (uint64_t i = FirstItem(); i < places; i += ItemStep()) {
    const Bucket& bucket = a.index.buckets[a.begin + i / kBucketKeys];
    const int s = static_cast<int>(i % kBucketKeys);
    if ((bucket.state >> s & 1u) == 0) continue;
    const uint32_t at = FetchAdd(a.count, 1);
    a.keys[at] = bucket.keys[s];
    a.rows[at] = bucket.rows[s];
  }
}
