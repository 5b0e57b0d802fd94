// Finds the number of a row by any 64-bit key: the open-addressing index of one shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/rows/hash_cells.h"
#include "core/rows/index_config.h"

namespace sok {

// Not thread-safe: the shard that owns it holds the lock.
//
// A lookup consists of three steps: Hash and Place, then Candidate, then Resolve. A batch runs each
// step over many keys, so that their memory reads overlap.
//
// It grows and shrinks piece by piece: Reserve and Trim move some bins of keys from an array to one
// of another size, as many as their argument asks for. Meanwhile a key's hash shows in which of the
// two arrays it is. The shards of a table have different series of sizes, so that they do not all
// grow at once.
class HashIndex {
 public:
  static constexpr uint32_t kNone = HashCells::kNone;

  HashIndex() = default;
  HashIndex(const IndexConfig& config, uint32_t shard)
      : phase_(static_cast<uint32_t>((uint64_t{shard} << kPhaseBits) >> config.shard_bits)) {}
  // Returns an index that takes at most kBytesAKey for each of `keys` keys, if it never has more
  // keys than that, while keys come and go.
  static HashIndex ForAtMost(uint64_t keys);
  static constexpr uint64_t kBytesAKey = 21;

  static uint64_t Hash(Key key, const IndexConfig&) { return Hash(key); }
  static uint64_t Hash(Key key) { return HashOfKey(key); }
  // The highest bits choose the shard, the lowest the cell and the tag.
  static uint32_t ShardOf(uint64_t hash, int shard_bits) {
    return static_cast<uint32_t>(hash >> (64 - shard_bits));
  }

  // Returns where a key with the hash would be. Prefetches what Candidate reads.
  uint32_t Place(uint64_t hash) const {
    const uint32_t which = WhichOf(hash);
    const uint64_t bin = arrays_[which].FirstBin(hash);
    arrays_[which].PrefetchControl(bin);
    return which << kWhichBit | static_cast<uint32_t>(bin);
  }

  // Returns the argument of Resolve for the key at a place, or kNone if there is no such key.
  // Prefetches the memory that Resolve reads.
  uint32_t Candidate(uint64_t hash, uint32_t place) const {
    const uint32_t which = place >> kWhichBit;
    return arrays_[which].Candidate(hash, place & kPlaceMask) | which << kWhichBit;
  }

  // Returns the row of the key, or kNone. Nothing may have changed since Place.
  uint32_t Resolve(Key key, uint64_t hash, uint32_t candidate) const {
    if (candidate >= HashCells::kElsewhere) return candidate == kNone ? kNone : Find(key, hash);
    const HashCells& array = arrays_[candidate >> kWhichBit];
    const uint32_t cell = candidate & kPlaceMask;
    return array.KeyAt(cell) == key ? array.RowAt(cell) : Find(key, hash);
  }

  uint32_t Find(Key key, uint64_t hash) const {
    const HashCells& array = Of(hash);
    const uint32_t cell = array.Find(key, hash);
    return cell == kNone ? kNone : array.RowAt(cell);
  }

  // Calls fn(i) for all i below n in turn, and prefetches the memory that a search for key_of(i)
  // reads. fn may erase keys, and insert those that have room reserved.
  template <typename KeyOf, typename Fn>
  void ForEachAhead(size_t n, const KeyOf& key_of, const Fn& fn) const {
    constexpr size_t kKeysAhead = 16;  // between one step of a search and the next
    uint32_t places[kKeysAhead];
    for (size_t i = 0; i < n + 2 * kKeysAhead; ++i) {
      if (i >= 2 * kKeysAhead) fn(i - 2 * kKeysAhead);
      uint32_t& place = places[i % kKeysAhead];
      if (i >= kKeysAhead && i - kKeysAhead < n) Candidate(Hash(key_of(i - kKeysAhead)), place);
      if (i < n) place = Place(Hash(key_of(i)));
    }
  }

  // Makes room for `more` keys beyond those that are there. On an error nothing has changed.
  Status Reserve(uint32_t more);

  // Inserts a key, which must be absent and have room reserved.
  void Insert(Key key, uint64_t hash, uint32_t row) { Of(hash).Insert(key, hash, row); }

  // Erases a key. Returns the row that it had, or kNone if it was absent.
  uint32_t Erase(Key key, uint64_t hash);

  // Gives memory back, a piece at a time, if the index has become far too large for its keys.
  // `erased` is the number of keys erased since the last call. Room that Reserve has made is not
  // reserved any more.
  void Trim(uint32_t erased);

  uint32_t size() const { return cells().size() + leaving().size(); }
  // Returns the memory that is or will soon be resident.
  size_t bytes() const;

  // Calls fn(key, row) for every key, in the order of the cells.
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    for (const HashCells& array : arrays_) array.ForEach(fn);
  }

 private:
  static constexpr int kPhaseBits = 10;
  static constexpr uint64_t kAll = UINT64_MAX;
  // Places and candidates say by their highest bit in which array they are.
  static constexpr int kWhichBit = 31;
  static constexpr uint32_t kPlaceMask = (uint32_t{1} << kWhichBit) - 1;

  bool moving() const { return leaving().bins() != 0; }
  // This is done in arithmetic: where some shards grow, a branch would be mispredicted.
  uint32_t WhichOf(uint64_t hash) const { return leaving().FirstBin(hash) >= moved_; }
  const HashCells& Of(uint64_t hash) const { return arrays_[WhichOf(hash)]; }
  HashCells& Of(uint64_t hash) { return arrays_[WhichOf(hash)]; }

  bool Holds(uint32_t more) const;
  // Returns the smallest allowed number of bins, at least `least`, in which `keys` keys fill at
  // most that many sixteenths of the cells.
  uint64_t BinsFor(uint64_t keys, uint64_t sixteenths, uint64_t least) const;
  bool StartMoving(uint64_t bins);
  void Move(uint64_t bins);

  HashCells& cells() { return arrays_[0]; }
  const HashCells& cells() const { return arrays_[0]; }
  HashCells& leaving() { return arrays_[1]; }
  const HashCells& leaving() const { return arrays_[1]; }

  HashCells arrays_[2];  // the array that stays, and the one that keys move from, if they do
  // Keys whose first bin in the array that they leave is below this have moved to the array that
  // stays.
  uint64_t moved_ = kAll;
  uint32_t phase_ = 0;  // sizes are powers of two times 1 + phase / 2^kPhaseBits
};

}  // namespace sok
