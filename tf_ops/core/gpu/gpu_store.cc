#include "core/gpu/gpu_store.h"

#include <algorithm>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "core/base/grouping.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/gpu/host_capture.h"
#include "core/rows/apply_rows.h"
#include "core/rows/row_copy.h"

namespace sok::gpu {
namespace {

// Calls from the host go through memory of the GPU for so many keys, or fewer whose rows are long:
// a table that fills its GPU can be saved all the same.
constexpr size_t kPiece = size_t{1} << 18;
constexpr size_t kPieceBytes = size_t{32} << 20;
size_t PieceOf(size_t floats) { return std::min(kPiece, 1 + kPieceBytes / sizeof(float) / floats); }

// Parts of the keys, by bits of their hash.
constexpr int kPartBits = 6;
uint32_t PartOf(Key key) { return static_cast<uint32_t>(Mix64(key) >> (64 - kPartBits)); }

template <typename T>
constexpr Element ElementOf() {
  return std::is_same_v<T, float> ? Element::kFloat32 : Element::kBFloat16;
}

// Calls fn(begin, size) for [0, n) in pieces, for each key of which so many floats are moved.
template <typename Fn>
Status InPieces(size_t n, size_t floats, const Fn& fn) {
  const size_t piece = PieceOf(floats);
  for (size_t begin = 0; begin < n; begin += piece) {
    SOK_RETURN_IF_ERROR(fn(begin, std::min(piece, n - begin)));
  }
  return Status();
}

// Numbers the distinct keys from 0, in the order in which they come first.
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
  std::vector<uint32_t> numbers;  // on the GPU; kNoRow: there is none

