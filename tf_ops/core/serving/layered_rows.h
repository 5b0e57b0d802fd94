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
  std::shared_ptr<const ServedRows> gone;  // keys whose rows in files below are gone; null: none
  std::shared_ptr<const ServedRows> rows;  // new and changed rows; null: none
};

// A set that tells quickly, from a few cache lines, that most other keys are not in it.
class TouchedKeys {
 public:
  // Makes room for this many keys.
  explicit TouchedKeys(uint64_t keys);

  void Insert(Key key);
  // Returns true for every key that was inserted, and for about one in seventy other keys.
  bool MayHave(Key key) const;

 private:
  std::vector<uint64_t> words_;  // 16 to 32 bits for each key, which sets two of them
  uint64_t mask_;                // for the number of a bit
};

// A base and the layers over it. Nothing of it changes. Thread-safe.
class LayeredRows {
 public:
  // Opens the files of layers, the lowest first, over an open base. An empty path means no file;
  // `gone` and `rows` have the same length. Errors: as ServedRows::Open returns, and
  // kInvalidArgument for rows with another dim than the base.
  static Result<std::shared_ptr<const LayeredRows>> Open(std::shared_ptr<const ServedRows> base,
                                                         const std::vector<std::string>& gone,
                                                         const std::vector<std::string>& rows);
  explicit LayeredRows(std::shared_ptr<const ServedRows> base, std::vector<RowsLayer> layers = {});

  const std::shared_ptr<const ServedRows>& base() const { return base_; }
  const std::vector<RowsLayer>& layers() const { return layers_; }  // the lowest first
  int dim() const { return base_->dim(); }

  // Like the methods of ServedRows. A key without a row in any file gets the base's result.
  Status Lookup(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for) const;
  Status Contains(const Key* keys, size_t n, uint8_t* out, const ParallelFor& parallel_for) const;

 private:
  // Returns the positions of the few keys that layers may have.
  std::vector<size_t> Touched(const Key* keys, size_t n) const;
  // Change the base's results for n keys. See Lookup and Contains.
  Status LayRows(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for) const;
  Status LayFlags(const Key* keys, size_t n, uint8_t* out, const ParallelFor& parallel_for) const;

  const std::shared_ptr<const ServedRows> base_;
  const std::vector<RowsLayer> layers_;
  TouchedKeys touched_;  // the keys of all layers
};

}  // namespace sok
