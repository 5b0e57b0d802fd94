#include "core/bags/gradient.h"

#include <algorithm>

#include "core/bags/block_gradient.h"
#include "core/bags/contributions.h"
#include "core/bags/position_partition.h"
#include "core/bags/row_reader.h"
#include "core/bags/split_gradient.h"

namespace sok {
namespace {

// The most contributions in a round of a dense gradient: they stay in the cache between the two
// halves of a round.
constexpr int64_t kRoundElements = int64_t{1} << 21;

int FloorLog2(int64_t x) {
  int log = 0;
  while (x >>= 1) ++log;
  return log;
}

// Returns the number of bits of a range of positions: few enough for its sums to stay in a core's
// cache and for many cores to have ranges of their own.
int DenseShift(int64_t size) {
  int shift = std::clamp(FloorLog2(size / 16 + 1), 10, 16);
  while (((size - 1) >> shift) >= 1024) ++shift;
  return shift;
}

// Returns the number of bits of a range of positions that gets about 2^14 of the contributions.
int SparseShift(int64_t size, int64_t elements) {
  const int64_t shards = std::clamp<int64_t>(elements >> 14, 1, 4096);
  return std::min(FloorLog2((size - 1) / shards + 1) + 1, 32);
}

// Sorts [records, records + n) by the lowest `bits` of local, and keeps the order of equal records.
template <typename Record>
void SortByLocal(int bits, Record* records, int64_t n, std::vector<Record>* scratch) {
  constexpr int kDigit = 11;
  constexpr uint32_t kMask = (1 << kDigit) - 1;
  scratch->resize(n);
  Record *from = records, *to = scratch->data();
  for (int low = 0; low < bits; low += kDigit) {
    uint32_t starts[kMask + 2];
    CountingSort sort(starts, kMask + 1);
    for (int64_t i = 0; i < n; ++i) sort.Count(from[i].local >> low & kMask);
    sort.Start();
    for (int64_t i = 0; i < n; ++i) to[sort.Take(from[i].local >> low & kMask)] = from[i];
    std::swap(from, to);
  }
  if (from != records) std::copy(from, from + n, records);
}

// Joins adjacent records with equal local in place. Returns the new number of records.
template <typename Record>
int64_t SumEqual(Record* records, int64_t n) {
  int64_t distinct = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (distinct > 0 && records[distinct - 1].local == records[i].local) {
      records[distinct - 1].value += records[i].value;
    } else {
      records[distinct++] = records[i];
    }
  }
  return distinct;
}

}  // namespace

template <typename Sum>
void DenseWeightGradient(const BagGradient<Sum>& gradient, Sum* sums,
                         const ParallelFor& parallel_for) {
  const int64_t size = gradient.positions.size();
  const int shift = DenseShift(size);
  const EntryGradients<Sum> entry_gradients(gradient, parallel_for);
  if (BlockGradient<Sum>::Suits(gradient, shift)) {
    BlockGradient<Sum>(gradient, entry_gradients, shift).Run(sums, parallel_for);
    return;
  }
  const Contributions<Sum> contributions(gradient, entry_gradients);
  const SplitGradient<Sum> split(gradient, contributions);
  if (split.suits()) return split.Run(sums, parallel_for);
  PositionPartition<Sum> partition(size, shift);
  const int64_t round = std::max<int64_t>(1, kRoundElements / contributions.dim());
  int64_t begin = 0;
  do {
    const int64_t end = std::min(begin + round, contributions.units());
    partition.Build(contributions, begin, end, parallel_for);
    const int64_t cost = (end - begin) * contributions.dim() / partition.shards() * 2 + 1000;
    parallel_for(partition.shards(), cost, [&](int64_t first, int64_t last) {
      for (int64_t shard = first; shard < last; ++shard) {
        const int64_t low = shard << shift;
        Sum* slice = sums + low;
        if (begin == 0) std::fill_n(slice, std::min(size - low, int64_t{1} << shift), Sum{0});
        partition.ForEach(static_cast<uint32_t>(shard),
                          [slice](const auto& record) { slice[record.local] += record.value; });
      }
    });
    begin = end;
  } while (begin < contributions.units());
}

