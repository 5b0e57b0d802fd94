#include "core/tables/table.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_store.h"
#include "core/tables/row_checks.h"

namespace sok {

Table::Table(const TableSpec& spec, const Initializer& initializer, std::unique_ptr<RowStore> store)
    : spec_(spec), initializer_(initializer), store_(std::move(store)) {}

Status Table::CheckDim(int dim) {
  if (dim >= 1 && dim <= kMostDim) return Status();
  return InvalidArgument("a table needs a dim of 1 to " + std::to_string(kMostDim) + ", got " +
                         std::to_string(dim));
}

namespace {

Result<Initializer> InitializerOf(const TableSpec& spec) {
  return Initializer::Make(spec.initializer, spec.initializer_a, spec.initializer_b, spec.seed,
                           spec.group);
}

Result<std::unique_ptr<RowStore>> MakeOnGpu(const TableSpec& spec,
                                            std::shared_ptr<const RowLayout> layout) {
  SOK_ASSIGN_OR_RETURN(const auto initializer, InitializerOf(spec));
  SOK_ASSIGN_OR_RETURN(auto store,
                       gpu::GpuStore::Make(std::move(layout),
                                           {spec.gpu, initializer, spec.max_rows, spec.max_bytes}));
  return std::unique_ptr<RowStore>(std::move(store));
}

}  // namespace

Result<std::unique_ptr<Table>> Table::Make(const TableSpec& spec,
                                           std::shared_ptr<const Expiry> clock) {
  SOK_RETURN_IF_ERROR(CheckDim(spec.dim));
  TableSpec own = spec;
  own.form = SeededForm(spec);
  auto layout = std::make_shared<const RowLayout>(spec.dim, std::vector<Slot>{}, own.form);
  std::unique_ptr<RowStore> store;
  if (spec.gpu >= 0) {
    SOK_ASSIGN_OR_RETURN(store, MakeOnGpu(own, std::move(layout)));
  } else if (spec.direct) {
    constexpr uint64_t kMostKeys = uint64_t{1} << 62;
    if (spec.max_rows == 0 || spec.owner >= spec.owners ||
        spec.max_rows > kMostKeys / spec.owners) {
      return InvalidArgument(
          "a table without a hash index needs max_rows of at least 1, an owner below owners, and "
          "fewer than 2^62 keys in all, got max_rows " +
          std::to_string(spec.max_rows) + ", owner " + std::to_string(spec.owner) + " of " +
          std::to_string(spec.owners));
    }
    IndexConfig index;
    index.capacity = spec.max_rows;
    index.owners = spec.owners;
    index.owner = spec.owner;
    store = MakeDirectStore(std::move(layout), index);
  } else {
    store = MakeHashStore(std::move(layout), spec.shards);
  }
  std::shared_ptr<Admission> admission;
  if (spec.admission.has_value()) {
    SOK_ASSIGN_OR_RETURN(admission, MakeAdmission(*spec.admission));
  }
  if (clock == nullptr) clock = std::make_shared<const Expiry>(0, nullptr);
  auto table = Over(std::move(store), own, {}, std::move(clock), std::move(admission));
  if (table.ok() && spec.step_clock) {
    table.value()->ticks_ = std::make_unique<std::atomic<uint32_t>>(0);
  }
  return table;
}

namespace {

// Returns the eviction of a table; null without one.
Result<std::shared_ptr<Eviction>> EvictionOf(const TableSpec& spec) {
  if (!spec.eviction.has_value()) return std::shared_ptr<Eviction>();
  SOK_ASSIGN_OR_RETURN(std::shared_ptr<Eviction> eviction, MakeEviction(*spec.eviction));
  const std::string kind = "'" + spec.eviction->kind + "'";
  if (spec.direct) {
    return InvalidArgument(
        "a table without a hash index has a place for every key, and no row has to go; expected no "
        "eviction, got " +
        kind);
  }
  if (eviction->needs_full_table() && spec.max_rows == 0) {
    return InvalidArgument("expected max_rows with the eviction " + kind +
                           ", by which rows go only where a table is full, got none");
  }
  return eviction;
}

}  // namespace

Result<std::unique_ptr<Table>> Table::Over(std::unique_ptr<RowStore> store, const TableSpec& spec,
                                           const TableState& state,
                                           std::shared_ptr<const Expiry> clock,
                                           std::shared_ptr<Admission> admission,
                                           std::optional<KeptSlots> kept) {
  SOK_RETURN_IF_ERROR(CheckDim(spec.dim));
  SOK_ASSIGN_OR_RETURN(auto eviction, EvictionOf(spec));
  SOK_ASSIGN_OR_RETURN(auto initializer, InitializerOf(spec));
  std::unique_ptr<Table> table(new Table(spec, initializer, std::move(store)));
  table->state_ = state;
  if (kept.has_value()) table->history_ = OptimizerHistory::KeepingSlots();
  table->kept_ = std::move(kept);
  table->clock_ = std::move(clock);
  table->admission_ = std::move(admission);
  if (eviction != nullptr) {
    table->eviction_ = std::move(eviction);
    table->in_use_ = std::make_shared<RowsInUse>();
    if (spec.max_rows > 0) {
      table->evictor_ = std::make_unique<RowEvictor>(table->store_.get(), spec.dim, spec.max_rows,
                                                     table->eviction_, table->in_use_);
    }
  }
  return table;
}

Status CheckKeysBelow(const Key* keys, size_t n, uint64_t limit) {
  if (limit == 0) return Status();
  for (size_t i = 0; i < n; ++i) {
    if (keys[i] < limit) continue;
    return Status(Code::kOutOfRange,
                  "expected keys in [0, " + std::to_string(limit) + "), got " +
                      std::to_string(static_cast<int64_t>(keys[i])) +
                      "; make the table larger, or give it a hash index for keys of any value");
  }
  return Status();
}

Status Table::CheckRange(const Key* keys, size_t n) const {
  if (!spec_.direct) return Status();
  Status status = CheckKeysBelow(keys, n, spec_.max_rows * spec_.owners);
  if (!status.ok() || spec_.owners == 1) return status;
  for (size_t i = 0; i < n; ++i) {
    if (keys[i] % spec_.owners == spec_.owner) continue;
    return InvalidArgument("key " + std::to_string(keys[i]) + " belongs to worker " +
                           std::to_string(keys[i] % spec_.owners) + ", and this is worker " +
                           std::to_string(spec_.owner) + " of " + std::to_string(spec_.owners));
  }
  return Status();
}

Status Table::MakeRows(const std::vector<Key>& keys, uint32_t now, std::vector<Key>* made,
                       const ParallelFor& parallel_for) {
  std::vector<uint8_t> is_made(made == nullptr ? 0 : keys.size());
  SOK_RETURN_IF_ERROR(store_->Upsert(
      keys.data(), keys.size(), spec_.max_rows, now,
      [&](size_t i, RowRef row, bool is_new) {
        if (!is_new) return;
        initializer_.Fill(keys[i], row.embedding, spec_.dim);
        if (made != nullptr) is_made[i] = 1;
      },
      parallel_for));
  for (size_t i = 0; i < is_made.size(); ++i) {
    if (is_made[i] != 0) made->push_back(keys[i]);
  }
  return Status();
}

Status Table::TakeBack(const Status& failed, const std::vector<Key>& made,
                       const ParallelFor& parallel_for) {
  if (failed.ok() || made.empty()) return failed;
  uint64_t stay = made.size();
  static_cast<void>(OrNoMemory([&] {
    SOK_ASSIGN_OR_RETURN(stay, store_->Unmake(made.data(), made.size(), parallel_for));
    return Status();
  }));
  ++removals_;  // lookups of other threads may have found the rows
  if (evictor_ != nullptr) evictor_->Forget();
  return WithRowsThatStay(failed, stay);
}

void Table::Count(const LookupCounts& met) {
  looked_up_.fetch_add(met.looked_up, std::memory_order_relaxed);
  found_.fetch_add(met.found, std::memory_order_relaxed);
  if (met.refused > 0) refused_.fetch_add(met.refused, std::memory_order_relaxed);
}

Status Table::Admit(const Key* keys, const int64_t* counts, bool observe,
                    std::vector<uint32_t>* positions, LookupCounts* met) {
  if (admission_ == nullptr || positions->empty()) return Status();
  std::sort(positions->begin(), positions->end());
  std::vector<Key> held(positions->size());
  std::vector<int64_t> times(counts == nullptr ? 0 : held.size());
  for (size_t i = 0; i < held.size(); ++i) held[i] = keys[(*positions)[i]];
  for (size_t i = 0; i < times.size(); ++i) times[i] = counts[(*positions)[i]];
  std::vector<uint8_t> admitted(held.size());
  if (observe) {
    SOK_RETURN_IF_ERROR(admission_->Observe(held.data(), counts == nullptr ? nullptr : times.data(),
                                            held.size(), admitted.data()));
  } else {
    admission_->Admitted(held.data(), held.size(), admitted.data());
  }
  size_t kept = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    if (admitted[i] != 0) (*positions)[kept++] = (*positions)[i];
  }
  if (observe) met->refused += positions->size() - kept;
  positions->resize(kept);
  return Status();
}

