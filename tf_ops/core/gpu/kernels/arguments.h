// The arguments that the host passes to kernels. Pointers are to the memory of the GPU. The host
// and the GPU read these structs byte for byte.
#pragma once

#ifdef __CUDACC_RTC__
#include "core/gpu/kernels/standard.h"
#else
#include <cstddef>
#include <cstdint>
#endif

#include "core/base/start_vector.h"
#include "core/base/unused_bits.h"

namespace sok::gpu {

constexpr uint32_t kNoRow = 0xffffffffu;

// The index of keys. A bucket is a cache line: five keys, the numbers of their rows, and a word
// that says which of the five are taken.
constexpr int kBucketKeys = 5;
struct alignas(64) Bucket {
  uint64_t keys[kBucketKeys];
  uint32_t rows[kBucketKeys];
  // Bit s: place s is claimed. Bit kReady + s: its key is written. kPassed: a key of this bucket
  // may be in a later bucket.
  uint32_t state;
};
constexpr uint32_t kClaimed = 0x1fu;
constexpr int kReady = 8;
constexpr uint32_t kPassed = 1u << 16;

// A row's counters: RowMeta.
struct Meta {
  uint32_t update_num;
  uint32_t update_time;
};

// The numbers of rows. The GPU changes them; the host reads copies.
struct Counters {
  uint32_t end;    // rows have numbers below this
  uint32_t free;   // numbers below `end` that are not in use
  uint32_t made;   // rows that the current call has made
  uint32_t calls;  // calls that have made rows so far
};

struct Index {
  Bucket* buckets;
  uint64_t count;
};

struct FindArguments {
  Index index;
  const uint64_t* keys;  // (n)
  uint64_t n;
  uint32_t* rows;  // (n) out: kNoRow for a key without a row
};

struct ClaimArguments {
  Index index;
  const uint64_t* keys;  // (n)
  uint64_t n;
  const uint32_t* rows;  // (n) only keys whose row is kNoRow are read
  uint32_t* places;      // (n) out: bucket * kBucketKeys + place, with kIsNew
};
constexpr uint32_t kIsNew = 1u << 31;

struct MakeArguments {
  Index index;
  const uint64_t* keys;  // (n)
  uint64_t n;
  const uint32_t* rows;    // (n)
  const uint32_t* places;  // (n)
  Counters* counters;
  const uint32_t* free_rows;
  uint64_t* row_keys;  // by row
  Meta* metas;         // by row
  uint32_t now;
  uint32_t* made;    // out: the numbers of new rows
  uint32_t* makers;  // out: for each new row, the position of its key; or null
};

// Counts the keys that have no row. A key that comes twice counts twice.
struct CountArguments {
  const uint32_t* rows;  // (n)
  uint64_t n;
  uint32_t* count;  // one number
};

struct SettleArguments {
  Counters* counters;
};

struct LinkArguments {
  Index index;
  uint64_t n;
  const uint32_t* places;  // (n)
  uint32_t* rows;          // (n) in and out
};

// Puts the rows of one index into another index, which has none of them yet.
struct RehashArguments {
  Index from;
  Index to;
};

struct EraseArguments {
  Index index;
  const uint64_t* keys;  // (n)
  uint64_t n;
  uint32_t* free_rows;
  Counters* counters;
  uint32_t* erased;  // one number: how many keys were erased
};

// Lists the rows of the buckets [begin, end).
struct ListArguments {
  Index index;
  uint64_t begin;
  uint64_t end;
  uint64_t* keys;  // out
  uint32_t* rows;  // out
  uint32_t* count;
};

// The memory of rows.
struct Rows {
  float* data;
  uint32_t stride;  // floats from one row to the next
  int dim;
};

// Fills new rows.
struct StartArguments {
  Rows rows;
  const uint32_t* made;  // numbers of rows
  const Counters* counters;
  const uint64_t* row_keys;
  StartVector start;
  const float* slot_start;  // (stride - dim)
};

enum class Element : int {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64
};  // kFloat64: hashed bags alone

struct GatherArguments {
  Rows rows;
  const uint32_t* numbers;  // (n)
  const uint64_t* keys;     // (n); null if every key has a row
  uint64_t n;
  void* out;  // (n, dim)
  Element element;
  // True: a key without a row gets its start vector. False: it gets zeros.
  bool fills_start;
  StartVector start;
};

enum class Combiner : int { kSum, kMean, kSqrtN, kMax };

// Bags of ids.
struct BagsOfIds {
  const int64_t* splits;  // (bags + 1), or null: each has `length` ids
  uint64_t length;
  const float* weights;  // (ids), or null
  uint64_t bags;
  Combiner combiner;
};

// Vectors of bags, or their gradients.
struct BagFloats {
  void* data;
  uint64_t stride;  // elements from the start of one vector to the next
  Element element;
  bool is_aligned;  // true if they can be read and written by pieces, like rows
};

struct PoolArguments {
  Rows rows;
  const uint32_t* numbers;  // (ids)
  const uint64_t* keys;     // (ids); null if every key has a row
  BagsOfIds bags;
  BagFloats out;
  bool fills_start;
  StartVector start;
};

// Computes gradients of rows from gradients of vectors.
struct PoolGradientArguments {
  BagsOfIds bags;
  int dim;
  BagFloats upstream;
  const float* rows;  // (ids, dim) for kMax; else it may be null
  float* gradients;   // (ids, dim) out
  bool skips_marked;  // see RowBags
};

// Computes gradients of weights from gradients of vectors.
struct WeightGradientArguments {
  BagsOfIds bags;
  int dim;
  BagFloats upstream;
  const float* rows;  // (ids, dim)
  float* gradients;   // (ids) out
};

// Static rows, which keys without an own row share, and the slots that an optimizer keeps for them.
// New rows copy both. No rule has more than kMostSlots slots.
constexpr int kMostSlots = 12;
struct StaticRows {
  const float* rows;  // (count, dim)
  uint64_t count;
  const float* slots[kMostSlots];  // (count, width) each
  uint32_t slot_widths[kMostSlots];
  int slot_count;  // 0: slots of new rows get their initial values
};

struct PickKeysArguments {
  const uint64_t* keys;
  const uint32_t* positions;  // (n)
  uint64_t n;
  uint64_t* picked;  // (n) out
};

// Fills new rows that start as copies of static rows. `makers` are indices into `positions`.
struct StartAsStaticArguments {
  Rows rows;
  const uint32_t* made;
  const uint32_t* makers;
  const Counters* counters;
  const uint32_t* positions;
  const int64_t* buckets;
  StaticRows statics;
  const float* slot_start;  // (stride - dim)
};

struct PlaceNumbersArguments {
  const uint32_t* numbers;    // (n)
  const uint32_t* positions;  // (n)
  uint64_t n;
  uint32_t* placed;  // out
};

struct MaskGatherArguments {
  Rows rows;
  const uint32_t* numbers;  // (n) kNoRow: the static row is read instead
  const int64_t* buckets;   // (n)
  StaticRows statics;
  uint64_t n;
  void* out;  // (n, dim)
  Element element;
  bool* own;  // (n) out: whether the key has a row of its own
};

struct StaticKeysArguments {
  const bool* own;         // (n)
  const int64_t* buckets;  // (n)
  uint64_t n;
  uint32_t count;  // the number of static rows, which is also the key of gradients to skip
  uint32_t* keys;  // (n) out
};

struct SegmentKeysArguments {
  const uint32_t* keys;  // sorted
  const uint32_t* starts;
  const uint32_t* segments;
  int64_t* indices;  // (segments) out
};

// Copies n rows between the table and a buffer: whole rows, or the first `floats` of each.
struct CopyRowsArguments {
  Rows rows;
  const uint32_t* numbers;  // (n)
  uint64_t n;
  uint32_t floats;
  float* buffer;  // (n, floats)
  Meta* metas;    // by row
  Meta* copied;   // (n), or null
};

// Copies the embeddings of rows into another layout, and starts their slots.
struct RelayoutArguments {
  Rows from;
  Rows to;
  uint64_t n;
  const float* slot_start;
};

// One pass of a sort by digits of kDigitBits bits.
constexpr int kDigitBits = 6;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kItemsOfThread = 16;
constexpr int kTile = 256 * kItemsOfThread;

struct SortArguments {
  const uint32_t* keys;    // (n)
  const uint32_t* values;  // (n), or null for 0, 1, 2, …
  uint64_t n;
  uint32_t most;  // a key above this is sorted as if it were this
  int shift;
  uint32_t* counts;  // (kDigits, tiles), then the total of each digit
  uint32_t* sorted_keys;
  uint32_t* sorted_values;
};

struct ScanArguments {
  uint32_t* values;  // (n) in and out: each becomes the sum of the values before it
  uint64_t n;
};

// Finds the segments of equal keys in sorted keys.
struct SegmentArguments {
  const uint32_t* keys;  // (n) sorted
  uint64_t n;
  uint32_t missing;    // the key that is skipped; no key is larger
  uint32_t* counts;    // (tiles)
  uint32_t* starts;    // (segments + 1) out
  uint32_t* segments;  // one number, out: how many segments, without the skipped key
};

// Segments of more than kLong gradients are summed in chunks of kChunk gradients.
constexpr uint32_t kLong = 32;
constexpr uint32_t kChunk = 1024;
constexpr uint32_t kNoChunk = 0xffffffffu;
struct Chunk {
  uint32_t begin;
  uint32_t end;
};

struct ChunkArguments {
  const uint32_t* starts;
  const uint32_t* segments;
  uint32_t* first_chunk;  // (segments) out: kNoChunk for a short segment
  Chunk* chunks;          // out
  uint32_t* chunk_count;  // one number
};

// The gradients of a commit, sorted by row.
struct Gradients {
  const float* data;          // (n, dim)
  const uint32_t* positions;  // (n) sorted
  const uint32_t* starts;
  const uint32_t* segments;
  const uint32_t* first_chunk;
  const Chunk* chunks;
  const uint32_t* chunk_count;
  float* chunk_sums;  // (chunks, dim)
  int dim;
};

struct SumArguments {
  Gradients gradients;
  float* sums;  // (segments, dim) out, for StoreSums
};

// Writes zeros to each row, or the mark that a row has no gradient.
struct StartSumsArguments {
  float* sums;  // (count, dim) out
  uint64_t count;
  int dim;
  bool marks_unused;
};

// Writes each sum to the row that its number names.
struct PlaceSumsArguments {
  Gradients gradients;
  const uint32_t* numbers;  // (n) sorted
  float* sums;              // (count, dim) out
};

// Skips the keys whose gradient is marked as unused.
struct RestArguments {
  const float* gradients;  // (n, dim)
  uint64_t n;
  int dim;
  uint32_t* numbers;  // (n) in and out: becomes kNoRow for skipped keys
};

// Makes a step of a rule on every row that has gradients. The rule's struct follows in memory.
struct alignas(8) UpdateArguments {
  Gradients gradients;
  const uint32_t* keys;  // (n) sorted: numbers of rows
  Rows rows;
  Meta* metas;
  const float* sums;  // for a rule by row: what StoreSums wrote
  float scale;
  float clip_value;  // 0: values are not clipped
  float learning_rate;
  float weight_decay;
  uint32_t now;
};

// Appends a batch's gradients, times a factor, to the gradients of other batches.
struct AppendArguments {
  const void* from;  // (rows, dim)
  // (n / dim) the rows that are appended; null: all rows, in order.
  const uint32_t* positions;
  int dim;
  Element element;
  float factor;
  uint64_t n;  // number of floats
  float* to;
};

// Writes embeddings to rows. If a row comes several times, the last embedding is kept.
struct AssignArguments {
  Rows rows;
  const uint32_t* keys;       // (n) sorted: numbers of rows
  const uint32_t* positions;  // (n)
  const uint32_t* starts;
  const uint32_t* segments;
  const float* values;  // (n, dim)
};

// The counters by which rows are ranked for eviction.
struct RankArguments {
  const Meta* metas;
  const uint32_t* numbers;  // (n) rows
  uint64_t n;
  bool by_time;
  uint32_t* ranks;  // (n) out
};

struct PickArguments {
  const uint64_t* row_keys;
  const uint32_t* numbers;  // (n) rows
  const uint32_t* order;    // (k) indices into `numbers`
  uint64_t k;
  uint64_t* keys;  // (k) out
};

}  // namespace sok::gpu
