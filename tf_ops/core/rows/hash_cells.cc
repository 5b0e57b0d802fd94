#include "core/rows/hash_cells.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sok {
namespace {

constexpr size_t kHugeFrom = size_t{2} << 20;  // one huge page
constexpr size_t kSmallPage = 4096;            // if pages are larger, some memory is not used

}  // namespace

uint64_t HashCells::WholePages(uint64_t bins) {
  const size_t bytes = BytesFor(bins);
  const size_t page = bytes >= kHugeFrom ? kHugeFrom : kSmallPage;
  return (bytes + page - 1) / page * page / kBinBytes;
}

HashCells::HashCells(uint64_t bins) : memory_(BytesFor(bins), BytesFor(bins) >= kHugeFrom) {
  if (memory_.data() == nullptr) return;
  control_ = reinterpret_cast<uint8_t*>(memory_.data());
  entries_ = memory_.data() + bins * kBinWidth;
  bins_ = bins;
}

HashCells& HashCells::operator=(HashCells&& other) noexcept {
  std::swap(control_, other.control_);
  std::swap(entries_, other.entries_);
  std::swap(bins_, other.bins_);
  std::swap(size_, other.size_);
  std::swap(used_, other.used_);
  std::swap(memory_, other.memory_);
  return *this;
}

size_t HashCells::ResidentBytes(uint64_t bins) const {
  if (bins == 0) return 0;
  const size_t page = memory_.page_bytes();
  const size_t control = (bins * kBinWidth + page - 1) / page;  // pages
  const size_t begin = bins_ * kBinWidth, end = begin + bins * kBinWidth * kEntryBytes;
  return (control + (end + page - 1) / page - std::max(control, begin / page)) * page;
}

uint64_t HashCells::Stride() const {
  auto stride = static_cast<uint64_t>(static_cast<double>(bins_) * 0.6180339887498949);
  while (std::gcd(stride, bins_) != 1) ++stride;
  return stride;
}

uint32_t HashCells::Find(Key key, uint64_t hash) const {
  const uint8_t tag = Tag(hash);
  uint64_t bin = FirstBin(hash);
  // The search ends, since the load bound leaves an empty cell.
  for (uint64_t step = 1;;) {
    const ControlBin control(control_ + bin * kBinWidth);
    for (uint32_t match = control.Match(tag); match != 0; match &= match - 1) {
      const auto cell = static_cast<uint32_t>(bin * kBinWidth + __builtin_ctz(match));
      if (KeyAt(cell) == key) return cell;
    }
    if (control.MatchEmpty() != 0) return kNone;
    bin = Next(bin, &step);
  }
}

void HashCells::Insert(Key key, uint64_t hash, uint32_t row) {
  uint64_t bin = FirstBin(hash);
  for (uint64_t step = 1;;) {
    const uint32_t free = ControlBin(control_ + bin * kBinWidth).MatchFree();
    if (free != 0) {
      const auto cell = static_cast<uint32_t>(bin * kBinWidth + __builtin_ctz(free));
      used_ += control_[cell] == kEmpty;
      control_[cell] = Tag(hash);
      std::memcpy(EntryAt(cell), &key, sizeof(key));
      std::memcpy(EntryAt(cell) + sizeof(key), &row, sizeof(row));
      ++size_;
      return;
    }
    bin = Next(bin, &step);
  }
}

void HashCells::Erase(uint32_t cell) {
  // A bin with an empty cell ends every search that reaches it, so this cell may become empty.
  const uint32_t bin = cell / kBinWidth * kBinWidth;
  const bool ends_searches = ControlBin(control_ + bin).MatchEmpty() != 0;
  control_[cell] = ends_searches ? kEmpty : kErased;
  used_ -= ends_searches;
  --size_;
}

void HashCells::MoveBin(uint64_t first, HashCells* to) {
  uint64_t bin = first;
  for (uint64_t step = 1;;) {
    const ControlBin control(control_ + bin * kBinWidth);
    for (uint32_t full = control.MatchFull(); full != 0; full &= full - 1) {
      const auto cell = static_cast<uint32_t>(bin * kBinWidth + __builtin_ctz(full));
      const Key key = KeyAt(cell);
      const uint64_t hash = HashOfKey(key);
      if (FirstBin(hash) != first) continue;
      to->Insert(key, hash, RowAt(cell));
      Erase(cell);
    }
    if (control.MatchEmpty() != 0) return;
    bin = Next(bin, &step);
  }
}

}  // namespace sok
