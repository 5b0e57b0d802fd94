#include "core/rows/hash_index.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sok {
namespace {

// Loads are in sixteenths of an array's cells. Growth begins when so many are used …
constexpr uint64_t kGrowAt = 12;
// … and ends before so many are. A sixteenth is one cell of each bin, so about half a bin must move
// for each new key.
constexpr uint64_t kMostUsed = 14;
// An array whose keys fill less than kShrinkBelow is replaced by a smaller one, which they fill up
// to kShrunk.
constexpr uint64_t kShrinkBelow = 3, kShrunk = 6;
// If the keys fill less than this, the array is full of erased cells, and another array of the same
// size is enough.
constexpr uint64_t kStayBelow = 10;

// Bins; numbers of cells are below 2^31.
constexpr uint64_t kSmallest = 4, kLargest = uint64_t{3} << 25;
constexpr uint64_t kLeastShrunk = 256;  // smaller arrays stay
constexpr uint64_t kGroupsAKeyErased = 4;
// The most bins that Trim moves at a time: without a limit it delayed a step by 0.2 s in a shard of
// millions of keys.
constexpr uint64_t kMostMoved = 4096;

// Returns so many sixteenths of the cells of a number of bins; a bin has 16 cells.
uint64_t Part(uint64_t bins, uint64_t sixteenths) { return bins * sixteenths; }
static_assert(kBinWidth == 16);

}  // namespace

HashIndex HashIndex::ForAtMost(uint64_t keys) {
  const uint64_t bins = std::max(kSmallest, (keys + kStayBelow - 1) / kStayBelow);
  uint64_t power = kSmallest;
  while (2 * power <= bins) power *= 2;
  HashIndex index;
  index.phase_ = static_cast<uint32_t>((((bins - power) << kPhaseBits) + power - 1) / power);
  return index;
}

uint64_t HashIndex::BinsFor(uint64_t keys, uint64_t sixteenths, uint64_t least) const {
  for (uint64_t power = least;; power *= 2) {
    const uint64_t bins = HashCells::WholePages(power + (power * phase_ >> kPhaseBits));
    if (Part(bins, sixteenths) >= keys) return bins;
  }
}

bool HashIndex::Holds(uint32_t more) const {
  if (!moving()) return cells().used() + more <= Part(cells().bins(), kGrowAt);
  // Each of the next keys may go to either array.
  return leaving().used() + more <= Part(leaving().bins(), kMostUsed) &&
         cells().used() + leaving().size() + more <= Part(cells().bins(), kMostUsed);
}

Status HashIndex::Reserve(uint32_t more) {
  // Two arrays of one size take twice the memory, so the move is fast.
  if (moving()) Move(leaving().bins() < cells().bins() ? more / 2 + 1 : 2 * uint64_t{more} + 1);
  if (Holds(more)) return Status();
  const uint64_t wanted = uint64_t{size()} + more;
  uint64_t bins = BinsFor(wanted, kGrowAt, kSmallest);
  if (bins > kLargest) {
    return Status(Code::kResourceExhausted,
                  "a shard of the table cannot hold more than 0.8 billion keys");
  }
  Move(leaving().bins());
  if (Holds(more)) return Status();
  // If the array is full of erased cells, one of the same size may be enough. It keeps a reserve,
  // so that erasing and inserting in turn does not move all keys each time.
  if (bins <= cells().bins() && wanted > Part(bins, kStayBelow)) {
    bins = BinsFor(Part(bins, kGrowAt) + 1, kGrowAt, kSmallest);
  }
  if (!StartMoving(bins)) {
    if (cells().used() + more <= Part(cells().bins(), kMostUsed)) return Status();
    return Status(Code::kResourceExhausted, "no memory to grow the table's index: " +
                                                std::to_string(HashCells::BytesFor(bins)) +
                                                " bytes were asked for");
  }
  Move(more / 2 + 1);
  if (!Holds(more)) Move(leaving().bins());
  return Status();
}

bool HashIndex::StartMoving(uint64_t bins) {
  HashCells fresh(bins);
  if (fresh.bins() == 0) return false;
  fresh = std::exchange(cells(), std::move(fresh));
  if (fresh.size() == 0) return true;
  leaving() = std::move(fresh);
  moved_ = 0;
  return true;
}

void HashIndex::Move(uint64_t bins) {
  if (!moving()) return;
  const uint64_t end = std::min(leaving().bins(), moved_ + bins);
  for (; moved_ < end && leaving().size() > 0; ++moved_) leaving().MoveBin(moved_, &cells());
  if (leaving().size() > 0) return;
  leaving() = HashCells();
  moved_ = kAll;
}

uint32_t HashIndex::Erase(Key key, uint64_t hash) {
  HashCells& array = Of(hash);
  const uint32_t cell = array.Find(key, hash);
  if (cell == kNone) return kNone;
  const uint32_t row = array.RowAt(cell);
  array.Erase(cell);
  return row;
}

void HashIndex::Trim(uint32_t erased) {
  const uint64_t share = std::min(erased * kGroupsAKeyErased, kMostMoved);
  Move(share);
  if (moving() || size() >= Part(cells().bins(), kShrinkBelow)) return;
  const uint64_t bins = BinsFor(size(), kShrunk, kLeastShrunk);
  if (bins < cells().bins() && StartMoving(bins)) Move(share);
}

size_t HashIndex::bytes() const {
  if (!moving()) return cells().memory().bytes();
  // The keys that have moved are in the first bins of the new array.
  const uint64_t filled = moved_ * cells().bins() / leaving().bins();
  return cells().ResidentBytes(filled) + leaving().memory().bytes();
}

}  // namespace sok
