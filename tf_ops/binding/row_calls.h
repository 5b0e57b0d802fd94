// The calls of rows that a table and a storage share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "binding/binding.h"

namespace sok::binding {

// Raises ValueError for more keys than the stores, which number them with 32 bits, can take.
inline void CheckCount(const KeysIn& keys) {
  if (keys.size() <= UINT32_MAX) return;
  Raise(InvalidArgument("expected at most " + std::to_string(UINT32_MAX) + " keys, got " +
                        std::to_string(keys.size()) + "; pass them in several calls"));
}

// Returns columns of rows that are to be written, which stay in Python's arrays.
inline TableContents PieceOf(const KeysIn& keys, const NumbersIn& update_nums,
                             const NumbersIn& update_times, const FloatsIn& embeddings,
                             const FloatsIn& slots, int dim, int slot_floats) {
  const size_t n = keys.size();
  CheckSize("update_nums", update_nums.size(), n, "one a key");
  CheckSize("update_times", update_times.size(), n, "one a key");
  CheckSize("embeddings", embeddings.size(), n * static_cast<size_t>(dim), "dim a key");
  CheckSize("slots", slots.size(), n * static_cast<size_t>(slot_floats), "slot_floats a key");
  TableContents piece;
  piece.n = n;
  piece.slot_floats = slot_floats;
  piece.rows = {keys.data(), embeddings.data(), slots.data(), update_nums.data(),
                update_times.data()};
  return piece;
}

// Calls `read(metas)` to read the counters of keys, and copies them to Python's arrays.
template <typename Read>
void PutMetadata(const KeysIn& keys, const FlagsOut& exists, const NumbersOut& update_nums,
                 const NumbersOut& update_times, const Read& read) {
  CheckCount(keys);
  CheckSize("exists", exists.size(), keys.size(), "one a key");
  CheckSize("update_nums", update_nums.size(), keys.size(), "one a key");
  CheckSize("update_times", update_times.size(), keys.size(), "one a key");
  Check(Unlocked([&] {
    std::vector<RowMeta> metas(keys.size());
    Status status = read(metas.data());
    for (size_t i = 0; i < metas.size(); ++i) {
      update_nums.data()[i] = metas[i].update_num;
      update_times.data()[i] = metas[i].update_time;
    }
    return status;
  }));
}

inline nb::dict ToDict(const TableStats& stats) {
  nb::dict dict;
  dict["rows"] = stats.rows;
  dict["max_rows"] = stats.max_rows;
  dict["index_bytes"] = stats.index_bytes;
  dict["row_bytes"] = stats.row_bytes;
  dict["steps"] = stats.steps;
  dict["pending_gradients"] = stats.pending_gradients;
  dict["evicted"] = stats.evicted;
  dict["left_out"] = stats.left_out;
  dict["looked_up"] = stats.looked_up;
  dict["found"] = stats.found;
  dict["refused"] = stats.refused;
  dict["made"] = stats.made;
  dict["cache_hits"] = stats.cache_hits;
  dict["read_ahead"] = stats.read_ahead;
  dict["left_behind"] = stats.left_behind;
  return dict;
}

}  // namespace sok::binding
