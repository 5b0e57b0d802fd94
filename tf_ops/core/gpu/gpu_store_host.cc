// The calls of a GpuStore whose keys and rows are in the host's memory. They copy one piece after
// another through memory of the GPU.
#include <algorithm>
#include <shared_mutex>
#include <type_traits>
#include <utility>

#include "core/base/grouping.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_store.h"
#include "core/gpu/host_capture.h"
#include "core/rows/apply_rows.h"
#include "core/rows/row_copy.h"

namespace sok::gpu {
namespace {

// The most keys in a piece; a piece of long rows has fewer. So a table that fills its GPU can still
// be saved.
constexpr size_t kPiece = size_t{1} << 18;
constexpr size_t kPieceBytes = size_t{32} << 20;
size_t PieceOf(size_t floats) { return std::min(kPiece, 1 + kPieceBytes / sizeof(float) / floats); }

template <typename T>
constexpr Element ElementOf() {
  return std::is_same_v<T, float> ? Element::kFloat32 : Element::kBFloat16;
}

// Calls fn(begin, size) for [0, n) in pieces. `floats` is the number of floats moved for each key.
template <typename Fn>
Status InPieces(size_t n, size_t floats, const Fn& fn) {
  const size_t piece = PieceOf(floats);
  for (size_t begin = 0; begin < n; begin += piece) {
    SOK_RETURN_IF_ERROR(fn(begin, std::min(piece, n - begin)));
  }
  return Status();
}

// Numbers the distinct keys from 0, in the order of their first appearance.
struct Distinct {
  Distinct(const Key* all, size_t n) {
    DistinctIndex index;
    index.Reset(n);
    numbers.resize(n);
    for (size_t i = 0; i < n; ++i) {
      numbers[i] = index.FindOrAdd(all[i], [this](uint32_t number) { return keys[number]; });
      if (numbers[i] == keys.size()) keys.push_back(all[i]);
    }
  }
  std::vector<Key> keys;
  std::vector<uint32_t> numbers;  // (n)
};

}  // namespace

struct GpuStore::HostRows {
  const RowLayout* of = nullptr;
  uint32_t floats = 0;
  std::vector<float> values;  // (rows, floats)
  std::vector<RowMeta> metas;
  std::vector<uint32_t> numbers;  // on the GPU; kNoRow: the key has no row