template <typename Sum>
SparseWeightGradient<Sum>::SparseWeightGradient(const BagGradient<Sum>& gradient,
                                                const ParallelFor& parallel_for) {
  const EntryGradients<Sum> entry_gradients(gradient, parallel_for);
  const Contributions<Sum> contributions(gradient, entry_gradients);
  const int64_t elements = contributions.units() * contributions.dim();
  shift_ = SparseShift(gradient.positions.size(), elements);
  PositionPartition<Sum> partition(gradient.positions.size(), shift_);
  partition.Build(contributions, 0, contributions.units(), parallel_for);
  const int64_t shards = partition.shards();
  firsts_.assign(1, 0);
  for (int64_t s = 0; s < shards; ++s) {
    firsts_.push_back(firsts_.back() + partition.Count(static_cast<uint32_t>(s)));
  }
  sums_.Resize(firsts_.back());
  starts_.assign(shards + 1, 0);
  parallel_for(shards, elements / shards * 10 + 100, [&](int64_t first, int64_t last) {
    std::vector<PositionValue<Sum>> scratch;
    for (int64_t s = first; s < last; ++s) {
      PositionValue<Sum>* records = sums_.data() + firsts_[s];
      const int64_t n = firsts_[s + 1] - firsts_[s];
      partition.ForEach(static_cast<uint32_t>(s),
                        [next = records](const auto& record) mutable { *next++ = record; });
      SortByLocal(shift_, records, n, &scratch);
      starts_[s + 1] = SumEqual(records, n);
    }
  });
  for (int64_t s = 0; s < shards; ++s) starts_[s + 1] += starts_[s];
}

template <typename Sum>
template <typename Out>
void SparseWeightGradient<Sum>::Write(int64_t* positions, Out* sums,
                                      const ParallelFor& parallel_for) const {
  const auto shards = static_cast<int64_t>(starts_.size()) - 1;
  parallel_for(shards, size() / shards + 100, [&](int64_t first, int64_t last) {
    for (int64_t shard = first; shard < last; ++shard) {
      const PositionValue<Sum>* next = sums_.data() + firsts_[shard];
      for (int64_t i = starts_[shard]; i < starts_[shard + 1]; ++i, ++next) {
        positions[i] = shard << shift_ | next->local;
        sums[i] = Narrow<Out>(next->value);
      }
    }
  });
}

template <typename T>
void ScaleGradient(const BagGradient<typename SumOf<T>::type>& gradient, const T* weight,
                   typename SumOf<T>::type* factors, const ParallelFor& parallel_for) {
  using Sum = typename SumOf<T>::type;
  const Bags& bags = gradient.bags;
  const int dim = gradient.positions.dim();
  parallel_for(bags.entries(), 10 + 3 * dim, [&](int64_t begin, int64_t end) {
    RowReader<T> reader(gradient.positions, weight);
    BagFinder finder(bags, begin);
    for (int64_t e = begin; e < end; ++e) {
      Sum sum{0};
      if (!bags.padded(e)) {
        const Sum* row = reader.Read(static_cast<uint64_t>(bags.ids[e]));
        const Sum* upstream = gradient.upstream + finder.BagOf(e) * dim;
        for (int d = 0; d < dim; ++d) sum += upstream[d] * row[d];
      }
      factors[e] = sum;
    }
  });
}

#define SOK_INSTANTIATE(Sum)                                                            \
  template void DenseWeightGradient(const BagGradient<Sum>&, Sum*, const ParallelFor&); \
  template class SparseWeightGradient<Sum>
SOK_INSTANTIATE(float);
SOK_INSTANTIATE(double);
#undef SOK_INSTANTIATE

#define SOK_INSTANTIATE(Sum, T)                                                           \
  template void SparseWeightGradient<Sum>::Write(int64_t*, T*, const ParallelFor&) const; \
  template void ScaleGradient(const BagGradient<Sum>&, const T*, Sum*, const ParallelFor&)
SOK_INSTANTIATE(float, float);
SOK_INSTANTIATE(float, BFloat16);
SOK_INSTANTIATE(float, Float16);
SOK_INSTANTIATE(double, double);
#undef SOK_INSTANTIATE

}  // namespace sok
