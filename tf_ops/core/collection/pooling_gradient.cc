#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/base/grouping.h"
#include "core/collection/bag_scale.h"
#include "core/collection/for_each_table.h"
#include "core/collection/pooling.h"
#include "core/collection/table_collection.h"
#include "core/rows/row_copy.h"

namespace sok {
namespace {

// The part of a row's gradient that comes from one key of a bag.
template <typename T>
struct Share {
  const T* upstream;        // (dim) the gradient of the bag's vector
  const uint32_t* winners;  // (dim) for kMax: the key that each element comes from. Else null.
  uint32_t key;             // its position in the feature
  float factor;
};

template <typename T>
class GradientOfPool {
 public:
  GradientOfPool(const CollectionRequest& request, const std::vector<Pooling>& poolings,
                 const float* rows, const RowPlaces& places,
                 const std::vector<BagVectors<const T>>& upstream, const ParallelFor& parallel_for)
      : request_(request),
        poolings_(poolings),
        rows_(rows),
        places_(places),
        upstream_(upstream),
        parallel_for_(parallel_for) {}

  void OfRows(float* gradients, const RowPlaces& places) {
    FindWinners();
    std::vector<TableWork> work;
    int64_t floats = 0;
    for (size_t table = 0; table < request_.tables().size(); ++table) {
      work.push_back({table, request_.tables()[table].row_of.size()});
      floats += request_.plan().tables[table].dim;
    }
    const int64_t cost = 10 + floats / std::max<int64_t>(1, static_cast<int64_t>(work.size())) / 2;
    ForEachTable(work, cost, parallel_for_, [&](size_t table, const ParallelFor& inner) {
      const std::vector<uint32_t>& features = request_.tables()[table].features;
      if (std::all_of(features.begin(), features.end(), [&](uint32_t f) { return IsPlain(f); })) {
        OfTable<const T*>(table, gradients, places, inner);
      } else {
        OfTable<Share<T>>(table, gradients, places, inner);
      }
    });
  }

  void OfWeights(size_t feature, float* gradients) {
    const FeatureBags& bags = request_.feature(feature);
    if (upstream_[feature].data == nullptr) {
      std::fill_n(gradients, bags.n, 0.0f);
      return;
    }
    const int64_t cost = 20 + static_cast<int64_t>(DimOf(feature) * (bags.n / (bags.bags + 1) + 1));
    parallel_for_(static_cast<int64_t>(bags.bags), cost, [&](int64_t first, int64_t last) {
      for (int64_t bag = first; bag < last; ++bag) OfWeightsOfBag(feature, bag, gradients);
    });
  }

 private:
  size_t DimOf(size_t feature) const {
    return request_.plan().tables[request_.plan().feature_tables[feature]].dim;
  }
  const float* RowAt(size_t feature, size_t i) const {
    return rows_ + places_.at(request_.plan().feature_tables[feature], request_.rows_of(feature)[i],
                              DimOf(feature));
  }

  // Finds, for each element of a bag's maximum, the first key that has it.
  void FindWinners() {
    winners_.resize(poolings_.size());
    for (size_t feature = 0; feature < poolings_.size(); ++feature) {
      const bool is_max = poolings_[feature].combiner == Combiner::kMax;
      if (!is_max || upstream_[feature].data == nullptr) continue;
      const FeatureBags& bags = request_.feature(feature);
      const size_t dim = DimOf(feature);
      winners_[feature].resize(bags.bags * dim);
      const int64_t cost = 20 + static_cast<int64_t>(dim * (bags.n / (bags.bags + 1) + 1));
      parallel_for_(static_cast<int64_t>(bags.bags), cost, [&](int64_t first, int64_t last) {
        for (int64_t bag = first; bag < last; ++bag) {
          uint32_t* winner = winners_[feature].data() + bag * dim;
          const size_t begin = bags.begin(bag), end = bags.end(bag);
          std::fill_n(winner, dim, static_cast<uint32_t>(begin));
          for (size_t i = begin + 1; i < end; ++i) {
            const float* row = RowAt(feature, i);
            for (size_t j = 0; j < dim; ++j) {
              if (row[j] > RowAt(feature, winner[j])[j]) winner[j] = static_cast<uint32_t>(i);
            }
          }
        }
      });
    }
  }

  // Returns true if each bag of a feature is one key, whose row gets the gradient of the bag's
  // vector as it is.
  bool IsPlain(uint32_t feature) const {
    return request_.feature(feature).is_key_a_bag() && poolings_[feature].weights == nullptr;
  }

  // Addend is a Share, or for plain features the gradient of a vector.
  template <typename Addend>
  void OfTable(size_t table, float* gradients, const RowPlaces& places,
               const ParallelFor& inner) const {
    constexpr size_t kMany = 4096;
    if (request_.tables()[table].row_of.size() > kMany) {
      OfTableOfMany<Addend>(table, gradients, places, inner);
    } else {
      OfTableOfFew<Addend>(table, gradients, places);
    }
  }

