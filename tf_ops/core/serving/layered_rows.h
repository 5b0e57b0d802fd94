// Rows that are served from a file with newer files laid over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/serving/served_rows.h"

namespace sok {

// The changes of a table.
struct RowsLayer {
  std::shared_ptr<const ServedRows> gone;  // keys that lose the rows of files below; null: none
  std::shared_ptr<const ServedRows> rows;  // rows that are new or have changed; null: none
};

// Says of most keys that are not in a set that they are not, from a few cache lines.
class TouchedKeys {
 public:
  // Makes room for so many keys.
  explicit TouchedKeys(uint64_t keys);

  void Insert(Key key);
  // Returns true for keys that were inserted, and for one in seventy of the others.
  bool MayHave(Key key) const;

 private:
  std::vector<uint64_t> words_;  // 16 to 32 bits a key, of which each key sets two
  uint64_t mask_;                // of the number of a bit
};

// A base and the layers over it, none of which changes. Thread-safe.
class LayeredRows {
 public:
  // Opens the files of layers, the lowest first, over a base that is open. An empty path is none;
  // `gone` and `rows` are equally long. Errors: those of ServedRows::Open, and kInvalidArgument for
  // rows of another length than the base's.
  static Result<std::shared_ptr<const LayeredRows>> Open(std::shared_ptr<const ServedRows> base,
                                                         const std::vector<std::string>& gone,
                                                         const std::vector<std::string>& rows);
  explicit LayeredRows(std::shared_ptr<const ServedRows> base, std::vector<RowsLayer> layers = {});

  const std::shared_ptr<const ServedRows>& base() const { return base_; }
  int dim() const { return base_->dim(); }

  // These are like the ones of ServedRows. A key without a row gets what the base says of those.
  Status Lookup(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for) const;
  Status Contains(const Key* keys, size_t n, uint8_t* out, const ParallelFor& parallel_for) const;

 private:
  // Returns the numbers of the keys that layers may have, of which there are few.
  std::vector<size_t> Touched(const Key* keys, size_t n) const;
  // Change what the base has said of n keys. See Lookup and Contains.
  Status LayRows(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for) const;
  Status LayFlags(const Key* keys, size_t n, uint8_t* out, const ParallelFor& parallel_for) const;

  const std::shared_ptr<const ServedRows> base_;
  const std::vector<RowsLayer> layers_;  // the lowest first
  TouchedKeys touched_;                  // the keys of all layers
};

}  // namespace sok