  const RowLayout& layout() const { return *of; }
  float* row(uint32_t i) { return values.data() + size_t{i} * floats; }
  RowMeta* meta(uint32_t i) { return &metas[i]; }
};

template <typename T>
Status GpuStore::GatherAs(const Key* keys, size_t n, T* out, const GatherOptions& options,
                          const FillEmbedding& fill, std::vector<uint32_t>* missing) const {
  const auto dim = static_cast<size_t>(config_.dim);
  const auto place = [&](size_t i) -> size_t {
    return options.places == nullptr ? i : options.places[i];
  };
  if (options.numbers != nullptr) std::fill_n(options.numbers, n, UINT32_MAX);
  std::vector<Key> asked;
  std::vector<size_t> positions;
  for (size_t i = 0; options.given != nullptr && i < n; ++i) {
    if (options.given[i] != nullptr) {
      CopyRow(options.given[i], config_.dim, out + place(i) * dim);
      continue;
    }
    asked.push_back(keys[i]);
    positions.push_back(i);
  }
  const bool all = options.given == nullptr;
  // Vectors are copied directly to the output if every place of it gets a vector.
  const bool straight = all && options.places == nullptr && fill != nullptr;
  const Key* const looked_up = all ? keys : asked.data();
  std::vector<uint32_t> numbers;
  std::vector<T> vectors;
  std::vector<float> start(dim);
  return InPieces(all ? n : asked.size(), dim, [&](size_t begin, size_t m) {
    numbers.resize(m);
    if (!straight) vectors.resize(m * dim);
    T* const to = straight ? out + begin * dim : vectors.data();
    {
      std::lock_guard<std::mutex> staging(staging_mu_);
      SOK_RETURN_IF_ERROR(staged_keys_.Reserve(device_, m * sizeof(Key)));
      SOK_RETURN_IF_ERROR(staged_numbers_.Reserve(device_, m * sizeof(uint32_t)));
      SOK_RETURN_IF_ERROR(staged_floats_.Reserve(device_, m * dim * sizeof(T)));
      SOK_RETURN_IF_ERROR(device_->CopyToDevice(staged_keys_.address(), looked_up + begin,
                                                m * sizeof(Key), nullptr));
      SOK_RETURN_IF_ERROR(table_->Lookup(staged_keys_.address(), m, Absent::kZeros, 0,
                                         staged_floats_.address(), ElementOf<T>(), nullptr,
                                         staged_numbers_.address()));
      SOK_RETURN_IF_ERROR(device_->CopyToHost(numbers.data(), staged_numbers_.address(),
                                              m * sizeof(uint32_t), nullptr));
      SOK_RETURN_IF_ERROR(
          device_->CopyToHost(to, staged_floats_.address(), m * dim * sizeof(T), nullptr));
      SOK_RETURN_IF_ERROR(device_->Synchronize(nullptr));
    }
    for (size_t j = 0; j < m; ++j) {
      const size_t i = all ? begin + j : positions[begin + j];
      if (numbers[j] != kNoRow) {
        if (!straight) std::copy_n(to + j * dim, dim, out + place(i) * dim);
        continue;
      }
      if (missing != nullptr) missing->push_back(static_cast<uint32_t>(i));
      if (fill == nullptr) continue;
      fill(keys[i], start.data());
      CopyRow(start.data(), config_.dim, out + place(i) * dim);
    }
    return Status();
  });
}

Status GpuStore::Gather(const Key* keys, size_t n, float* out, const GatherOptions& options,
                        const FillEmbedding& fill, std::vector<uint32_t>* missing,
                        const ParallelFor& /*parallel_for*/) {
  std::shared_lock<SharedMutex> lock(mu_);
  return GatherAs(keys, n, out, options, fill, missing);
}

Status GpuStore::Gather(const Key* keys, size_t n, BFloat16* out, const GatherOptions& options,
                        const FillEmbedding& fill, std::vector<uint32_t>* missing,
                        const ParallelFor& /*parallel_for*/) {
  std::shared_lock<SharedMutex> lock(mu_);
  return GatherAs(keys, n, out, options, fill, missing);
}

Status GpuStore::Find(const Key* keys, size_t n, uint32_t* numbers) const {
  return InPieces(n, 1, [&](size_t begin, size_t m) {
    std::lock_guard<std::mutex> staging(staging_mu_);
    SOK_RETURN_IF_ERROR(staged_keys_.Reserve(device_, m * sizeof(Key)));
    SOK_RETURN_IF_ERROR(staged_numbers_.Reserve(device_, m * sizeof(uint32_t)));
    SOK_RETURN_IF_ERROR(
        device_->CopyToDevice(staged_keys_.address(), keys + begin, m * sizeof(Key), nullptr));
    SOK_RETURN_IF_ERROR(
        table_->Find(staged_keys_.address(), m, staged_numbers_.address(), nullptr));
    SOK_RETURN_IF_ERROR(device_->CopyToHost(numbers + begin, staged_numbers_.address(),
                                            m * sizeof(uint32_t), nullptr));
    return device_->Synchronize(nullptr);
  });
}

Result<std::vector<uint32_t>> GpuStore::Missing(const Key* keys, size_t n,
                                                const ParallelFor& /*parallel_for*/) {
  std::shared_lock<SharedMutex> lock(mu_);
  std::vector<uint32_t> numbers(n), missing;
  SOK_RETURN_IF_ERROR(Find(keys, n, numbers.data()));
  for (uint32_t i = 0; i < n; ++i) {
    if (numbers[i] == kNoRow) missing.push_back(i);
  }
  return missing;
}

Status GpuStore::Read(const Key* keys, size_t n, uint32_t floats, HostRows* rows) const {
  rows->floats = floats;
  rows->values.resize(n * floats);
  rows->metas.resize(n);
  rows->numbers.resize(n);
  if (n == 0) return Status();
  static_assert(sizeof(RowMeta) == sizeof(Meta));
  std::lock_guard<std::mutex> staging(staging_mu_);
  SOK_RETURN_IF_ERROR(staged_keys_.Reserve(device_, n * sizeof(Key)));
  SOK_RETURN_IF_ERROR(staged_floats_.Reserve(device_, n * floats * sizeof(float)));
  SOK_RETURN_IF_ERROR(staged_metas_.Reserve(device_, n * sizeof(Meta)));
  SOK_RETURN_IF_ERROR(staged_numbers_.Reserve(device_, n * sizeof(uint32_t)));
  SOK_RETURN_IF_ERROR(
      device_->CopyToDevice(staged_keys_.address(), keys, n * sizeof(Key), nullptr));
  SOK_RETURN_IF_ERROR(table_->ReadRows(staged_keys_.address(), n, floats, staged_floats_.address(),
                                       staged_metas_.address(), staged_numbers_.address(),
                                       nullptr));
  SOK_RETURN_IF_ERROR(device_->CopyToHost(rows->values.data(), staged_floats_.address(),
                                          n * floats * sizeof(float), nullptr));
  SOK_RETURN_IF_ERROR(
      device_->CopyToHost(rows->metas.data(), staged_metas_.address(), n * sizeof(Meta), nullptr));
  SOK_RETURN_IF_ERROR(device_->CopyToHost(rows->numbers.data(), staged_numbers_.address(),
                                          n * sizeof(uint32_t), nullptr));
  return device_->Synchronize(nullptr);
}

Status GpuStore::ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                          const ParallelFor& /*parallel_for*/) {
  std::shared_lock<SharedMutex> lock(mu_);
  return InPieces(n, 1, [&](size_t begin, size_t m) {
    HostRows rows;
    SOK_RETURN_IF_ERROR(Read(keys + begin, m, 1, &rows));
    for (size_t i = 0; i < m; ++i) {
      metas[begin + i] = rows.metas[i];
      exists[begin + i] = rows.numbers[i] != kNoRow;
    }
    return Status();
  });
}