  // Adds each key's part to its row at once. The sums are equal to the sums of OfTableOfMany, bit
  // by bit.
  template <typename Addend>
  void OfTableOfFew(size_t table, float* gradients, const RowPlaces& places) const {
    const auto& part = request_.tables()[table];
    const auto dim = static_cast<size_t>(request_.plan().tables[table].dim);
    std::vector<uint8_t> used(part.rows, 0);
    const PlacedRows to(gradients, places, table, dim);
    for (size_t row = 0; row < part.rows; ++row) {
      std::fill_n(to.at(row), dim, 0.0f);
    }
    for (uint32_t feature : part.features) {
      const uint32_t* row_of = request_.rows_of(feature);
      ForEachAddend<Addend>(feature, [&](uint32_t key, const Addend& addend) {
        used[row_of[key]] = 1;
        Add(addend, dim, to.at(row_of[key]));
      });
    }
    if (!request_.plan().marks_unused) return;
    for (size_t row = 0; row < part.rows; ++row) {
      if (used[row] == 0) MarkUnused(to.at(row));
    }
  }

  template <typename Addend>
  void OfTableOfMany(size_t table, float* gradients, const RowPlaces& places,
                     const ParallelFor& inner) const {
    const auto& part = request_.tables()[table];
    const auto distinct = static_cast<uint32_t>(part.rows);
    std::vector<uint32_t> starts(distinct + 1);
    CountingSort sort(starts.data(), distinct);
    size_t n = 0;
    for (uint32_t feature : part.features) {
      if (upstream_[feature].data == nullptr) continue;
      const FeatureBags& bags = request_.feature(feature);
      for (size_t i = 0; i < bags.n; ++i) sort.Count(request_.rows_of(feature)[i]);
      n += bags.n;
    }
    sort.Start();
    std::vector<Addend> shares(n);
    for (uint32_t feature : part.features) {
      const uint32_t* row_of = request_.rows_of(feature);
      ForEachAddend<Addend>(feature, [&](uint32_t key, const Addend& addend) {
        shares[sort.Take(row_of[key])] = addend;
      });
    }
    sort.Finish();
    const auto dim = static_cast<size_t>(request_.plan().tables[table].dim);
    const auto cost = static_cast<int64_t>(10 + (n / (distinct + 1) + 1) * dim / 4);
    constexpr uint32_t kAhead = 8;
    inner(distinct, cost, [&](int64_t first, int64_t last) {
      const uint32_t end = starts[last];
      for (int64_t row = first; row < last; ++row) {
        float* const sum = gradients + places.at(table, row, dim);
        for (uint32_t i = starts[row]; i < starts[row + 1] && i + kAhead < end; ++i) {
          PrefetchUpstream(shares[i + kAhead], dim);
        }
        SumOf(shares.data() + starts[row], shares.data() + starts[row + 1], dim, sum);
        if (starts[row] == starts[row + 1] && request_.plan().marks_unused) MarkUnused(sum);
      }
    });
  }

  static void MarkUnused(float* gradient) {
    std::memcpy(gradient, &kUnusedBits, sizeof(kUnusedBits));
  }

  // Calls fn(key, addend) for the keys of a feature, in their order, if the feature was used.
  template <typename Addend, typename Fn>
  void ForEachAddend(size_t feature, const Fn& fn) const {
    const BagVectors<const T>& upstream = upstream_[feature];
    if (upstream.data == nullptr) return;
    if constexpr (std::is_same_v<Addend, const T*>) {
      // The vectors of one feature may lie far apart, and then the processor does not prefetch them
      // by itself.
      constexpr size_t kAhead = 16;
      const auto keys = static_cast<uint32_t>(request_.feature(feature).n);
      for (uint32_t i = 0; i < keys; ++i) {
        __builtin_prefetch(upstream.data + (i + kAhead) * upstream.stride);
        fn(i, upstream.data + i * upstream.stride);
      }
    } else {
      ForEachShare(feature, fn);
    }
  }

  template <typename Fn>
  void ForEachShare(size_t feature, const Fn& fn) const {
    const FeatureBags& bags = request_.feature(feature);
    const Pooling& pooling = poolings_[feature];
    const bool is_max = pooling.combiner == Combiner::kMax;
    const size_t dim = DimOf(feature);
    for (size_t bag = 0; bag < bags.bags; ++bag) {
      const size_t begin = bags.begin(bag), end = bags.end(bag);
      const float scale = ScaleOf(pooling, begin, end).scale;
      const T* upstream = upstream_[feature].data + bag * upstream_[feature].stride;
      const uint32_t* winners = is_max ? winners_[feature].data() + bag * dim : nullptr;
      for (size_t i = begin; i < end; ++i) {
        const float factor = pooling.weights == nullptr ? scale : scale * pooling.weights[i];
        fn(static_cast<uint32_t>(i), Share<T>{upstream, winners, static_cast<uint32_t>(i), factor});
      }
    }
  }

