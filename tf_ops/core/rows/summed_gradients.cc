#include "core/rows/summed_gradients.h"

#include <algorithm>
#include <numeric>

#include "core/base/vector_clones.h"

namespace sok {
namespace {

constexpr size_t kBlock = 4096;
constexpr uint32_t kNone = UINT32_MAX;

// Sums in lanes, which the compiler makes vectors of. Products of float32 are exact in float64, and
// do not overflow; norms of sums of gradients that nearly cancel each other, or of very many
// gradients, need the digits.
inline double Product(const float* a, const float* b, int dim) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {};
  int j = 0;
  for (; j + kLanes <= dim; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += double{a[j + lane]} * b[j + lane];
  }
  double sum = 0.0;
  for (; j < dim; ++j) sum += double{a[j]} * b[j];
  for (double lane : lanes) sum += lane;
  return sum;
}

SOK_VECTOR_CLONES double SquareOf(const float* rows, size_t n, int dim) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) sum += Product(rows + i * dim, rows + i * dim, dim);
  return sum;
}

// Sums the squares of rows of which `left_out` marks some that are not to be counted.
SOK_VECTOR_CLONES double SquareOf(const float* rows, const uint8_t* left_out, size_t n, int dim) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) {
    if (left_out[i] == 0) sum += Product(rows + i * dim, rows + i * dim, dim);
  }
  return sum;
}

template <typename T>
void Add(const T* gradient, int dim, float* sum) {
  for (int j = 0; j < dim; ++j) sum[j] += ToFloat(gradient[j]);
}

auto KeysOf(const ShardEntry* entries) {
  return [entries](uint32_t number) { return entries[number].key; };
}

}  // namespace

void SummedGradients::Build(const RowStore& store, const GradientBatch& batch, int dim,
                            const ParallelFor& parallel_for) {
  dim_ = dim;
  indexes_.clear();
  store.Partition({{batch.keys, batch.n, batch.positions}}, parallel_for, &partition_);
  gradients_.resize(batch.n);
  sums_.resize(partition_.shards());
  // Where the caller gives positions, some gradients are left out.
  size_t rows = batch.n;
  for (size_t i = 0; batch.positions != nullptr && i < batch.n; ++i) {
    rows = std::max<size_t>(rows, batch.positions[i] + size_t{1});
  }
  summed_.assign(rows, batch.positions == nullptr ? 0 : 1);
  squares_.assign(partition_.shards() + (rows + kBlock - 1) / kBlock, 0.0);
  const int64_t keys_a_shard = batch.n / partition_.shards();
  parallel_for(partition_.shards(), 100 + 30 * keys_a_shard, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      squares_[s] = GroupShard(static_cast<uint32_t>(s), batch, &sums_[s]);
    }
  });
  // Gradients that share their row with no other are read in the order in which they lie in memory.
  if (batch.gradients != nullptr) {
    double* const squares = squares_.data() + partition_.shards();
    parallel_for(squares_.size() - partition_.shards(), kBlock * dim, [&](int64_t b, int64_t last) {
      for (; b < last; ++b) {
        const size_t begin = b * kBlock, n = std::min(kBlock, rows - begin);
        squares[b] = SquareOf(batch.gradients + begin * dim, summed_.data() + begin, n, dim);
      }
    });
  }
  square_ = std::accumulate(squares_.begin(), squares_.end(), 0.0);
}

double SummedGradients::GroupShard(uint32_t shard, const GradientBatch& batch,
                                   std::vector<float>* sums) {
  thread_local DistinctIndex index;
  thread_local std::vector<uint32_t> numbers, from, places;
  const size_t n = partition_.size(shard);
  ShardEntry* const entries = partition_.entries(shard);
  const float** const gradients = gradients_.data() + partition_.offset(shard);
  // Distinct keys move to the front; numbers[i] says which of them entry i was. A key that comes
  // again, or whose gradient is not float32, needs a sum, and `places` says where.
  index.Reset(n);
  numbers.resize(n);
  from.resize(n);
  places.clear();
  uint32_t summed = 0;
  for (size_t i = 0; i < n; ++i) {
    const Key key = entries[i].key;
    from[i] = entries[i].position;
    const uint32_t distinct = index.size();
    numbers[i] = index.FindOrAdd(key, KeysOf(entries));
    if (numbers[i] != distinct) {
      if (places[numbers[i]] == kNone) places[numbers[i]] = summed++;
      continue;
    }
    places.push_back(batch.gradients != nullptr ? kNone : summed++);
    entries[distinct] = {key, 0, static_cast<uint32_t>(partition_.offset(shard)) + distinct};
  }
  partition_.Shorten(shard, index.size());

  sums->assign(size_t{summed} * dim_, 0.0f);
  for (size_t i = 0; i < n; ++i) {
    const size_t at = size_t{from[i]} * dim_;
    const uint32_t place = places[numbers[i]];
    if (place == kNone) {
      gradients[numbers[i]] = batch.gradients + at;
      if (batch.positions != nullptr) summed_[from[i]] = 0;
      continue;
    }
    summed_[from[i]] = 1;
    float* const sum = sums->data() + size_t{place} * dim_;
    gradients[numbers[i]] = sum;
    if (batch.gradients != nullptr) {
      Add(batch.gradients + at, dim_, sum);
    } else {
      Add(batch.gradients_bf16 + at, dim_, sum);
    }
  }
  return SquareOf(sums->data(), summed, dim_);
}

double SummedGradients::Dot(const SummedGradients& other) {
  if (indexes_.empty()) {
    indexes_.resize(partition_.shards());
    for (uint32_t s = 0; s < partition_.shards(); ++s) {
      indexes_[s].Reset(partition_.size(s));
      const ShardEntry* entries = partition_.begin(s);
      for (size_t i = 0; i < partition_.size(s); ++i) {
        indexes_[s].FindOrAdd(entries[i].key, KeysOf(entries));
      }
    }
  }
  double sum = 0.0;
  for (uint32_t s = 0; s < partition_.shards(); ++s) {
    const ShardEntry *own = partition_.begin(s), *theirs = other.partition_.begin(s);
    for (size_t i = 0; i < other.partition_.size(s); ++i) {
      const uint32_t found = indexes_[s].Find(theirs[i].key, KeysOf(own));
      if (found == DistinctIndex::kNone) continue;
      sum += Product(gradient(own[found].position), other.gradient(theirs[i].position), dim_);
    }
  }
  return sum;
}

std::shared_ptr<SummedGradients> SummedGradientsPool::Make() {
  auto made = std::make_unique<SummedGradients>();
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (!idle_.empty()) {
      made = std::move(idle_.back());
      idle_.pop_back();
    } else {
      idle_.reserve(kMost);
    }
  }
  const auto give_back = [pool = shared_from_this()](SummedGradients* done) {
    std::unique_ptr<SummedGradients> owned(done);
    std::lock_guard<std::mutex> guard(pool->mu_);
    if (pool->idle_.size() < kMost) pool->idle_.push_back(std::move(owned));
  };
  return {made.release(), give_back};
}

}  // namespace sok
