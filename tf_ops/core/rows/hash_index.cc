#include "core/rows/hash_index.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sok {
namespace {

// Loads are in sixteenths of an array's cells. Growth begins when so many are used …
constexpr uint64_t kGrowAt = 12;
// … and ends before so many are: a sixteenth is one cell of each group, so that half a group has to
// move for each key that comes.
constexpr uint64_t kMostUsed = 14;
// An array whose keys fill less than kShrinkBelow gives way to a smaller one, which they then fill
// up to this.
constexpr uint64_t kShrinkBelow = 3, kShrunk = 6;
// If the keys fill less than this, erased cells are what fills the array: another one of the same
// size will do.
constexpr uint64_t kStayBelow = 8;

// Groups; numbers of cells are below 2^31.
constexpr uint64_t kSmallest = 4, kLargest = uint64_t{3} << 25;
constexpr uint64_t kLeastShrunk = 256;  // smaller arrays stay
constexpr uint64_t kGroupsAKeyErased = 4;

// Returns so many sixteenths of the cells of a number of groups; a group has 16 cells.
uint64_t Part(uint64_t groups, uint64_t sixteenths) { return groups * sixteenths; }
static_assert(kGroupWidth == 16);

}  // namespace

uint64_t HashIndex::GroupsFor(uint64_t keys, uint64_t sixteenths, uint64_t least) const {
  for (uint64_t power = least;; power *= 2) {
    const uint64_t groups = HashSlots::WholePages(power + (power * phase_ >> kPhaseBits));
    if (Part(groups, sixteenths) >= keys) return groups;
  }
}

bool HashIndex::Holds(uint32_t more) const {
  if (!moving()) return slots().used() + more <= Part(slots().groups(), kGrowAt);
  // Any of the keys to come may go to either array.
  return leaving().used() + more <= Part(leaving().groups(), kMostUsed) &&
         slots().used() + leaving().size() + more <= Part(slots().groups(), kMostUsed);
}

Status HashIndex::Reserve(uint32_t more) {
  if (moving()) Move(more / 2 + 1);
  if (Holds(more)) return Status();
  const uint64_t wanted = uint64_t{size()} + more;
  uint64_t groups = GroupsFor(wanted, kGrowAt, kSmallest);
  if (groups > kLargest) {
    return Status(Code::kResourceExhausted,
                  "a shard of the table cannot hold more than 0.8 billion keys");
  }
  Move(leaving().groups());
  if (Holds(more)) return Status();
  // Where erased cells are what fills the array, one of the same size may do; it gets some air, so
  // that erasing and inserting in turn does not move all keys each time.
  if (groups <= slots().groups() && wanted > Part(groups, kStayBelow)) {
    groups = GroupsFor(Part(groups, kGrowAt) + 1, kGrowAt, kSmallest);
  }
  if (!StartMoving(groups)) {
    if (slots().used() + more <= Part(slots().groups(), kMostUsed)) return Status();
    return Status(Code::kResourceExhausted, "no memory to grow the table's index: " +
                                                std::to_string(HashSlots::BytesFor(groups)) +
                                                " bytes were asked for");
  }
  Move(more / 2 + 1);
  if (!Holds(more)) Move(leaving().groups());
  return Status();
}

bool HashIndex::StartMoving(uint64_t groups) {
  HashSlots fresh(groups);
  if (fresh.groups() == 0) return false;
  fresh = std::exchange(slots(), std::move(fresh));
  if (fresh.size() == 0) return true;
  leaving() = std::move(fresh);
  moved_ = 0;
  return true;
}

void HashIndex::Move(uint64_t groups) {
  if (!moving()) return;
  const uint64_t end = std::min(leaving().groups(), moved_ + groups);
  for (; moved_ < end && leaving().size() > 0; ++moved_) leaving().MoveGroup(moved_, &slots());
  if (leaving().size() > 0) return;
  leaving() = HashSlots();
  moved_ = kAll;
}

uint32_t HashIndex::Erase(Key key, uint64_t hash) {
  HashSlots& array = Of(hash);
  const uint32_t cell = array.Find(key, hash);
  if (cell == kNone) return kNone;
  const uint32_t row = array.RowAt(cell);
  array.Erase(cell);
  return row;
}

void HashIndex::Trim(uint32_t erased) {
  const uint64_t share = erased * kGroupsAKeyErased;
  Move(share);
  if (moving() || size() >= Part(slots().groups(), kShrinkBelow)) return;
  const uint64_t groups = GroupsFor(size(), kShrunk, kLeastShrunk);
  if (groups < slots().groups() && StartMoving(groups)) Move(share);
}

size_t HashIndex::bytes() const {
  if (!moving()) return slots().memory().bytes();
  // The keys that have moved are in the first groups of the new array.
  const uint64_t filled = moved_ * slots().groups() / leaving().groups();
  return slots().ResidentBytes(filled) + leaving().memory().bytes();
}

}  // namespace sok