  template <typename Addend>
  static void SumOf(const Addend* first, const Addend* last, size_t dim, float* sum) {
    std::fill_n(sum, dim, 0.0f);
    for (const Addend* addend = first; addend < last; ++addend) Add(*addend, dim, sum);
  }

  // The vectors of a row's keys do not lie side by side, so each is prefetched by its address.
  static void PrefetchUpstream(const T* upstream, size_t dim) {
    ForEachLine(upstream, static_cast<int>(dim),
                [](const void* line) { __builtin_prefetch(line); });
  }
  static void PrefetchUpstream(const Share<T>& share, size_t dim) {
    PrefetchUpstream(share.upstream, dim);
  }

  static void Add(const T* __restrict upstream, size_t dim, float* __restrict sum) {
    for (size_t j = 0; j < dim; ++j) sum[j] += ToFloat(upstream[j]);
  }

  static void Add(const Share<T>& share, size_t dim, float* sum) {
    if (share.winners == nullptr) {
      for (size_t j = 0; j < dim; ++j) sum[j] += share.factor * ToFloat(share.upstream[j]);
    } else {
      for (size_t j = 0; j < dim; ++j) {
        if (share.winners[j] == share.key) sum[j] += ToFloat(share.upstream[j]);
      }
    }
  }

  // With g the upstream gradient and y = s / d the vector, s = sum(w_i x_i):
  //   sum    g.x_i
  //   mean   (g.x_i - g.y) / d
  //   sqrtn  (g.x_i - (g.y / d) w_i) / d
  void OfWeightsOfBag(size_t feature, size_t bag, float* gradients) const {
    const FeatureBags& bags = request_.feature(feature);
    const Pooling& pooling = poolings_[feature];
    const size_t begin = bags.begin(bag), end = bags.end(bag), dim = DimOf(feature);
    const BagScale scale = ScaleOf(pooling, begin, end);
    const T* upstream = upstream_[feature].data + bag * upstream_[feature].stride;
    float of_vector = 0.0f;  // g.y
    for (size_t i = begin; i < end; ++i) {
      const float* row = RowAt(feature, i);
      float product = 0.0f;
      for (size_t j = 0; j < dim; ++j) product += ToFloat(upstream[j]) * row[j];
      gradients[i] = product;
      of_vector += scale.scale * pooling.weights[i] * product;
    }
    for (size_t i = begin; i < end; ++i) {
      if (pooling.combiner == Combiner::kMean) {
        gradients[i] = (gradients[i] - of_vector) * scale.scale;
      } else if (pooling.combiner == Combiner::kSqrtN) {
        const float share = of_vector * scale.scale * pooling.weights[i];
        gradients[i] = (gradients[i] - share) * scale.scale;
      }
    }
  }

  const CollectionRequest& request_;
  const std::vector<Pooling>& poolings_;
  const float* const rows_;
  const RowPlaces& places_;
  const std::vector<BagVectors<const T>>& upstream_;
  const ParallelFor& parallel_for_;
  std::vector<std::vector<uint32_t>> winners_;  // (features)(bags, dim), for kMax
};

}  // namespace

template <typename T>
void PoolGradient(const CollectionRequest& request, const std::vector<Pooling>& poolings,
                  const float* rows, const RowPlaces& places,
                  const std::vector<BagVectors<const T>>& upstream, float* row_gradients,
                  const RowPlaces& gradient_places, const std::vector<float*>& weight_gradients,
                  const ParallelFor& parallel_for) {
  GradientOfPool<T> gradient(request, poolings, rows, places, upstream, parallel_for);
  gradient.OfRows(row_gradients, gradient_places);
  for (size_t feature = 0; feature < weight_gradients.size(); ++feature) {
    if (weight_gradients[feature] != nullptr) {
      gradient.OfWeights(feature, weight_gradients[feature]);
    }
  }
}

template void PoolGradient(const CollectionRequest&, const std::vector<Pooling>&, const float*,
                           const RowPlaces&, const std::vector<BagVectors<const float>>&, float*,
                           const RowPlaces&, const std::vector<float*>&, const ParallelFor&);
template void PoolGradient(const CollectionRequest&, const std::vector<Pooling>&, const float*,
                           const RowPlaces&, const std::vector<BagVectors<const BFloat16>>&, float*,
                           const RowPlaces&, const std::vector<float*>&, const ParallelFor&);

}  // namespace sok