namespace {

Status CheckCounts(const int64_t* counts, size_t n) {
  for (size_t i = 0; counts != nullptr && i < n; ++i) {
    if (counts[i] >= 0) continue;
    return InvalidArgument("expected counts of at least 0, got " + std::to_string(counts[i]) +
                           " at position " + std::to_string(i));
  }
  return Status();
}

// Leaves the first position of every key.
void KeepFirstOfEachKey(const Key* keys, std::vector<uint32_t>* positions) {
  KeySet met;
  met.Reserve(positions->size());
  const auto again = [&](uint32_t i) { return !met.Insert(keys[i]); };
  positions->erase(std::remove_if(positions->begin(), positions->end(), again), positions->end());
}

}  // namespace

template <typename T>
Status Table::Lookup(const Key* keys, size_t n, bool make_rows, T* out,
                     const ParallelFor& parallel_for, uint8_t* exists, const int64_t* counts,
                     RowNumbers* found) {
  SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  SOK_RETURN_IF_ERROR(CheckCounts(counts, n));
  std::vector<uint32_t> missing;
  GatherOptions options;
  if (found != nullptr) options.numbers = found->numbers.data();
  SOK_RETURN_IF_ERROR(store_->Gather(
      keys, n, out, options, [&](Key key, float* row) { initializer_.Fill(key, row, spec_.dim); },
      &missing, parallel_for));
  LookupCounts met;
  met.looked_up = n;
  met.found = n - missing.size();
  if (exists != nullptr) {
    std::fill_n(exists, n, uint8_t{1});
    for (uint32_t i : missing) exists[i] = 0;
  }
  if (make_rows) SOK_RETURN_IF_ERROR(Admit(keys, counts, /*observe=*/true, &missing, &met));
  if (!make_rows || missing.empty()) {
    Count(met);
    return Status();
  }
  std::unique_lock<std::mutex> commit(commit_mu_, std::defer_lock);
  if (evictor_ != nullptr) {
    KeepFirstOfEachKey(keys, &missing);
    commit.lock();
  }
  std::vector<Key> absent(missing.size());
  for (size_t i = 0; i < missing.size(); ++i) absent[i] = keys[missing[i]];
  const uint32_t now = this->now();
  const auto make = [&] {
    if constexpr (std::is_same_v<T, float>) {
      // Gather has copied the vectors that new rows start from.
      const int dim = spec_.dim;
      return store_->Upsert(
          absent.data(), absent.size(), spec_.max_rows, now,
          [&](size_t i, RowRef row, bool is_new) {
            if (is_new) std::copy_n(out + size_t{missing[i]} * dim, dim, row.embedding);
          },
          parallel_for);
    } else {
      return MakeRows(absent, now, /*made=*/nullptr, parallel_for);
    }
  };
  SOK_RETURN_IF_ERROR(MakeInRoom(keys, n, absent, now, make, parallel_for));
  ForgetCounts(absent);
  Count(met);
  return Status();
}

