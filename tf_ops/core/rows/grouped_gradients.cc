#include "core/rows/grouped_gradients.h"

#include <algorithm>
#include <numeric>

#include "core/base/hash.h"
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

size_t CellsFor(size_t n) {
  size_t cells = 16;
  while (cells < 2 * n) cells *= 2;
  return cells;
}

// Returns where in an index of the entries' keys a key is, or the free cell where it would be.
size_t CellOf(const std::vector<uint32_t>& index, const ShardEntry* entries, Key key) {
  const size_t mask = index.size() - 1;
  // The low bits are mixed anew, since the shard has been chosen by the bits of the key's hash.
  size_t cell = Mix64(key ^ 0x9e3779b97f4a7c15ull) & mask;
  while (index[cell] != 0 && entries[index[cell] - 1].key != key) cell = (cell + 1) & mask;
  return cell;
}

}  // namespace

void GroupedGradients::Build(const RowStore& store, const GradientBatch& batch, int dim,
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
  // Gradients that nobody shares are read in the order in which they lie in memory.
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

double GroupedGradients::GroupShard(uint32_t shard, const GradientBatch& batch,
                                    std::vector<float>* sums) {
  thread_local std::vector<uint32_t> index, numbers, from, places;
  const size_t n = partition_.size(shard);
  ShardEntry* const entries = partition_.entries(shard);
  const float** const gradients = gradients_.data() + partition_.offset(shard);
  // Distinct keys move to the front; numbers[i] says which of them entry i was. A key that comes
  // again, or whose gradient is not float32, needs a sum, and `places` says where.
  index.assign(CellsFor(n), 0);
  numbers.resize(n);
  from.resize(n);
  places.clear();
  uint32_t distinct = 0, summed = 0;
  for (size_t i = 0; i < n; ++i) {
    const Key key = entries[i].key;
    from[i] = entries[i].position;
    const size_t cell = CellOf(index, entries, key);
    if (index[cell] != 0) {
      numbers[i] = index[cell] - 1;
      if (places[numbers[i]] == kNone) places[numbers[i]] = summed++;
      continue;
    }
    numbers[i] = distinct;
    places.push_back(batch.gradients != nullptr ? kNone : summed++);
    entries[distinct] = {key, 0, static_cast<uint32_t>(partition_.offset(shard)) + distinct};
    index[cell] = ++distinct;
  }
  partition_.Shorten(shard, distinct);

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

double GroupedGradients::Dot(const GroupedGradients& other) {
  if (indexes_.empty()) {
    indexes_.resize(partition_.shards());
    for (uint32_t s = 0; s < partition_.shards(); ++s) {
      indexes_[s].assign(CellsFor(partition_.size(s)), 0);
      for (uint32_t i = 0; i < partition_.size(s); ++i) {
        const ShardEntry* entries = partition_.begin(s);
        indexes_[s][CellOf(indexes_[s], entries, entries[i].key)] = i + 1;
      }
    }
  }
  double sum = 0.0;
  for (uint32_t s = 0; s < partition_.shards(); ++s) {
    const ShardEntry *own = partition_.begin(s), *theirs = other.partition_.begin(s);
    for (size_t i = 0; i < other.partition_.size(s); ++i) {
      const uint32_t found = indexes_[s][CellOf(indexes_[s], own, theirs[i].key)];
      if (found == 0) continue;
      sum += Product(gradient(own[found - 1].position), other.gradient(theirs[i].position), dim_);
    }
  }
  return sum;
}

std::shared_ptr<GroupedGradients> GroupedGradientsPool::Make() {
  auto made = std::make_unique<GroupedGradients>();
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (!idle_.empty()) {
      made = std::move(idle_.back());
      idle_.pop_back();
    } else {
      idle_.reserve(kMost);
    }
  }
  const auto give_back = [pool = shared_from_this()](GroupedGradients* done) {
    std::unique_ptr<GroupedGradients> owned(done);
    std::lock_guard<std::mutex> guard(pool->mu_);
    if (pool->idle_.size() < kMost) pool->idle_.push_back(std::move(owned));
  };
  return {made.release(), give_back};
}

}  // namespace sok
