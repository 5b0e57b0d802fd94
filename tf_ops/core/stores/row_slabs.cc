#include "core/stores/row_slabs.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace sok {

RowLayout::RowLayout(int dim, std::vector<Slot> slots) : dim_(dim), slots_(std::move(slots)) {
  for (const Slot& slot : slots_) slot_start_.insert(slot_start_.end(), slot.width, slot.initial);
  // Whole 16-byte vectors.
  stride_ = (dim_ + slot_floats() + 3) / 4 * 4;
}

bool RowLayout::SameShape(const RowLayout& other) const {
  return dim_ == other.dim_ && std::equal(slots_.begin(), slots_.end(), other.slots_.begin(),
                                          other.slots_.end(), [](const Slot& a, const Slot& b) {
                                            return a.name == b.name && a.width == b.width;
                                          });
}

Status RowSlabs::Reserve(uint32_t more) {
  const uint64_t fresh = more > free_.size() ? more - free_.size() : 0;
  if (used_ + fresh >= UINT32_MAX) {
    return Status(Code::kResourceExhausted, "a shard of the table cannot hold more than 2^32 rows");
  }
  const size_t bytes = kRows * (stride_ * sizeof(float) + sizeof(RowMeta));
  while (slabs_.size() * kRows < used_ + fresh) {
    char* slab = arena_->Allocate(bytes);
    if (slab == nullptr) {
      return Status(Code::kResourceExhausted, "no memory for more rows of the table: " +
                                                  std::to_string(bytes) + " bytes were asked for");
    }
    slabs_.push_back(slab);
  }
  return Status();
}

uint32_t RowSlabs::Allocate() {
  if (free_.empty()) return used_++;
  const uint32_t row = free_.back();
  free_.pop_back();
  return row;
}

Result<RowSlabs> RowSlabs::Relaid(std::shared_ptr<const RowLayout> layout,
                                  std::shared_ptr<Arena> arena) const {
  RowSlabs relaid(layout, std::move(arena));
  Status status = relaid.Reserve(used_);
  if (!status.ok()) return status;
  relaid.used_ = used_;
  relaid.free_ = free_;
  const int dim = layout->dim();
  const std::vector<float>& start = layout->slot_start();
  for (uint32_t r = 0; r < used_; ++r) {
    float* to = relaid.row(r);
    std::memcpy(to, row(r), dim * sizeof(float));
    std::copy(start.begin(), start.end(), to + dim);
    *relaid.meta(r) = *meta(r);
  }
  return relaid;
}

}  // namespace sok
