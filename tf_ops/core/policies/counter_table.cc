#include "core/policies/counter_table.h"

#include <string>
#include <utility>

namespace sok {
namespace {

constexpr uint64_t kSmallest = 256;  // as many as fit into one page
constexpr uint64_t kLargest = uint64_t{1} << 40;
constexpr uint64_t kHugeFrom = uint64_t{2} << 20;  // bytes

uint64_t MaxLoad(uint64_t capacity) { return capacity - capacity / 4; }

}  // namespace

Status CounterTable::Reserve(uint64_t more) {
  // Compared so that a huge `more` does not overflow.
  if (more <= MaxLoad(capacity_) - size_) return Status();
  uint64_t capacity = capacity_ > 0 ? capacity_ : kSmallest;
  while (capacity <= kLargest && MaxLoad(capacity) - size_ < more) capacity *= 2;
  const uint64_t bytes = capacity * sizeof(Entry);
  PageBuffer memory = capacity > kLargest ? PageBuffer() : PageBuffer(bytes, bytes >= kHugeFrom);
  if (memory.data() == nullptr) {
    return Status(Code::kResourceExhausted,
                  "Expected memory for the counters of keys that are not admitted yet. Received: "
                  "none for " +
                      std::to_string(bytes) +
                      " bytes. Use the admission kind counting_bloom, whose memory is fixed.");
  }
  CounterTable grown;
  grown.entries_ = reinterpret_cast<Entry*>(memory.data());
  grown.capacity_ = capacity;
  grown.memory_ = std::move(memory);
  ForEach([&](Key key, uint32_t count) { grown.Insert(key, Hash(key), count); });
  *this = std::move(grown);
  return Status();
}

void CounterTable::Insert(Key key, uint64_t hash, uint32_t count) {
  uint64_t slot = hash & mask();
  while (entries_[slot].count != 0) slot = (slot + 1) & mask();
  entries_[slot] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), count};
  ++size_;
}

bool CounterTable::Erase(Key key, uint64_t hash) {
  Entry* const erased = FindEntry(key, hash);
  if (erased == nullptr) return false;
  auto hole = static_cast<uint64_t>(erased - entries_);
  for (uint64_t slot = (hole + 1) & mask(); entries_[slot].count != 0; slot = (slot + 1) & mask()) {
    // An entry may move to the hole if that is not before the slot where its search begins.
    const uint64_t from_home = (slot - Hash(entries_[slot].key())) & mask();
    const uint64_t from_hole = (slot - hole) & mask();
    if (from_home < from_hole) continue;
    entries_[hole] = entries_[slot];
    hole = slot;
  }
  entries_[hole].count = 0;
  --size_;
  return true;
}

}  // namespace sok
