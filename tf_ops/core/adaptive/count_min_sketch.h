// A sketch counts keys in a fixed amount of memory. Its counts may be too high, and are never too
// low. It is a count-min sketch (Cormode, Muthukrishnan 2005, "An improved data stream summary: the
// count-min sketch and its applications") with conservative update (Estan, Varghese 2002, "New
// directions in traffic measurement and accounting").
//
// Each key has four cells, one in each of four rows of cells. Its estimate is the smallest of the
// four, and its true count is at most that. The cells stand in buckets. All four cells of a key lie
// in the bucket that the caller names; a bucket has a part of each row, one after the other. So
// sketches that share the buckets among several workers count like one sketch with all buckets.
//
// The class is not thread-safe, but const methods may run at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/page_memory.h"
#include "core/base/status.h"
#include "core/base/types.h"

namespace sok {

struct SketchConfig {
  uint64_t buckets;           // how many this sketch has, at least 1
  uint64_t cells_per_bucket;  // a positive multiple of CountMinSketch::kRows
  int cell_bits;              // 8 or 16
};

class CountMinSketch {
 public:
  static constexpr uint64_t kRows = 4;

  // Errors: kInvalidArgument for a config that SketchConfig does not allow, kResourceExhausted if
  // memory ends.
  static Result<std::unique_ptr<CountMinSketch>> Make(const SketchConfig& config);

  // Returns how many cells each of `all_buckets` buckets (at least 1), on all workers together,
  // must have to count `capacity` keys: eight a key and eight more a bucket. With that, take a
  // million keys with Zipf's exponent 1.05, draw them up to 30 million times, and count each until
  // it reaches k = 2, 3, 5 or 10: fewer than 0.5 % of the keys then have an estimate of k without
  // having been drawn k times, in any number of buckets.
  static uint64_t CellsPerBucket(uint64_t capacity, uint64_t all_buckets);

  // Counts key i counts[i] times, in bucket buckets[i] < config.buckets. The keys must be distinct.
  // estimates[i] becomes its estimate, which is at most max() and, below that, never less than what
  // was added since the last Halve. All cells are read before any of them is raised, and a key
  // raises only those below its own estimate: the order of the keys makes no difference.
  void Add(const Key* keys, const uint32_t* buckets, const uint32_t* counts, size_t n,
           uint32_t* estimates);
  void Estimate(const Key* keys, const uint32_t* buckets, size_t n, uint32_t* estimates) const;

  // Halves every cell, rounded down.
  void Halve(const ParallelFor& parallel_for);

  // Returns the largest count that a cell holds.
  uint32_t max() const { return config_.cell_bits == 8 ? UINT8_MAX : UINT16_MAX; }
  // Returns the share of cells that stand at max().
  double Saturation() const;
  uint64_t bytes() const { return memory_.bytes(); }

  // The sketch as bytes:
  //
  //   offset  bytes  field
  //        0      4  "SOKC"
  //        4      4  version of the format, and of the hash functions that place a key's cells
  //        8      8  buckets
  //       16      8  cells of a bucket
  //       24      4  bits of a cell
  //       28      8  XXH3-64 of the cells, seeded with XXH3-64 of the header up to here
  //       36         cells
  //
  // All numbers and cells are little-endian.
  std::string Dump() const;
  // Replaces the cells by the cells of a dump. Errors, after which this sketch is as before:
  // kInvalidArgument for a sketch of another config or version, kDataLoss for a dump that was cut
  // short or damaged.
  Status Load(std::string_view dump);

 private:
  CountMinSketch(const SketchConfig& config, PageBuffer memory);

  // Calls fn(i, cells) for the i-th key, where cells[r] points to its cell of row r. It prefetches
  // the cells of the next keys.
  template <typename Cell, typename Fn>
  void ForEachKey(const Key* keys, const uint32_t* buckets, size_t n, const Fn& fn) const;
  template <typename Cell>
  void FindCells(Key key, uint32_t bucket, Cell** cells) const;
  // Calls fn with a null pointer of a cell's type.
  template <typename Fn>
  void WithCell(const Fn& fn) const;

  uint64_t cells() const { return config_.buckets * config_.cells_per_bucket; }
  uint64_t cells_bytes() const { return cells() * static_cast<uint64_t>(config_.cell_bits) / 8; }
  std::string Header(std::string_view cells) const;

  const SketchConfig config_;
  const uint64_t row_cells_;  // cells of a row within a bucket
  PageBuffer memory_;
};

}  // namespace sok