  const RowLayout& layout() const { return *of; }
  float* row(uint32_t i) { return values.data() + size_t{i} * floats; }
  RowMeta* meta(uint32_t i) { return &metas[i]; }
};

class GpuStore::FrozenStore final : public Frozen {
 public:
  explicit FrozenStore(const GpuStore& store) : store_(store), lock_(store.mu_) {}
  Status List() {
    SOK_ASSIGN_OR_RETURN(keys_, store_.AllKeys());
    return Status();
  }
  uint64_t size() const override { return keys_->size(); }
  Status ForEach(const std::function<void(Key, RowRef)>& fn) const override {
    return ForEachIn(0, size(), fn);
  }
  Status ForEachIn(uint64_t begin, uint64_t end,
                   const std::function<void(Key, RowRef)>& fn) const override {
    end = std::min<uint64_t>(end, size());
    if (begin >= end) return Status();
    const Key* const keys = keys_->data() + begin;
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
  std::shared_ptr<const Keys> keys_;
};

Result<std::unique_ptr<GpuStore>> GpuStore::Make(std::shared_ptr<const RowLayout> layout,
                                                 const GpuStoreConfig& config) {
  if (layout->coding() != nullptr) {
    return InvalidArgument(
        "Expected row_dtype and slot_dtype of float32 in the memory of a GPU. Received: rows or "
        "slots in fewer bytes, which are for tables in the host's memory.");
  }
  SOK_ASSIGN_OR_RETURN(auto device, Device::Open(config.device));
  const GpuTableConfig of_table{layout->dim(), config.initializer, config.max_rows,
                                config.max_bytes};
  std::unique_ptr<GpuStore> store(new GpuStore(std::move(device), of_table, std::move(layout)));
  SOK_ASSIGN_OR_RETURN(store->table_, GpuTable::Make(store->device_, of_table));
  SOK_RETURN_IF_ERROR(store->table_->SetRule("", store->layout_->slots(), nullptr));
  return store;
}

uint32_t GpuStore::floats() const {
  const auto layout = this->layout();
  return static_cast<uint32_t>(layout->dim() + layout->slot_floats());
}

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
  // Vectors go straight to the output where each of its places gets one.
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
    listed_.reset();
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
  // Pieces find room for all of them, so that the last ones do not fail after the first.
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

void GpuStore::Partition(const std::vector<ShardPartition::Source>& sources,
                         const ParallelFor& parallel_for, ShardPartition* partition) const {
  partition->Build(sources, parts(), PartOf, parallel_for);
}

Result<GpuGradients> GpuStore::Upload(const GradientBatch& batch, uint64_t at,
                                      Stream stream) const {
  const auto dim = static_cast<size_t>(config_.dim);
  std::vector<Key> keys;
  std::vector<float> gradients;
  std::vector<BFloat16> gradients_bf16;
  const Key* from_keys = batch.keys;
  const void* from = batch.gradients;
  size_t n = batch.n;
  bool is_float = batch.gradients != nullptr;
  if (batch.summed != nullptr) {
    const ShardPartition& partition = batch.summed->partition();
    for (uint32_t shard = 0; shard < partition.shards(); ++shard) {
      for (size_t i = 0; i < partition.size(shard); ++i) {
        const ShardEntry& entry = partition.begin(shard)[i];
        const float* const gradient = batch.summed->gradient(entry.position);
        keys.push_back(entry.key);
        gradients.insert(gradients.end(), gradient, gradient + dim);
      }
    }
    n = keys.size();
    from_keys = keys.data();
    from = gradients.data();
    is_float = true;
  } else if (batch.positions != nullptr) {
    for (size_t i = 0; i < n; ++i) {
      const size_t begin = batch.positions[i] * dim;
      if (is_float) {
        gradients.insert(gradients.end(), batch.gradients + begin, batch.gradients + begin + dim);
      } else {
        gradients_bf16.insert(gradients_bf16.end(), batch.gradients_bf16 + begin,
                              batch.gradients_bf16 + begin + dim);
      }
    }
    from = is_float ? static_cast<const void*>(gradients.data()) : gradients_bf16.data();
  } else if (!is_float) {
    from = batch.gradients_bf16;
  }
  // Places are those of float32, which are wide enough for either.
  GpuGradients uploaded{staged_keys_.address() + at * sizeof(Key),
                        staged_floats_.address() + at * dim * sizeof(float),
                        is_float ? Element::kFloat32 : Element::kBFloat16, n, batch.factor};
  const size_t bytes = n * dim * (is_float ? sizeof(float) : sizeof(BFloat16));
  SOK_RETURN_IF_ERROR(device_->CopyToDevice(uploaded.keys, from_keys, n * sizeof(Key), stream));
  SOK_RETURN_IF_ERROR(device_->CopyToDevice(uploaded.gradients, from, bytes, stream));
  SOK_RETURN_IF_ERROR(device_->Synchronize(stream));  // the memory that was copied may go
  return uploaded;
}

Result<uint64_t> GpuStore::Apply(const std::vector<GradientBatch>& batches,
                                 const RowOptimizer& optimizer, const CommitStep& step,
                                 const ParallelFor& parallel_for) {
  std::lock_guard<SharedMutex> lock(mu_);
  if (step.sequential || step.number < 1) {
    return ApplyOnHost(batches, optimizer, step, parallel_for);
  }
  std::lock_guard<std::mutex> staging(staging_mu_);
  uint64_t most = 0;
  Stream stream = nullptr;
  bool is_copied = false, is_behind = false;
  for (const GradientBatch& batch : batches) {
    if (!batch.on_gpu) {
      is_copied = true;
      most += batch.n;
      continue;
    }
    // The step follows the work on one stream, and other streams are waited for.
    if (is_behind && batch.stream != stream) {
      SOK_RETURN_IF_ERROR(device_->Synchronize(batch.stream));
    } else {
      stream = batch.stream;
    }
    is_behind = true;
  }
  SOK_RETURN_IF_ERROR(staged_keys_.Reserve(device_, most * sizeof(Key)));
  SOK_RETURN_IF_ERROR(staged_floats_.Reserve(device_, most * config_.dim * sizeof(float)));
  std::vector<GpuGradients> uploaded;
  uint64_t at = 0;
  for (const GradientBatch& batch : batches) {
    if (batch.on_gpu) {
      const bool is_float = batch.gradients != nullptr;
      const void* const gradients =
          is_float ? static_cast<const void*>(batch.gradients) : batch.gradients_bf16;
      uploaded.push_back(
          {reinterpret_cast<DeviceAddress>(batch.keys), reinterpret_cast<DeviceAddress>(gradients),
           is_float ? Element::kFloat32 : Element::kBFloat16, batch.n, batch.factor});
      continue;
    }
    SOK_ASSIGN_OR_RETURN(const GpuGradients each, Upload(batch, at, stream));
    at += each.n;
    uploaded.push_back(each);
  }
  if (!is_copied) {
    uint64_t gradients = 0;
    for (const GpuGradients& each : uploaded) gradients += each.n;
    SOK_RETURN_IF_ERROR(table_->Commit(uploaded, /*rule=*/"", optimizer, step, stream));
    return gradients;
  }
  // The next call takes the memory that batches were copied to, so this one waits.
  uint64_t touched = 0;
  SOK_RETURN_IF_ERROR(table_->Commit(uploaded, /*rule=*/"", optimizer, step, stream, &touched));
  return touched;
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
  listed_.reset();
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

Status GpuStore::Replace(std::shared_ptr<const RowLayout> layout, const TableState& state,
                         const Key* keys, size_t n, uint32_t now, const WriteRow& write,
                         const ParallelFor& /*parallel_for*/) {
  std::lock_guard<SharedMutex> lock(mu_);
  SOK_ASSIGN_OR_RETURN(auto fresh, GpuTable::Make(device_, config_));
  SOK_RETURN_IF_ERROR(fresh->SetRule(state.rule, layout->slots(), nullptr));
  SOK_RETURN_IF_ERROR(fresh->CheckFits(n));
  // The old rows go first if the GPU cannot hold them beside the new ones.
  Status room = fresh->Reserve(n, nullptr);
  if (!room.ok() && room.code() != Code::kResourceExhausted) return room;
  gone_ += size();
  listed_.reset();
  {
    std::lock_guard<std::mutex> guard(layout_mu_);
    table_ = std::move(fresh);
    layout_ = std::move(layout);
    size_ = 0;
    seen_calls_ = unseen_calls_.load();
  }
  if (!room.ok()) room = table_->Reserve(n, nullptr);
  if (!room.ok()) return room.Within("", " The table is empty now: its rows had to make room.");
  return UpsertAll(keys, n, now, write);
}

Result<bool> GpuStore::Relayout(std::shared_ptr<const RowLayout> layout, const TableState& state,
                                const ParallelFor& /*parallel_for*/) {
  std::lock_guard<SharedMutex> lock(mu_);
  SOK_RETURN_IF_ERROR(table_->SetRule(state.rule, layout->slots(), nullptr));
  std::lock_guard<std::mutex> guard(layout_mu_);
  const bool reshaped = !layout->SameShape(*layout_);
  layout_ = std::move(layout);
  return reshaped;
}

bool GpuStore::IsLaidOut(const std::vector<Slot>& slots) const {
  return layout()->slots() == slots;
}

std::shared_ptr<const RowLayout> GpuStore::layout() const {
  std::lock_guard<std::mutex> guard(layout_mu_);
  return layout_;
}

uint64_t GpuStore::size() const {
  const uint64_t calls = unseen_calls_;
  if (calls == seen_calls_) return size_;
  std::lock_guard<std::mutex> guard(layout_mu_);
  const auto size = table_->Size(nullptr);
  if (!size.ok()) return size_;  // a table that cannot be read says so at the next lookup
  size_ = size.value();
  seen_calls_ = calls;
  return size_;
}

Status GpuStore::LookupOnGpu(DeviceAddress keys, uint64_t n, bool make_rows, uint32_t now,
                             DeviceAddress out, Element element, Stream stream) {
  if (n == 0) return Status();
  if (!make_rows) {
    std::shared_lock<SharedMutex> lock(mu_);
    return table_->Lookup(keys, n, Absent::kStart, now, out, element, stream);
  }
  std::lock_guard<SharedMutex> lock(mu_);
  listed_.reset();
  const Status status = table_->Lookup(keys, n, Absent::kMake, now, out, element, stream);
  ++unseen_calls_;
  return status;
}

Status GpuStore::CopyToHost(void* to, DeviceAddress from, size_t bytes, Stream stream) const {
  SOK_RETURN_IF_ERROR(device_->CopyToHost(to, from, bytes, stream));
  return device_->Synchronize(stream);
}

Status GpuStore::CopyToGpu(DeviceAddress to, const void* from, size_t bytes, Stream stream) const {
  SOK_RETURN_IF_ERROR(device_->CopyToDevice(to, from, bytes, stream));
  return device_->Synchronize(stream);
}

uint64_t GpuStore::index_bytes() const {
  std::shared_lock<SharedMutex> lock(mu_);
  return table_->index_bytes();
}

uint64_t GpuStore::row_bytes() const {
  std::shared_lock<SharedMutex> lock(mu_);
  return table_->bytes() - table_->index_bytes();
}

Result<std::shared_ptr<const GpuStore::Keys>> GpuStore::AllKeys() const {
  std::lock_guard<std::mutex> guard(listed_mu_);
  if (listed_ == nullptr) {
    SOK_ASSIGN_OR_RETURN(auto keys, table_->ListKeys(nullptr));
    std::sort(keys.begin(), keys.end());
    listed_ = std::make_shared<const Keys>(std::move(keys));
  }
  return listed_;
}

Result<std::unique_ptr<RowStore::Frozen>> GpuStore::Freeze() {
  auto frozen = std::make_unique<FrozenStore>(*this);
  SOK_RETURN_IF_ERROR(frozen->List());
  return std::unique_ptr<Frozen>(std::move(frozen));
}

uint32_t GpuStore::parts() const { return uint32_t{1} << kPartBits; }

Status GpuStore::ListKeys(uint32_t part, std::vector<Key>* keys) const {
  std::shared_lock<SharedMutex> lock(mu_);
  SOK_ASSIGN_OR_RETURN(const auto all, AllKeys());
  std::copy_if(all->begin(), all->end(), std::back_inserter(*keys),
               [part](Key key) { return PartOf(key) == part; });
  return Status();
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
