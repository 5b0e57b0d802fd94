#include "core/stores/hash_index.h"

#include <string>
#include <utility>

namespace sok {
namespace {

constexpr uint64_t kSmallest = 64;
constexpr uint64_t kLargest = uint64_t{1} << 31;
constexpr size_t kHugeFrom = size_t{2} << 20;

uint64_t MaxLoad(uint64_t capacity) { return capacity - capacity / 8; }

}  // namespace

uint32_t HashIndex::FindSlot(Key key, uint64_t hash) const {
  if (capacity_ == 0) return kNone;
  const uint8_t tag = Tag(hash);
  uint64_t group = FirstGroup(hash);
  // Triangular steps visit every group of a power of two; the load bound leaves an empty slot.
  for (uint64_t step = 1;; ++step) {
    const ControlGroup control(control_ + group * kGroupWidth);
    for (uint32_t match = control.Match(tag); match != 0; match &= match - 1) {
      const auto slot = static_cast<uint32_t>(group * kGroupWidth + __builtin_ctz(match));
      if (KeyAt(slot) == key) return slot;
    }
    if (control.MatchEmpty() != 0) return kNone;
    group = (group + step) & group_mask_;
  }
}

Status HashIndex::Reserve(uint32_t more) {
  if (more <= room_) return Status();
  const uint64_t wanted = uint64_t{size_} + more;
  uint64_t capacity = kSmallest;
  while (MaxLoad(capacity) < wanted) capacity *= 2;
  // Where erased slots are what fills the table, the same capacity may do; leave it some air, so
  // that erasing and inserting in turn does not rehash each time.
  if (capacity == capacity_ && wanted > MaxLoad(capacity) / 8 * 7) capacity *= 2;
  return Rehash(capacity);
}

Status HashIndex::Rehash(uint64_t capacity) {
  if (capacity > kLargest) {
    return Status(Code::kResourceExhausted,
                  "a shard of the table cannot hold more than 1.8 billion keys");
  }
  const size_t bytes = capacity * (1 + kEntryBytes);
  PageBuffer memory(bytes, bytes >= kHugeFrom);
  if (memory.data() == nullptr) {
    return Status(Code::kResourceExhausted, "no memory to grow the table's index: " +
                                                std::to_string(bytes) + " bytes were asked for");
  }
  HashIndex grown;
  grown.control_ = reinterpret_cast<uint8_t*>(memory.data());
  grown.entries_ = memory.data() + capacity;
  grown.group_mask_ = capacity / kGroupWidth - 1;
  grown.capacity_ = static_cast<uint32_t>(capacity);
  grown.room_ = static_cast<uint32_t>(MaxLoad(capacity));
  grown.memory_ = std::move(memory);
  std::memset(grown.control_, kEmpty, capacity);
  ForEach([&](Key key, uint32_t row) { grown.Insert(key, Hash(key), row); });
  *this = std::move(grown);
  return Status();
}

void HashIndex::Insert(Key key, uint64_t hash, uint32_t row) {
  uint64_t group = FirstGroup(hash);
  for (uint64_t step = 1;; ++step) {
    const uint32_t free = ControlGroup(control_ + group * kGroupWidth).MatchFree();
    if (free != 0) {
      const auto slot = static_cast<uint32_t>(group * kGroupWidth + __builtin_ctz(free));
      if (control_[slot] == kEmpty) --room_;
      control_[slot] = Tag(hash);
      std::memcpy(EntryAt(slot), &key, sizeof(key));
      std::memcpy(EntryAt(slot) + sizeof(key), &row, sizeof(row));
      ++size_;
      return;
    }
    group = (group + step) & group_mask_;
  }
}

uint32_t HashIndex::Erase(Key key, uint64_t hash) {
  const uint32_t slot = FindSlot(key, hash);
  if (slot == kNone) return kNone;
  const uint32_t row = RowAt(slot);
  // A group with an empty slot ends every search that reaches it, so this slot may become empty.
  const uint32_t group = slot / kGroupWidth * kGroupWidth;
  const bool ends_searches = ControlGroup(control_ + group).MatchEmpty() != 0;
  control_[slot] = ends_searches ? kEmpty : kErased;
  if (ends_searches) ++room_;
  --size_;
  return row;
}

}  // namespace sok
