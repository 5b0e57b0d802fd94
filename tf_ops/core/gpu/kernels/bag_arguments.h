// The arguments that the host passes to the kernels of hashed bags: see arguments.h.
#pragma once

#include "core/bags/position_arithmetic.h"
#include "core/gpu/kernels/arguments.h"

namespace sok::gpu {

// Describes the fault that kernels have found in their inputs. It is in the memory of the host,
// where the GPU writes it, so that the host need not wait for the GPU as long as all is well.
enum class BagFaultKind : uint32_t {
  kNone,
  kId,           // outside of [0, limit)
  kFirstOffset,  // not 0
  kOffset,       // below the offset before, which is `limit`, or above the number of ids
  kLastOffset,   // not the number of ids
  kWinner,       // outside of the batch
};
struct BagFault {
  BagFaultKind kind;  // written last
  int64_t value;
  int64_t limit;
  uint64_t place;
};

// The bags of one call: the members of Bags and PositionMap in the form that kernels get.
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
  bool ends;  // there is one more offset, the end of the last bag
  bool is_mean;
  bool is_max;
  uint32_t* fault_is_taken;  // one number
  BagFault* fault;
};

struct BagForwardArguments {
  BagInputs bags;
  const void* weight;  // (size)
  const void* scales;  // (entries) of `out_element`, or null
  void* out;           // (bags, dim)
  int64_t* winners;    // (bags, dim) for a maximum, or null
  Element weight_element;
  Element out_element;
};

// Counts the entries of each bag that are not padding.
struct BagCountArguments {
  BagInputs bags;
  int64_t* counts;  // (bags) out
};

// Gradients are summed by position, in several rounds. For weights of more than kMostPositions,
// each round has a range of positions. A unit is an entry of the batch or, for a maximum, a bag.
constexpr uint64_t kMostPositions = 0xfffffff0u;
struct BagValueArguments {
  BagInputs bags;
  const void* upstream;    // (bags, dim)
  const void* scales;      // (entries), or null
  const int64_t* winners;  // (bags, dim) for a maximum, or null
  const int64_t* counts;   // (bags) for a mean with padding, or null
  Element element;         // of upstream and scales
  uint64_t first_unit;
  uint64_t units;
  uint64_t first_position;
  uint32_t positions;  // in the range; as a key it means "outside of the range"
  uint32_t* keys;      // (units, dim) out: positions minus the first one
  // (units, dim) out: the bits of float32 values, while float64 values are in `wide`.
  uint32_t* values;
  double* wide;
};

// Values, sorted by position.
struct SortedValues {
  const uint32_t* keys;
  const uint32_t* values;  // bits, or indices into `wide`
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
  void* sums;          // by position, as float or double: added to; or (segments) of `element`
  Element element;     // of `sums` if `positions` is not null
  int64_t* positions;  // (segments) out, or null
};

// Rounds floats to a narrower type.
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