Status GpuStore::UpsertPiece(const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                             size_t first) {
  Distinct distinct(keys, n);
  HostRows rows;
  SOK_RETURN_IF_ERROR(Read(distinct.keys.data(), distinct.keys.size(), floats(), &rows));
  const auto layout = this->layout();
  std::vector<uint8_t> is_new(distinct.keys.size());
  for (uint32_t u = 0; u < is_new.size(); ++u) {
    if (rows.numbers[u] != kNoRow) continue;
    is_new[u] = 1;
    const std::vector<float>& start = layout->slot_start();
    std::copy(start.begin(), start.end(), rows.row(u) + layout->dim());
    *rows.meta(u) = RowMeta{0, now};
  }
  for (size_t i = 0; i < n; ++i) {
    const uint32_t u = distinct.numbers[i];
    write(first + i, {rows.row(u), rows.meta(u)}, is_new[u] != 0);
    is_new[u] = 0;
  }
  SOK_RETURN_IF_ERROR(table_->Import(
      {std::move(distinct.keys), std::move(rows.values), std::move(rows.metas)}, nullptr));
  ++unseen_calls_;
  return Status();
}

Status GpuStore::UpsertAll(const Key* keys, size_t n, uint32_t now, const WriteRow& write) {
  return InPieces(n, floats(), [&](size_t begin, size_t m) {
    return UpsertPiece(keys + begin, m, now, write, begin);
  });
}

Status GpuStore::Upsert(const Key* keys, size_t n, uint64_t max_rows, uint32_t now,
                        const WriteRow& write, const ParallelFor& /*parallel_for*/) {
  std::lock_guard<SharedMutex> lock(mu_);
  // Makes room for all pieces first, so that a later piece cannot fail after an earlier one.
  const bool reserves = n > PieceOf(floats());
  if (reserves || (max_rows > 0 && size() + n > max_rows)) {
    std::vector<uint32_t> numbers(n);
    SOK_RETURN_IF_ERROR(Find(keys, n, numbers.data()));
    std::vector<Key> absent;
    for (size_t i = 0; i < n; ++i) {
      if (numbers[i] == kNoRow) absent.push_back(keys[i]);
    }
    const uint64_t added = Distinct(absent.data(), absent.size()).keys.size();
    if (max_rows > 0 && added > 0 && size() + added > max_rows) {
      return TableFull(size(), max_rows, added);
    }
    if (reserves) SOK_RETURN_IF_ERROR(table_->Reserve(size() + added, nullptr));
  }
  return UpsertAll(keys, n, now, write);
}