template Status Table::Lookup(const Key*, size_t, bool, float*, const ParallelFor&, uint8_t*,
                              const int64_t*, RowNumbers*);
template Status Table::Lookup(const Key*, size_t, bool, BFloat16*, const ParallelFor&, uint8_t*,
                              const int64_t*, RowNumbers*);

gpu::DeviceRows* Table::device_rows(void* stream) const {
  if (admission_ != nullptr || eviction_ != nullptr || spec_.direct) return nullptr;
  return store_->device_rows(stream);
}

std::shared_ptr<RowNumbers> Table::NumberRows(size_t n) const {
  const uint64_t erasures = store_->erasures();
  if (erasures == UINT64_MAX) return nullptr;
  auto numbers = std::make_shared<RowNumbers>();
  numbers->numbers.resize(n);
  numbers->erasures = erasures;
  return numbers;
}

template <typename T>
Status Table::Find(const Key* keys, size_t n, const GatherOptions& options, T* out,
                   std::vector<uint32_t>* missing, LookupCounts* met,
                   const ParallelFor& parallel_for) const {
  if (spec_.direct && options.given != nullptr) {
    for (size_t i = 0; i < n; ++i) {
      if (options.given[i] == nullptr) SOK_RETURN_IF_ERROR(CheckRange(keys + i, 1));
    }
  } else {
    SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  }
  RowStore::FillEmbedding fill;
  if (missing == nullptr) {
    fill = [this](Key key, float* row) { initializer_.Fill(key, row, spec_.dim); };
  }
  const size_t before = missing == nullptr ? 0 : missing->size();
  Status status = store_->Gather(keys, n, out, options, fill, missing, parallel_for);
  // Without `missing` it is not known which keys had a row.
  if (status.ok() && missing != nullptr && met != nullptr) {
    const size_t asked = options.asked(n);
    met->looked_up += asked;
    met->found += asked - (missing->size() - before);
  }
  return status;
}

