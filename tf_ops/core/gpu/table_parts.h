// The parts of a table on a GPU. Internal to this room.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "core/base/status_macros.h"
#include "core/gpu/gpu_table.h"
#include "core/gpu/sorting.h"

namespace sok::gpu {

// The functions of the programs that a table has loaded.
struct GpuTable::Kernels {
  std::shared_ptr<Module> index, rows, rule;

  void *find, *count_absent, *claim, *make, *settle, *link, *rehash, *erase, *list;
  SortKernels sort;
  void *rank, *pick;
  void *start, *gather, *pool, *read_rows, *write_rows, *relayout, *append, *assign;
  void *sum_chunks, *store_sums;
  void *pool_gradient, *weight_gradient;
  void *start_sums, *place_sums, *rest_rows;
  void *pick_keys, *start_as_static, *place_numbers, *mask_gather, *static_keys, *segment_keys;
  void *update_rows;
  std::string rule_type;  // of update_rows
};

struct GpuTable::Arrays {
  GrowingMemory rows, keys, metas, free;
};

struct GpuTable::Scratch {
  Buffer numbers;       // (n) rows of the keys of a call
  Buffer placed;        // (n) the same, if only some keys of the call ask for own rows
  Buffer places, made;  // see ClaimArguments and MakeArguments
  Buffer makers;        // see MakeArguments
  Buffer small;         // kSmall numbers
  Buffer slot_start;    // initial values of the slots of a new row
  Buffer sort_keys[2];  // (n) each
  Buffer sort_values[2];
  Buffer sort_counts;
  int sorted = 0;              // the half that has the sorted numbers
  Buffer starts, first_chunk;  // see SegmentArguments and ChunkArguments
  Buffer chunks, chunk_sums, sums;
  Buffer joined_keys, joined_gradients;
  Buffer staged, staged_metas;
  Buffer listed_keys, listed_rows, ranks;

  // Indices into `small`.
  static constexpr int kSegments = 0, kChunkCount = 1, kErased = 2, kListed = 3, kAbsent = 4,
                       kSmall = 16;
  uint32_t *at(int place) const { return reinterpret_cast<uint32_t *>(small.address()) + place; }
};

// Returns an error if a call has too many keys: positions have 32 bits.
inline Status CheckCount(uint64_t n) {
  if (n < uint64_t{1} << 31) return Status();
  return InvalidArgument(
      "Expected fewer than 2^31 keys in one call on a GPU. Received: " + std::to_string(n) + ".");
}

// Holds a table for one call, on one stream.
class GpuTable::Call {
 public:
  Call(GpuTable *table, Stream stream) : table_(table), lock_(table->mu_) {
    status_ = table->Enter(stream);
  }
  ~Call() { table_->Leave(); }
  const Status &status() const { return status_; }

 private:
  GpuTable *table_;
  std::lock_guard<std::mutex> lock_;
  Status status_;
};

#define SOK_ENTER(stream)        \
  const Call call(this, stream); \
  SOK_RETURN_IF_ERROR(call.status())

}  // namespace sok::gpu
