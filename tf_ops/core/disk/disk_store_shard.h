// A shard of DiskStore. Included by its sources only.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/disk/disk_store.h"
#include "core/rows/decoded_row.h"

namespace sok {

struct alignas(64) DiskStore::Shard final : CacheMemory::Holder {
  Shard(DiskStore* owner, uint32_t number_of_it, std::shared_ptr<const RowLayout> layout)
      : store(owner),
        number(number_of_it),
        index(NewIndex()),
        rows(layout, &owner->core_->memory, this),
        spill(std::make_unique<Spill>(owner->core_->spill.get(), layout->value_bytes(),
                                      number_of_it, owner->shard_count())) {}

  bool GiveUpBlock() override;
  void EndAhead() override;

  // Removes a row from the cache without writing it.
  void Forget(uint32_t row) {
    NoteLeft(rows.key(row));
    index.Erase(rows.key(row), HashIndex::Hash(rows.key(row)));
    rows.Free(row);
    ++forgotten;
  }
  // Notes that the version of a row in the spill or in the database may be another one from here
  // on, for a ReadAhead that has read it. Needs no memory.
  void NoteLeft(Key key) {
    if (left.size() < left.capacity()) {
      left.push_back(key);
    } else {
      left_more = true;
    }
  }
  // Releases the rows that a call has kept: from then on they may leave the cache.
  void Release() {
    for (const auto* kept : {&found, &kept_besides}) {
      for (uint32_t row : *kept) rows.Unmark(row, kRowKept);
    }
    found.clear();
    kept_besides.clear();
    decoded.reset();
    keeps = false;
  }
  // Keeps rows that a lookup has made while a call keeps its rows: the call did not find them, and
  // must find them before it would make them itself. Memory for their numbers is reserved.
  void KeepMade(const std::vector<uint32_t>& made) {
    for (uint32_t row : made) rows.Mark(row, kRowKept);
    kept_besides.insert(kept_besides.end(), made.begin(), made.end());
  }

  // Removes all rows from the cache. Needs no memory: if it did, only some of the shards might be
  // reset.
  void Reset(std::shared_ptr<const RowLayout> layout) {
    index = NewIndex();
    absent.clear();
    spill->Reset(layout->value_bytes());
    rows.Reset(std::move(layout));
  }

  // Returns an index whose sizes differ from the sizes in other shards, so that indexes grow at
  // different times.
  HashIndex NewIndex() const {
    IndexConfig config;
    config.shard_bits = store->shard_bits_;
    return HashIndex(config, number);
  }
  // Counts the memory of the two indexes as part of the cache's memory.
  void ChargeIndexes() {
    const uint64_t bytes = index.bytes() + spill->index_bytes();
    store->core_->memory.Charge(std::exchange(charged, bytes), bytes);
  }

  DiskStore* const store;
  const uint32_t number;
  mutable SharedMutex mu;
  HashIndex index;
  CacheRows rows;
  std::unique_ptr<Spill> spill;
  // Keys that the last search has not found anywhere, so that a call that makes rows of some of
  // them need not search again. No row has been made since.
  std::vector<Key> absent;
  // The row of each entry of the call that keeps them in the cache; empty between calls.
  std::vector<uint32_t> found;
  // Rows that lookups have made meanwhile, and rows that have expired and could not be removed.
  std::vector<uint32_t> kept_besides;
  std::optional<DecodedRow<CacheRows>> decoded;  // that call writes rows through it
  bool keeps = false;                            // such a call is under way
  // Keys of rows that have left the cache since a ReadAhead began to read rows of this shard, as
  // many as there is memory for; without one, there is memory for none.
  std::vector<Key> left;
  bool left_more = false;  // there were more of them
  uint64_t charged = 0;    // the bytes of the indexes that are counted
  uint32_t forgotten = 0;  // rows that were taken out since the index was last trimmed
};

// Sorts the numbers of rows, and removes kNone and repeated numbers.
inline void SortDistinct(std::vector<uint32_t>* rows) {
  std::sort(rows->begin(), rows->end());
  rows->erase(std::unique(rows->begin(), rows->end()), rows->end());
  if (!rows->empty() && rows->back() == CacheRows::kNone) rows->pop_back();
}

}  // namespace sok