template Status Table::Find(const Key*, size_t, const GatherOptions&, float*,
                            std::vector<uint32_t>*, LookupCounts*, const ParallelFor&) const;
template Status Table::Find(const Key*, size_t, const GatherOptions&, BFloat16*,
                            std::vector<uint32_t>*, LookupCounts*, const ParallelFor&) const;

Status Table::AdmitMissing(const Key* keys, const int64_t* counts, std::vector<uint32_t>* positions,
                           LookupCounts* met) {
  return Admit(keys, counts, /*observe=*/true, positions, met);
}

Status Table::MakeRowsAs(const Key* keys, size_t n, const StartRow& start,
                         const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  std::lock_guard<std::mutex> commit(commit_mu_);  // the layout stays
  const int slot_floats = store_->layout()->slot_floats();
  const uint32_t now = this->now();
  const auto make = [&] {
    return store_->Upsert(
        keys, n, spec_.max_rows, now,
        [&](size_t i, RowRef row, bool is_new) {
          if (is_new) start(i, row.embedding, slot_floats);
        },
        parallel_for);
  };
  Status status = MakeInRoom(keys, n, now, make, parallel_for);
  if (status.ok() && admission_ != nullptr) admission_->Forget(keys, n);
  return status;
}

Status Table::Visit(const Key* keys, size_t n, const VisitRow& visit,
                    const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  std::lock_guard<std::mutex> commit(commit_mu_);
  return VisitLocked(keys, n, visit, parallel_for);
}

Status Table::VisitLocked(const Key* keys, size_t n, const VisitRow& visit,
                          const ParallelFor& parallel_for) {
  const int slot_floats = store_->layout()->slot_floats();
  const uint32_t now = this->now();
  const auto make = [&] {
    return store_->Upsert(
        keys, n, spec_.max_rows, now,
        [&](size_t i, RowRef row, bool is_new) {
          if (is_new) initializer_.Fill(keys[i], row.embedding, spec_.dim);
          visit(i, row.embedding, slot_floats);
        },
        parallel_for);
  };
  return MakeInRoom(keys, n, now, make, parallel_for);
}

