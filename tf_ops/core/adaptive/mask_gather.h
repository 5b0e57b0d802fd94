// A lookup whose mask says, key by key, whether the embedding is the key's own row of a table or a
// row of a static matrix, which keys share.
//
//   MaskGather gather(&table, lookup);
//   {
//     // No thread may write the static rows in here.
//     status = gather.Read(static_rows, embeddings, parallel_for);
//     status = gather.Admit(static_rows);  // where keys without a row shall get one
//   }
//   status = gather.CopySlots(slot);       // for each slot of the rule, where new rows copy them
//   status = gather.MakeRows(parallel_for);
//
// An error ends the lookup: no step may follow it. Of one lookup no two steps may run at once; the
// table may be used by others meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/tables/table.h"

namespace sok {

// Points to the static matrix, or to a slot that an optimizer keeps of it.
struct StaticRows {
  const float* values;  // (rows, width)
  int64_t rows;
  int64_t width;
};

// The arguments of one lookup. Positions are indices of keys, fewer than 2^31. The memory that it
// points to must outlive the MaskGather.
struct MaskedLookup {
  const Key* keys = nullptr;      // (n)
  const int32_t* mask = nullptr;  // (n) 1: the key's own row; 0: its static row
  // (n) how many keys of the batch each stands for, for the admission; null: 1.
  const int64_t* counts = nullptr;
  // (n) static rows of the keys; null: rows are chosen by hashes of the keys' digits.
  const int64_t* given = nullptr;
  // (n) out, unless `given`: the static rows that were chosen by hashes where static rows were
  // read, and 0 elsewhere.
  int64_t* hashed = nullptr;
  bool* own = nullptr;  // (n) out: whether each embedding is of an own row
  size_t n = 0;
  // True for a table in a storage. Its lookups wait for the holder of the storage, and must not do
  // that in a pool: others wait for the pool while they hold the storage. So the pool works within
  // the lookup instead.
  bool stored = false;
};

class MaskGather {
 public:
  MaskGather(Table* table, const MaskedLookup& lookup) : table_(table), lookup_(lookup) {}

  // Copies all embeddings (n, dim), and sets `own` and `hashed`. A key of mask 1 that has no row
  // gets its static row. Errors: kInvalidArgument for a mask of neither 0 nor 1 and for a static
  // row that is not there, naming the first such position in some part of the batch; those of
  // Table::Find.
  template <typename T>  // float or BFloat16
  Status Read(const StaticRows& rows, T* embeddings, const ParallelFor& parallel_for);

  // Shows the keys of mask 1 without a row to the table's admission, each as often as it occurs.
  // MakeRows makes rows for those that may have one, which start as the static row is now.
  Status Admit(const StaticRows& rows);

  // Returns how many rows are to be made. Equal keys count as often as they were admitted.
  size_t admitted() const { return admitted_.size(); }

  // Copies the next slot of the admitted keys' static rows. If the slots do not add up to those of
  // the table's rule, they are not used, and new rows start with the rule's own. Errors:
  // kInvalidArgument if the slot has fewer rows than the static matrix.
  Status CopySlots(const StaticRows& slot);
  // Forgets the slots that were copied: for callers that cannot get one of them.
  void DropSlots() { slots_.clear(); }

  // Makes the rows, and sets `own` where a key has one now. Errors: those of Table::MakeRowsAs.
  Status MakeRows(const ParallelFor& parallel_for);

 private:
  // The results of one thread for the block of positions that it read.
  struct Block {
    std::vector<uint32_t> missing;  // positions of mask 1 whose keys have no row
    Status status;
  };
  struct Slot {
    std::vector<float> values;  // (admitted, width)
    int64_t width;
  };

  static constexpr size_t kBlockSize = 2048;

  const int64_t* buckets() const { return lookup_.given ? lookup_.given : lookup_.hashed; }
  // Hashes the keys of mask 0 among positions [begin, end).
  void HashStatic(size_t begin, size_t end, const StaticRows& rows);
  template <typename T>
  void CopyStaticRows(const std::vector<uint32_t>& positions, const StaticRows& rows,
                      T* embeddings) const;
  // Reads positions [begin, end).
  template <typename T>
  Status ReadBlock(size_t begin, size_t end, const StaticRows& rows, T* embeddings,
                   const ParallelFor& parallel_for, std::vector<uint32_t>* missing);

  Table* const table_;
  const MaskedLookup lookup_;
  std::vector<Block> blocks_;
  std::vector<Key> admitted_;
  std::vector<int64_t> sources_;  // (admitted) their static rows
  std::vector<float> starts_;     // (admitted, dim)
  std::vector<Slot> slots_;
};

// Returns the positions, ascending, of mask 1 among n. Errors: kInvalidArgument for a mask of
// neither 0 nor 1, and for a bucket out of [0, rows), naming the first.
Result<std::vector<uint32_t>> OwnPlaces(const int32_t* mask, const int64_t* buckets, size_t n,
                                        int64_t rows);

// Returns the keys (n) of own rows, for a deposit of gradients that belong to the whole batch. Keys
// that have no row by the commit are left out, since their static rows are not known by then. The
// result does not refer to the arguments.
LookupKeys KeysOfOwnRows(const Key* keys, const bool* own, size_t n);

}  // namespace sok
