// The arguments that the host passes to the kernels of hashed bags: see arguments.h.
#pragma once

#include "core/bags/position_arithmetic.h"
#include "core/gpu/kernels/arguments.h"

namespace sok::gpu {

// Holds what kernels have found wrong with their inputs. It lies in the memory of the host, where
// the GPU writes it, so that nobody waits to learn that all is well.
enum class BagFaultKind : uint32_t {
  kNone,
  kId,           // outside of [0, limit)
  kFirstOffset,  // not 0
  kOffset,       // below the one before, which is `limit`, or above the number of ids
  kLastOffset,   // not the number of ids
  kWinner,       // outside of the batch
};
struct BagFault {
  BagFaultKind kind;  // written last
  int64_t value;
  int64_t limit;
  uint64_t place;
};

// The bags of one call: Bags and PositionMap as kernels get them.
struct BagInputs {
  PositionArithmetic positions;
  const void* ids;      // (entries)
  const void* offsets;  // where bags begin; null for bags of `width` ids
  uint64_t entries;
  uint64_t bags;
  uint64_t width;
  uint64_t num_embeddings;
  int64_t padding;  // an id, or -1
  bool wide_ids;    // int64, else int32
  bool wide_offsets;
  bool ends;  // one more offset says where the last bag ends
  bool is_mean;
  bool is_max;
  uint32_t* fault_is_taken;  // one
  BagFault* fault;
};

struct BagForwardArguments {
  BagInputs bags;
  const void* weight;  // (size)
  const void* scales;  // (entries) of `out_element`, or null
  void* out;           // (bags, dim)
  int64_t* winners;    // (bags, dim) of a maximum, or null
  Element weight_element;
  Element out_element;
};

// Counts the entries of each bag that take part.
struct BagCountArguments {
  BagInputs bags;
  int64_t* counts;  // (bags) out
};

// Gradients are summed by position, in rounds and, for weights of more than kMostPositions, by
// ranges of positions. A unit is an entry of the batch, or for a maximum a bag.
constexpr uint64_t kMostPositions = 0xfffffff0u;
struct BagValueArguments {
  BagInputs bags;
  const void* upstream;    // (bags, dim)
  const void* scales;      // (entries), or null
  const int64_t* winners;  // (bags, dim) of a maximum, or null
  const int64_t* counts;   // (bags) of a mean with padding, or null
  Element element;         // of upstream and scales
  uint64_t first_unit;
  uint64_t units;
  uint64_t first_position;
  uint32_t positions;  // of the range; stands for one outside
  uint32_t* keys;      // (units, dim) out: positions minus the first one
  // (units, dim) out: the bits of float32 values. Those of float64 are in `wide`.
  uint32_t* values;
  double* wide;
};

// Values that are sorted by position.
struct SortedValues {
  const uint32_t* keys;
  const uint32_t* values;  // bits, or places in `wide`
  const double* wide;      // or null
  const uint32_t* starts;
  const uint32_t* segments;
  const uint32_t* first_chunk;
  const Chunk* chunks;
  const uint32_t* chunk_count;
  void* chunk_sums;  // floats, or doubles with `wide`
};

struct BagSumArguments {
  SortedValues sorted;
  uint64_t first_position;
  void* sums;          // by position, floats or doubles: added to; or (segments) of `element`
  Element element;     // of `sums` where there are positions
  int64_t* positions;  // (segments) out, or null
};

// Rounds floats.
struct BagNarrowArguments {
  const float* from;  // (n)
  uint64_t n;
  void* to;
  Element element;
};

struct BagScaleArguments {
  BagInputs bags;
  const void* weight;    // (size)
  const void* upstream;  // (bags, dim)
  void* factors;         // (entries) out
  Element weight_element;
  Element element;  // of upstream and factors
};

}  // namespace sok::gpu