Status Table::ForEachRow(const std::function<void(Key key, RowRef row)>& fn) {
  std::lock_guard<std::mutex> commit(commit_mu_);
  auto rows = store_->Freeze();
  return rows.ok() ? rows.value()->ForEach(fn) : rows.status();
}

Status Table::ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                       const ParallelFor& parallel_for) {
  if (CheckRange(keys, n).ok()) return store_->ReadMeta(keys, n, metas, exists, parallel_for);
  std::vector<Key> held;
  std::vector<size_t> places;
  for (size_t i = 0; i < n; ++i) {
    metas[i] = RowMeta{};
    exists[i] = 0;
    if (!CheckRange(keys + i, 1).ok()) continue;
    held.push_back(keys[i]);
    places.push_back(i);
  }
  std::vector<RowMeta> found(held.size());
  std::vector<uint8_t> there(held.size());
  Status status =
      store_->ReadMeta(held.data(), held.size(), found.data(), there.data(), parallel_for);
  for (size_t i = 0; i < held.size(); ++i) {
    metas[places[i]] = found[i];
    exists[places[i]] = there[i];
  }
  return status;
}

Result<std::vector<uint32_t>> Table::Missing(const Key* keys, size_t n,
                                             const ParallelFor& parallel_for) {
  return store_->Missing(keys, n, parallel_for);
}

Status Table::Assign(const Key* keys, size_t n, const float* embeddings,
                     const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  std::lock_guard<std::mutex> commit(
      commit_mu_);  // Evict must not remove rows that have changed since it looked
  return SetLocked(keys, n, embeddings, spec_.dim, /*rounded=*/nullptr, parallel_for);
}

Status Table::SetLocked(const Key* keys, size_t n, const float* values, int floats,
                        const RowCoding* rounded, const ParallelFor& parallel_for) {
  const uint32_t now = this->now();
  const auto make = [&] {
    return store_->Set(
        keys, n, spec_.max_rows, now,
        [&](size_t i, RowRef row, bool) {
          std::copy_n(values + i * floats, floats, row.embedding);
          if (rounded != nullptr) {
            rounded->RoundForFormula(row.embedding, keys[i], row.meta->update_num);
          }
        },
        parallel_for);
  };
  Status status = MakeInRoom(keys, n, now, make, parallel_for);
  if (status.ok() && admission_ != nullptr) admission_->Forget(keys, n);
  return status;
}

Status Table::CheckSlots(size_t n, int slot_floats) const {
  const int held = store_->layout()->slot_floats();
  if (n == 0 || held == slot_floats) return Status();  // without a step there are no slots yet
  return Status(Code::kFailedPrecondition,
                "expected {expected} floats of slots a row, got a table with {held}",
                {{"expected", slot_floats}, {"held", held}});
}

Status Table::ReadRows(const Key* keys, size_t n, int slot_floats, std::vector<uint32_t>* places,
                       std::vector<float>* rows, const ParallelFor& parallel_for) {
  std::lock_guard<std::mutex> commit(commit_mu_);
  std::vector<RowMeta> metas(n);
  std::vector<uint8_t> exists(n);
  SOK_RETURN_IF_ERROR(ReadMeta(keys, n, metas.data(), exists.data(), parallel_for));
  std::vector<Key> held;
  for (size_t i = 0; i < n; ++i) {
    if (exists[i] == 0) continue;
    held.push_back(keys[i]);
    places->push_back(static_cast<uint32_t>(i));
  }
  SOK_RETURN_IF_ERROR(CheckSlots(held.size(), slot_floats));
  const size_t floats = static_cast<size_t>(spec_.dim) + slot_floats;
  rows->resize(held.size() * floats);
  return VisitLocked(
      held.data(), held.size(),
      [&](size_t i, const float* row, int) { std::copy_n(row, floats, &(*rows)[i * floats]); },
      parallel_for);
}