Result<uint64_t> GpuStore::ApplyOnHost(const std::vector<GradientBatch>& batches,
                                       const RowOptimizer& optimizer, const CommitStep& step,
                                       const ParallelFor& parallel_for) {
  ShardPartition joined;
  const ShardPartition& partition = PartitionOf(*this, batches, parallel_for, &joined);
  std::vector<ShardEntry> entries;
  std::vector<Key> keys;
  for (uint32_t shard = 0; shard < partition.shards(); ++shard) {
    const ShardEntry* const of = partition.begin(shard);
    entries.insert(entries.end(), of, of + partition.size(shard));
  }
  for (const ShardEntry& entry : entries) keys.push_back(entry.key);
  Distinct distinct(keys.data(), keys.size());
  HostRows rows;
  SOK_RETURN_IF_ERROR(Read(distinct.keys.data(), distinct.keys.size(), floats(), &rows));
  const auto layout = this->layout();
  rows.of = layout.get();
  for (uint32_t& number : distinct.numbers) {
    if (rows.numbers[number] == kNoRow) number = UINT32_MAX;
  }
  RowUpdate update;
  const std::vector<uint32_t> touched =
      update.Apply(rows, entries.data(), distinct.numbers.data(), entries.size(), batches,
                   config_.dim, optimizer, step);
  GpuTable::RowsPart changed;
  for (uint32_t u : touched) {
    changed.keys.push_back(distinct.keys[u]);
    changed.floats.insert(changed.floats.end(), rows.row(u), rows.row(u) + rows.floats);
    changed.metas.push_back(*rows.meta(u));
  }
  SOK_RETURN_IF_ERROR(table_->Import(changed, nullptr));
  if (step.applied != nullptr) *step.applied = true;
  return static_cast<uint64_t>(touched.size());
}

Result<uint64_t> GpuStore::Erase(const Key* keys, size_t n, const ParallelFor& /*parallel_for*/) {
  std::lock_guard<SharedMutex> lock(mu_);
  uint64_t erased = 0;
  const Status status = InPieces(n, 1, [&](size_t begin, size_t m) {
    std::lock_guard<std::mutex> staging(staging_mu_);
    SOK_RETURN_IF_ERROR(staged_keys_.Reserve(device_, m * sizeof(Key)));
    SOK_RETURN_IF_ERROR(
        device_->CopyToDevice(staged_keys_.address(), keys + begin, m * sizeof(Key), nullptr));
    SOK_ASSIGN_OR_RETURN(const uint64_t gone, table_->Erase(staged_keys_.address(), m, nullptr));
    erased += gone;
    gone_ += gone;
    ++unseen_calls_;
    return Status();
  });
  if (!status.ok()) return status;
  return erased;
}

class GpuStore::FrozenStore final : public Frozen {
 public:
  explicit FrozenStore(const GpuStore& store) : store_(store), lock_(store.mu_) {}
  Status List() {
    SOK_ASSIGN_OR_RETURN(keys_, store_.table_->ListKeys(0, UINT64_MAX, nullptr));
    std::sort(keys_.begin(), keys_.end());
    return Status();
  }
  uint64_t size() const override { return keys_.size(); }
  Status ForEach(const std::function<void(Key, RowRef)>& fn) const override {
    return ForEachIn(0, size(), fn);
  }
  Status ForEachIn(uint64_t begin, uint64_t end,
                   const std::function<void(Key, RowRef)>& fn) const override {
    end = std::min<uint64_t>(end, size());
    if (begin >= end) return Status();
    const Key* const keys = keys_.data() + begin;
    return InPieces(end - begin, store_.floats(), [&](size_t at, size_t n) {
      HostRows rows;
      SOK_RETURN_IF_ERROR(store_.Read(keys + at, n, store_.floats(), &rows));
      for (uint32_t i = 0; i < n; ++i) fn(keys[at + i], {rows.row(i), rows.meta(i)});
      return Status();
    });
  }

 private:
  const GpuStore& store_;
  std::shared_lock<SharedMutex> lock_;
  std::vector<Key> keys_;  // of all rows, ascending
};

Result<std::unique_ptr<RowStore::Frozen>> GpuStore::Freeze() {
  auto frozen = std::make_unique<FrozenStore>(*this);
  SOK_RETURN_IF_ERROR(frozen->List());
  return std::unique_ptr<Frozen>(std::move(frozen));
}

Result<std::unique_ptr<RowCapture>> GpuStore::BeginCapture(const CaptureOptions& options) {
  if (options.since != 0) {
    return Status(Code::kFailedPrecondition,
                  "expected the changes since an earlier state to be noted, got a table on a GPU, "
                  "which notes none; save all rows");
  }
  if (capturing_.exchange(true)) {
    return Status(Code::kFailedPrecondition,
                  "expected no save of the table to be under way, got one that is; wait for it");
  }
  const auto layout = this->layout();
  auto capture = std::make_unique<HostCapture>(layout->dim(), layout->slot_floats(), &capturing_);
  SOK_ASSIGN_OR_RETURN(const auto rows, Freeze());
  SOK_RETURN_IF_ERROR(capture->Copy(*rows));
  return std::unique_ptr<RowCapture>(std::move(capture));
}

}  // namespace sok::gpu
