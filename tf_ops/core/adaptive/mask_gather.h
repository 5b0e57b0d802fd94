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
// After an error no further step may follow. The steps of one lookup must run one after another;
// other threads may use the table meanwhile.
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
  // (n) How many keys of the batch each key stands for, for the admission; null: 1.
  const int64_t* counts = nullptr;
  // (n) The static rows of the keys; null: hashes of the keys' digits choose them.
  const int64_t* given = nullptr;
  // (n) Output, unless `given`: the static rows that hashes have chosen, for keys whose static row
  // was read; 0 for the others.
  int64_t* hashed = nullptr;
  bool* own = nullptr;  // (n) output: true for each embedding of an own row
  size_t n = 0;
  // True for a table in a storage. Its lookups may wait for a thread that holds the storage's lock,
  // and that thread may wait for the pool. So lookups do not run in the pool's threads: the pool
  // works within a lookup instead.
  bool stored = false;
};

class MaskGather {
 public:
  MaskGather(Table* table, const MaskedLookup& lookup) : table_(table), lookup_(lookup) {}

  // Copies all embeddings (n, dim), and sets `own` and `hashed`. A key of mask 1 without a row gets
  // its static row. Errors: kInvalidArgument, with a position, for a mask other than 0 and 1 and
  // for a static row that does not exist; those of Table::Find.
  template <typename T>  // float or BFloat16
  Status Read(const StaticRows& rows, T* embeddings, const ParallelFor& parallel_for);

  // Has the table's admission count the keys of mask 1 without a row, each as often as it occurs.
  // MakeRows then makes rows for the keys that are admitted; they start as their static rows are
  // now.
  Status Admit(const StaticRows& rows);

  // Returns how many positions were admitted. Equal keys count each time.
  size_t admitted() const { return admitted_.size(); }

  // Copies the next slot of the admitted keys' static rows. If the slots together are not as wide
  // as the slots of the table's rule, they are not used, and the slots of new rows have the rule's
  // start values. Errors: kInvalidArgument if the slot has fewer rows than the static matrix.
  Status CopySlots(const StaticRows& slot);
  // Forgets the slots that were copied, for callers that cannot get all of them.
  void DropSlots() { slots_.clear(); }

  // Makes the rows, and sets `own` for keys that have one now. Errors: those of Table::MakeRowsAs.
  Status MakeRows(const ParallelFor& parallel_for);

  // Has the table count the lookup, for callers that are done with it.
  void Count() { table_->Count(met_); }

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
  LookupCounts met_;
  std::vector<Block> blocks_;
  std::vector<Key> admitted_;
  std::vector<int64_t> sources_;  // (admitted) the static row of each
  std::vector<float> starts_;     // (admitted, dim)
  std::vector<Slot> slots_;
};

// Returns the positions of mask 1 among n, ascending. Errors: kInvalidArgument, with the first
// position, for a mask other than 0 and 1, and for a bucket outside [0, rows).
Result<std::vector<uint32_t>> OwnPlaces(const int32_t* mask, const int64_t* buckets, size_t n,
                                        int64_t rows);

// Returns the keys of own rows among n keys, for a deposit of the gradients of the whole batch. The
// commit leaves out keys that have no row by then, since it does not know their static rows. The
// result does not refer to the arguments.
LookupKeys KeysOfOwnRows(const Key* keys, const bool* own, size_t n);

}  // namespace sok