Status Table::AssignRows(const Key* keys, size_t n, int slot_floats, const float* rows,
                         const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  std::lock_guard<std::mutex> commit(commit_mu_);
  SOK_RETURN_IF_ERROR(CheckSlots(n, slot_floats));
  const auto layout = store_->layout();
  return SetLocked(keys, n, rows, spec_.dim + slot_floats, layout->coding(), parallel_for);
}

Result<uint64_t> Table::Remove(const Key* keys, size_t n, const ParallelFor& parallel_for) {
  std::vector<Key> held;
  if (!CheckRange(keys, n).ok()) {
    std::copy_if(keys, keys + n, std::back_inserter(held),
                 [&](const Key& key) { return CheckRange(&key, 1).ok(); });
    keys = held.data();
    n = held.size();
  }
  // A call that makes room for new rows must find the rows that it has counted.
  std::unique_lock<std::mutex> commit(commit_mu_, std::defer_lock);
  if (evictor_ != nullptr) commit.lock();
  std::vector<Key> there;
  const bool finds = admission_ != nullptr || removed_->noting();
  if (finds) {
    SOK_ASSIGN_OR_RETURN(auto missing, store_->Missing(keys, n, parallel_for));
    std::vector<uint8_t> absent(n, 0);
    for (uint32_t i : missing) absent[i] = 1;
    for (size_t i = 0; i < n; ++i) {
      if (absent[i] == 0) there.push_back(keys[i]);
    }
  }
  auto erased = store_->Erase(keys, n, parallel_for);
  if (erased.ok()) NoteRemoved(there);
  if (!finds) removed_->Add(keys, n);  // noting has begun meanwhile
  ++removals_;  // after: a lookup that still finds a row must not see the new count
  return erased;
}

void Table::ForgetCounts(const std::vector<Key>& keys) {
  if (admission_ != nullptr) admission_->Forget(keys.data(), keys.size());
}

void Table::NoteRemoved(const std::vector<Key>& keys) {
  ForgetCounts(keys);
  removed_->Add(keys.data(), keys.size());
}

Result<RemovedSince> Table::TakeRemoved(size_t most, const ParallelFor& parallel_for) {
  if (!removed_->noting() && most > 0) {
    clock_->Watch(spec_.group, [removed = removed_](Key key) { removed->Add(&key, 1); });
  }
  RemovedSince taken = removed_->Take(most, store_->replacements());
  auto missing = store_->Missing(taken.keys.data(), taken.keys.size(), parallel_for);
  if (!missing.ok()) {
    removed_->AddAll();  // the keys that were taken are lost
    return missing.status();
  }
  std::vector<Key> gone;
  for (uint32_t i : missing.value()) gone.push_back(taken.keys[i]);
  taken.keys = std::move(gone);
  return taken;
}

Result<std::vector<Key>> Table::ListKeys(int64_t part) const {
  if (part < 0 || part >= parts()) {
    return Status(Code::kOutOfRange, "expected one of " + std::to_string(parts()) +
                                         " parts of a table in memory, got " +
                                         std::to_string(part));
  }
  std::vector<Key> keys;
  SOK_RETURN_IF_ERROR(store_->ListKeys(static_cast<uint32_t>(part), &keys));
  std::sort(keys.begin(), keys.end());
  return keys;
}

int64_t Table::steps() {
  std::lock_guard<std::mutex> commit(commit_mu_);
  return state_.steps;
}

TableStats Table::Stats() {
  TableStats stats{};
  stats.rows = store_->size();
  stats.max_rows = spec_.max_rows;
  stats.index_bytes = store_->index_bytes();
  stats.row_bytes = store_->row_bytes();
  stats.steps = static_cast<uint64_t>(steps());
  stats.pending_gradients = deposits_.gradients();
  stats.left_out = left_out_;
  stats.evicted = evicted_ + (evictor_ == nullptr ? 0 : evictor_->evicted());
  stats.looked_up = looked_up_;
  stats.found = found_;
  stats.refused = refused_;
  stats.made = store_->made();
  stats.cache_hits = store_->cache_hits();
  return stats;
}

}  // namespace sok
