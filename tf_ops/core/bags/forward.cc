#include "core/bags/forward.h"

#include <algorithm>
#include <vector>

#include "core/bags/row_reader.h"

namespace sok {
namespace {

template <typename T, typename Out>
void SumBag(const Bags& bags, BagMode mode, int64_t bag, int dim,
            const typename SumOf<T>::type* scales, RowReader<T>* reader,
            typename SumOf<T>::type* sums, Out* out) {
  using Sum = typename SumOf<T>::type;
  std::fill_n(sums, dim, Sum{0});
  int64_t count = 0;
  for (int64_t e = bags.splits[bag]; e < bags.splits[bag + 1]; ++e) {
    if (bags.padded(e)) continue;
    ++count;
    const Sum* row = reader->Read(static_cast<uint64_t>(bags.ids[e]));
    if (scales == nullptr) {
      for (int d = 0; d < dim; ++d) sums[d] += row[d];
    } else {
      for (int d = 0; d < dim; ++d) sums[d] += row[d] * scales[e];
    }
  }
  if (mode == BagMode::kMean && count > 0) {
    for (int d = 0; d < dim; ++d) sums[d] /= static_cast<Sum>(count);
  }
  for (int d = 0; d < dim; ++d) out[d] = Narrow<Out>(sums[d]);
}

template <typename T, typename Out>
void MaxOfBag(const Bags& bags, int64_t bag, int dim, RowReader<T>* reader,
              typename SumOf<T>::type* best, Out* out, int64_t* winners) {
  using Sum = typename SumOf<T>::type;
  std::fill_n(best, dim, Sum{0});
  std::fill_n(winners, dim, int64_t{-1});
  bool first = true;
  for (int64_t e = bags.splits[bag]; e < bags.splits[bag + 1]; ++e) {
    if (bags.padded(e)) continue;
    const Sum* row = reader->Read(static_cast<uint64_t>(bags.ids[e]));
    for (int d = 0; d < dim; ++d) {
      // A NaN wins against numbers, as it does in tf.reduce_max.
      const bool wins = first || row[d] > best[d] || (row[d] != row[d] && best[d] == best[d]);
      best[d] = wins ? row[d] : best[d];
      winners[d] = wins ? e : winners[d];
    }
    first = false;
  }
  for (int d = 0; d < dim; ++d) out[d] = Narrow<Out>(best[d]);
}

}  // namespace

template <typename T, typename Out>
void HashedBagForward(const PositionMap& positions, const Bags& bags, BagMode mode, const T* weight,
                      const typename SumOf<T>::type* scales, Out* out, int64_t* winners,
                      const ParallelFor& parallel_for) {
  const int dim = positions.dim();
  const int64_t mean_entries = bags.entries() / std::max<int64_t>(bags.bags, 1) + 1;
  parallel_for(bags.bags, mean_entries * (10 + 2 * dim), [&](int64_t begin, int64_t end) {
    RowReader<T> reader(positions, weight);
    std::vector<typename SumOf<T>::type> result(dim);
    for (int64_t bag = begin; bag < end; ++bag) {
      if (mode == BagMode::kMax) {
        MaxOfBag(bags, bag, dim, &reader, result.data(), out + bag * dim, winners + bag * dim);
      } else {
        SumBag(bags, mode, bag, dim, scales, &reader, result.data(), out + bag * dim);
      }
    }
  });
}

#define SOK_INSTANTIATE(T, Out)                                                      \
  template void HashedBagForward(const PositionMap&, const Bags&, BagMode, const T*, \
                                 const SumOf<T>::type*, Out*, int64_t*, const ParallelFor&)
#define SOK_INSTANTIATE_OUTPUTS(T) \
  SOK_INSTANTIATE(T, float);       \
  SOK_INSTANTIATE(T, BFloat16);    \
  SOK_INSTANTIATE(T, Float16)
SOK_INSTANTIATE_OUTPUTS(float);
SOK_INSTANTIATE_OUTPUTS(BFloat16);
SOK_INSTANTIATE_OUTPUTS(Float16);
SOK_INSTANTIATE(double, double);
#undef SOK_INSTANTIATE_OUTPUTS
#undef SOK_INSTANTIATE

}  // namespace sok
