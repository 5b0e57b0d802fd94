#include "core/rows/row_slabs.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace sok {

RowLayout::RowLayout(int dim, std::vector<Slot> slots, const RowForm& form)
    : dim_(dim), slots_(std::move(slots)), form_(form) {
  for (const Slot& slot : slots_) slot_start_.insert(slot_start_.end(), slot.width, slot.initial);
  // A row takes whole 16-byte vectors.
  stride_ = (dim_ + slot_floats() + 3) / 4 * 4;
  if (!form.plain()) coding_.emplace(form, dim_, slot_floats());
  slot_bytes_.resize(CodedBytes(form.slots, slot_floats()));
  std::vector<float> row(dim_, 0.0f);
  row.insert(row.end(), slot_start_.begin(), slot_start_.end());
  std::vector<char> values(value_bytes());
  EncodeNearest(row.data(), values.data());
  std::copy(values.begin() + static_cast<std::ptrdiff_t>(embedding_bytes()), values.end(),
            slot_bytes_.begin());
  DecodeValues(form.slots, slot_bytes_.data(), slot_floats(), slot_start_.data());
}

void RowLayout::EncodeNearest(const float* floats, char* values) const {
  if (coding_) {
    coding_->EncodeNearest(floats, values);
  } else {
    std::memcpy(values, floats, value_bytes());
  }
}

bool RowLayout::SameShape(const RowLayout& other) const {
  return dim_ == other.dim_ && form_.row == other.form_.row && form_.slots == other.form_.slots &&
         std::equal(
             slots_.begin(), slots_.end(), other.slots_.begin(), other.slots_.end(),
             [](const Slot& a, const Slot& b) { return a.name == b.name && a.width == b.width; });
}

Status RowSlabs::Reserve(uint32_t more) {
  const uint64_t slabs = slabs_.size() - vacant_.size();
  const uint64_t wanted = slabs + (more > free_ ? (more - free_ + kRows - 1) / kRows : 0);
  if (wanted * kRows >= UINT32_MAX) {
    return Status(Code::kResourceExhausted, "a shard of the table cannot hold more than 2^32 rows");
  }
  while (free_ < more) {
    uint32_t slab;
    if (vacant_.empty()) {
      slab = static_cast<uint32_t>(slabs_.size());
      slabs_.push_back(nullptr);
      uses_.emplace_back();
      with_free_.resize(slabs_.size() / 64 + 1);
    } else {
      slab = vacant_.back();
      vacant_.pop_back();
    }
    Status status = AddSlab(slab);
    if (!status.ok()) {
      vacant_.push_back(slab);
      return status;
    }
  }
  return Status();
}

Status RowSlabs::AddSlab(uint32_t slab) {
  slabs_[slab] = arena_->Allocate(SlabBytes());
  if (slabs_[slab] == nullptr) {
    return Status(Code::kResourceExhausted,
                  "no memory for more rows of the table: " + std::to_string(SlabBytes()) +
                      " bytes were asked for");
  }
  uses_[slab] = Use();
  free_ += kRows;
  SetFree(slab, true);
  return Status();
}

void RowSlabs::SetFree(uint32_t slab, bool is_free) {
  const uint64_t bit = uint64_t{1} << (slab % 64);
  uint64_t& word = with_free_[slab / 64];
  word = is_free ? word | bit : word & ~bit;
  if (is_free) first_free_ = std::min<size_t>(first_free_, slab / 64);
}

uint32_t RowSlabs::Allocate() {
  while (with_free_[first_free_] == 0) ++first_free_;
  const auto slab =
      static_cast<uint32_t>(first_free_ * 64 + __builtin_ctzll(with_free_[first_free_]));
  Use& use = uses_[slab];
  // Mostly rows come one after the other, so that the word of the last one has the next.
  uint32_t word = use.rows == use.touched ? use.rows / 64 : 0;
  while (use.taken[word] == ~uint64_t{0}) ++word;
  const auto at = word * 64 + static_cast<uint32_t>(__builtin_ctzll(~use.taken[word]));
  use.taken[word] |= uint64_t{1} << (at % 64);
  use.touched = std::max<uint16_t>(use.touched, static_cast<uint16_t>(at + 1));
  --free_;
  if (++use.rows == kRows) SetFree(slab, false);
  return slab << kShift | at;
}

void RowSlabs::Free(uint32_t row) {
  const uint32_t slab = row >> kShift, at = row & kMask;
  Use& use = uses_[slab];
  use.taken[at / 64] &= ~(uint64_t{1} << (at % 64));
  ++free_;
  if (--use.rows > 0) {
    SetFree(slab, true);
    return;
  }
  SetFree(slab, false);
  arena_->Free(std::exchange(slabs_[slab], nullptr), SlabBytes());
  vacant_.push_back(slab);
  free_ -= kRows;
}

Result<RowSlabs> RowSlabs::WithLayout(std::shared_ptr<const RowLayout> layout,
                                      std::shared_ptr<Arena> arena) const {
  RowSlabs relaid(layout, std::move(arena));
  relaid.slabs_.resize(slabs_.size());
  relaid.uses_.resize(slabs_.size());
  relaid.vacant_ = vacant_;
  relaid.with_free_.resize(with_free_.size());
  const size_t embedding = layout->embedding_bytes();
  const std::vector<char>& slots = layout->slot_bytes();
  for (uint32_t slab = 0; slab < slabs_.size(); ++slab) {
    if (slabs_[slab] == nullptr) continue;
    Status status = relaid.AddSlab(slab);
    if (!status.ok()) {
      for (char* added : relaid.slabs_) {
        if (added != nullptr) relaid.arena_->Free(added, relaid.SlabBytes());
      }
      return status;
    }
    for (uint32_t r = slab << kShift; r < (slab << kShift) + uses_[slab].touched; ++r) {
      std::memcpy(relaid.place(r), place(r), embedding);
      std::copy(slots.begin(), slots.end(), relaid.place(r) + embedding);
      *relaid.meta(r) = *meta(r);
    }
    relaid.uses_[slab] = uses_[slab];
    if (uses_[slab].rows == kRows) relaid.SetFree(slab, false);
  }
  relaid.free_ = free_;
  return relaid;
}

std::vector<uint64_t> RowSlabs::taken() const {
  std::vector<uint64_t> words;
  words.reserve(uses_.size() * std::size(Use().taken));
  for (const Use& use : uses_)
    words.insert(words.end(), std::begin(use.taken), std::end(use.taken));
  return words;
}

size_t RowSlabs::untouched_bytes() const {
  size_t bytes = 0;
  for (uint32_t slab = 0; slab < slabs_.size(); ++slab) {
    const size_t touched = uses_[slab].touched;
    if (slabs_[slab] == nullptr || touched == kRows) continue;
    const size_t page = arena_->PageBytesAt(slabs_[slab]);
    // Adds the whole pages of [from, to).
    const auto add = [&](const void* from, const void* to) {
      const size_t first = (reinterpret_cast<uintptr_t>(from) + page - 1) / page;
      const size_t last = reinterpret_cast<uintptr_t>(to) / page;
      if (last > first) bytes += (last - first) * page;
    };
    const auto begin = static_cast<uint32_t>(slab << kShift);
    add(place(begin) + touched * row_bytes_, meta(begin));
    add(meta(begin) + touched, slabs_[slab] + SlabBytes());
  }
  return bytes;
}

}  // namespace sok
