#include "core/tables/table_rows.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "core/base/status_macros.h"

namespace sok {

void TableRows::Count(const LookupCounts& met) {
  looked_up_.fetch_add(met.looked_up, std::memory_order_relaxed);
  found_.fetch_add(met.found, std::memory_order_relaxed);
  if (met.refused > 0) refused_.fetch_add(met.refused, std::memory_order_relaxed);
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
Status TableRows::Lookup(const Key* keys, size_t n, bool make_rows, T* out,
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

template Status TableRows::Lookup(const Key*, size_t, bool, float*, const ParallelFor&, uint8_t*,
                                  const int64_t*, RowNumbers*);
template Status TableRows::Lookup(const Key*, size_t, bool, BFloat16*, const ParallelFor&, uint8_t*,
                                  const int64_t*, RowNumbers*);

gpu::DeviceRows* TableRows::device_rows(void* stream) const {
  if (admission_ != nullptr || eviction_ != nullptr || spec_.direct) return nullptr;
  return store_->device_rows(stream);
}

std::shared_ptr<RowNumbers> TableRows::NumberRows(size_t n) const {
  const uint64_t erasures = store_->erasures();
  if (erasures == UINT64_MAX) return nullptr;
  auto numbers = std::make_shared<RowNumbers>();
  numbers->numbers.resize(n);
  numbers->erasures = erasures;
  return numbers;
}

template <typename T>
Status TableRows::Find(const Key* keys, size_t n, const GatherOptions& options, T* out,
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

template Status TableRows::Find(const Key*, size_t, const GatherOptions&, float*,
                                std::vector<uint32_t>*, LookupCounts*, const ParallelFor&) const;
template Status TableRows::Find(const Key*, size_t, const GatherOptions&, BFloat16*,
                                std::vector<uint32_t>*, LookupCounts*, const ParallelFor&) const;

Status TableRows::MakeRowsAs(const Key* keys, size_t n, const StartRow& start,
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

Status TableRows::Visit(const Key* keys, size_t n, const VisitRow& visit,
                        const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  std::lock_guard<std::mutex> commit(commit_mu_);
  return VisitLocked(keys, n, visit, parallel_for);
}

Status TableRows::VisitLocked(const Key* keys, size_t n, const VisitRow& visit,
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

Status TableRows::ForEachRow(const std::function<void(Key key, RowRef row)>& fn) {
  std::lock_guard<std::mutex> commit(commit_mu_);
  auto rows = store_->Freeze();
  return rows.ok() ? rows.value()->ForEach(fn) : rows.status();
}

Status TableRows::ReadMeta(const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
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

Status TableRows::Assign(const Key* keys, size_t n, const float* embeddings,
                         const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  std::lock_guard<std::mutex> commit(
      commit_mu_);  // Evict must not remove rows that have changed since it looked
  return SetLocked(keys, n, embeddings, spec_.dim, /*rounded=*/nullptr, parallel_for);
}

Status TableRows::SetLocked(const Key* keys, size_t n, const float* values, int floats,
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

Status TableRows::CheckSlots(size_t n, int slot_floats) const {
  const int held = store_->layout()->slot_floats();
  if (n == 0 || held == slot_floats) return Status();  // without a step there are no slots yet
  return Status(Code::kFailedPrecondition,
                "expected {expected} floats of slots a row, got a table with {held}",
                {{"expected", slot_floats}, {"held", held}});
}

Status TableRows::ReadRows(const Key* keys, size_t n, int slot_floats,
                           std::vector<uint32_t>* places, std::vector<float>* rows,
                           const ParallelFor& parallel_for) {
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

Status TableRows::AssignRows(const Key* keys, size_t n, int slot_floats, const float* rows,
                             const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(CheckRange(keys, n));
  std::lock_guard<std::mutex> commit(commit_mu_);
  SOK_RETURN_IF_ERROR(CheckSlots(n, slot_floats));
  const auto layout = store_->layout();
  return SetLocked(keys, n, rows, spec_.dim + slot_floats, layout->coding(), parallel_for);
}

Result<uint64_t> TableRows::Remove(const Key* keys, size_t n, const ParallelFor& parallel_for) {
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

Result<std::vector<Key>> TableRows::ListKeys(int64_t part) const {
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

}  // namespace sok
