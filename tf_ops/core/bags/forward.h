// From bags of ids to vectors.
#pragma once

#include <cstdint>

#include "core/bags/bags.h"
#include "core/bags/position_map.h"
#include "core/base/types.h"

namespace sok {

// Elements are summed, or compared, in the order of the entries, in float32 (double for double).
//   weight  (positions.size())
//   scales  (entries) factors of the entries, or null; kSum only
//   out     (bags, dim): zeros for a bag without entries
//   winners (bags, dim): with kMax, the first entry that has the greatest element, or -1 for a bag
//           without entries; null with the other modes
// T and Out are float, BFloat16 and Float16 in any pair, or both double.
template <typename T, typename Out>
void HashedBagForward(const PositionMap& positions, const Bags& bags, BagMode mode, const T* weight,
                      const typename SumOf<T>::type* scales, Out* out, int64_t* winners,
                      const ParallelFor& parallel_for);

}  // namespace sok
