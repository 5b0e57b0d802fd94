#include "core/rows/hash_slots.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sok {
namespace {

constexpr size_t kHugeFrom = size_t{2} << 20;  // one huge page
constexpr size_t kSmallPage = 4096;            // if pages are larger, some memory is not used

}  // namespace

uint64_t HashSlots::WholePages(uint64_t groups) {
  const size_t bytes = BytesFor(groups);
  const size_t page = bytes >= kHugeFrom ? kHugeFrom : kSmallPage;
  return (bytes + page - 1) / page * page / kGroupBytes;
}

HashSlots::HashSlots(uint64_t groups) : memory_(BytesFor(groups), BytesFor(groups) >= kHugeFrom) {
  if (memory_.data() == nullptr) return;
  control_ = reinterpret_cast<uint8_t*>(memory_.data());
  entries_ = memory_.data() + groups * kGroupWidth;
  groups_ = groups;
}

HashSlots& HashSlots::operator=(HashSlots&& other) noexcept {
  std::swap(control_, other.control_);
  std::swap(entries_, other.entries_);
  std::swap(groups_, other.groups_);
  std::swap(size_, other.size_);
  std::swap(used_, other.used_);
  std::swap(memory_, other.memory_);
  return *this;
}

size_t HashSlots::ResidentBytes(uint64_t groups) const {
  if (groups == 0) return 0;
  const size_t page = memory_.page_bytes();
  const size_t control = (groups * kGroupWidth + page - 1) / page;  // pages
  const size_t begin = groups_ * kGroupWidth, end = begin + groups * kGroupWidth * kEntryBytes;
  return (control + (end + page - 1) / page - std::max(control, begin / page)) * page;
}

uint64_t HashSlots::Stride() const {
  auto stride = static_cast<uint64_t>(static_cast<double>(groups_) * 0.6180339887498949);
  while (std::gcd(stride, groups_) != 1) ++stride;
  return stride;
}

uint32_t HashSlots::Find(Key key, uint64_t hash) const {
  const uint8_t tag = Tag(hash);
  uint64_t group = FirstGroup(hash);
  // The search ends, since the load bound leaves an empty cell.
  for (uint64_t step = 1;;) {
    const ControlGroup control(control_ + group * kGroupWidth);
    for (uint32_t match = control.Match(tag); match != 0; match &= match - 1) {
      const auto cell = static_cast<uint32_t>(group * kGroupWidth + __builtin_ctz(match));
      if (KeyAt(cell) == key) return cell;
    }
    if (control.MatchEmpty() != 0) return kNone;
    group = Next(group, &step);
  }
}

void HashSlots::Insert(Key key, uint64_t hash, uint32_t row) {
  uint64_t group = FirstGroup(hash);
  for (uint64_t step = 1;;) {
    const uint32_t free = ControlGroup(control_ + group * kGroupWidth).MatchFree();
    if (free != 0) {
      const auto cell = static_cast<uint32_t>(group * kGroupWidth + __builtin_ctz(free));
      used_ += control_[cell] == kEmpty;
      control_[cell] = Tag(hash);
      std::memcpy(EntryAt(cell), &key, sizeof(key));
      std::memcpy(EntryAt(cell) + sizeof(key), &row, sizeof(row));
      ++size_;
      return;
    }
    group = Next(group, &step);
  }
}

void HashSlots::Erase(uint32_t cell) {
  // A group with an empty cell ends every search that reaches it, so this cell may become empty.
  const uint32_t group = cell / kGroupWidth * kGroupWidth;
  const bool ends_searches = ControlGroup(control_ + group).MatchEmpty() != 0;
  control_[cell] = ends_searches ? kEmpty : kErased;
  used_ -= ends_searches;
  --size_;
}

void HashSlots::MoveGroup(uint64_t first, HashSlots* to) {
  uint64_t group = first;
  for (uint64_t step = 1;;) {
    const ControlGroup control(control_ + group * kGroupWidth);
    for (uint32_t full = control.MatchFull(); full != 0; full &= full - 1) {
      const auto cell = static_cast<uint32_t>(group * kGroupWidth + __builtin_ctz(full));
      const Key key = KeyAt(cell);
      const uint64_t hash = HashOfKey(key);
      if (FirstGroup(hash) != first) continue;
      to->Insert(key, hash, RowAt(cell));
      Erase(cell);
    }
    if (control.MatchEmpty() != 0) return;
    group = Next(group, &step);
  }
}

}  // namespace sok
