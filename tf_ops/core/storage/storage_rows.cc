// Reads, removes and walks through the rows of a group for callers that do not train it.
#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/initializer.h"
#include "core/base/status_macros.h"
#include "core/rows/key_set.h"
#include "core/storage/admission_names.h"
#include "core/storage/storage.h"

namespace sok {
namespace {

// Returns the positions of keys in the order of the keys.
std::vector<size_t> Sorted(const Key* keys, size_t n) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return keys[a] < keys[b]; });
  return order;
}

// Makes the initializer of a group's rows; zeros if the group has none.
Result<Initializer> StartOf(const GroupMeta& meta, int group) {
  const bool said = !meta.initializer.empty();
  return Initializer::Make(said ? meta.initializer : "constant", meta.initializer_a,
                           meta.initializer_b, meta.seed, group);
}

}  // namespace

template <typename Opened, typename Closed>
auto Storage::OfRows(int group, bool to_write, const Opened& opened, const Closed& closed)
    -> decltype(opened(std::declval<Table&>(), std::declval<Admission*>())) {
  std::unique_lock<std::mutex> guard(mu_);
  if (const auto open = groups_.find(group); open != groups_.end()) {
    const OpenGroup found = open->second;
    guard.unlock();  // the table's own locks are enough, and a flush need not wait
    return opened(*found.table, found.admission.get());
  }
  SOK_ASSIGN_OR_RETURN(auto gate, core_->Enter(to_write));
  SOK_ASSIGN_OR_RETURN(auto meta, DescriptionOf(group));
  if (meta.dim == 0) return NoGroup(group);
  return closed(meta);
}

Result<GroupMeta> Storage::GroupOf(int group) {
  std::lock_guard<std::mutex> guard(mu_);
  SOK_ASSIGN_OR_RETURN(auto gate, core_->Enter(/*to_write=*/false));
  auto meta = DescriptionOf(group);
  if (meta.ok() && meta.value().dim == 0) return NoGroup(group);
  return meta;
}

Status Storage::ReadClosed(
    int group, const GroupMeta& meta, const Key* keys, size_t n,
    const std::function<void(size_t i, const RowValue& value)>& found) const {
  const std::vector<size_t> order = Sorted(keys, n);
  std::vector<RowKey> wanted;
  std::vector<size_t> begins;  // where each page begins in `order`
  for (size_t i = 0; i < n; ++i) {
    if (i > 0 && keys[order[i]] == keys[order[i - 1]]) continue;
    wanted.emplace_back(group, keys[order[i]]);
    begins.push_back(i);
  }
  begins.push_back(n);
  const RowLayout layout = LayoutOf(meta);
  Status damaged;
  Status status =
      core_->database->Read(wanted.data(), wanted.size(), [&](size_t i, std::string_view bytes) {
        RowValue value;
        if (!value.Parse(bytes, layout)) {
          damaged = DamagedRow(group, keys[order[begins[i]]], path());
          return;
        }
        for (size_t j = begins[i]; j < begins[i + 1]; ++j) found(order[j], value);
      });
  return status.ok() ? damaged : status;
}

Status Storage::ReadRows(int group, const Key* keys, size_t n, float* embeddings, uint8_t* exists,
                         const ParallelFor& parallel_for) {
  const auto read = [&](const GroupMeta& meta) {
    SOK_ASSIGN_OR_RETURN(auto start, StartOf(meta, group));
    const size_t dim = meta.dim;
    const RowLayout layout = LayoutOf(meta);
    std::vector<char> coded(layout.row_bytes());
    const uint32_t now = core_->expiry->Now();
    std::fill(exists, exists + n, 0);
    Status status = ReadClosed(group, meta, keys, n, [&](size_t i, const RowValue& value) {
      if (core_->expiry->Expired(value.header.meta.update_time, now)) return;
      exists[i] = 1;
      layout.DecodeEmbedding(value.values.data(), embeddings + i * dim);
    });
    for (size_t i = 0; i < n && status.ok(); ++i) {
      if (exists[i] != 0) continue;
      start.Fill(keys[i], embeddings + i * dim, meta.dim);
      if (layout.coding() != nullptr) {
        layout.coding()->RoundEmbedding(embeddings + i * dim, coded.data());
      }
    }
    return status;
  };
  return OfRows(
      group, /*to_write=*/false,
      [&](Table& table, Admission*) {
        return table.Lookup(keys, n, /*make_rows=*/false, embeddings, parallel_for, exists);
      },
      read);
}

Status Storage::ReadRowMeta(int group, const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                            const ParallelFor& parallel_for) {
  return OfRows(
      group, /*to_write=*/false,
      [&](Table& table, Admission*) {
        return table.ReadMeta(keys, n, metas, exists, parallel_for);
      },
      [&](const GroupMeta& meta) {
        const uint32_t now = core_->expiry->Now();
        std::fill(exists, exists + n, 0);
        std::fill(metas, metas + n, RowMeta{});
        return ReadClosed(group, meta, keys, n, [&](size_t i, const RowValue& value) {
          if (core_->expiry->Expired(value.header.meta.update_time, now)) return;
          exists[i] = 1;
          metas[i] = value.header.meta;
        });
      });
}

Result<NamedValues> Storage::ForgetCounts(int group, const GroupMeta& meta, const Key* keys,
                                          size_t n) {
  NamedValues changed;
  if (!meta.admission.has_value()) return changed;
  SOK_ASSIGN_OR_RETURN(auto admission, OpenAdmission(group, *meta.admission));
  admission->Forget(keys, n);
  for (uint32_t chunk : admission->ChangedChunks()) {
    SOK_ASSIGN_OR_RETURN(changed[ChunkName(group, chunk)], admission->Dump(chunk));
  }
  return changed;
}

Result<uint64_t> Storage::RemoveRows(int group, const Key* keys, size_t n,
                                     const ParallelFor& parallel_for) {
  return OfRows(
      group, /*to_write=*/true,
      [&](Table& table, Admission* admission) {
        auto removed = table.Remove(keys, n, parallel_for);
        // This forgets keys that wait for a row, too.
        if (removed.ok() && admission != nullptr) admission->Forget(keys, n);
        return removed;
      },
      [&](const GroupMeta& meta) { return RemoveClosed(group, meta, keys, n); });
}

Result<uint64_t> Storage::RemoveClosed(int group, GroupMeta meta, const Key* keys, size_t n) {
  const uint32_t now = core_->expiry->Now();
  RowBatch gone;
  KeySet seen;
  uint64_t live = 0, counted = 0;
  SOK_RETURN_IF_ERROR(ReadClosed(group, meta, keys, n, [&](size_t i, const RowValue& value) {
    if (!seen.Insert(keys[i])) return;
    const uint32_t updated = value.header.meta.update_time;
    live += !core_->expiry->Expired(updated, now);
    counted += !core_->expiry->Expired(updated, meta.counted_at);
    gone.Remove(RowKey(group, keys[i]));
  }));
  SOK_ASSIGN_OR_RETURN(NamedValues values, ForgetCounts(group, meta, keys, n));
  if (gone.rows() == 0 && values.empty()) return uint64_t{0};
  meta.rows -= std::min(meta.rows, counted);
  values[GroupMetaName(group)] = meta.ToJson();
  SOK_RETURN_IF_ERROR(core_->database->WritePublished(gone, values, /*sync=*/true));
  return live;
}

Result<TableStats> Storage::RowStats(int group) {
  return OfRows(
      group, /*to_write=*/false,
      [](Table& table, Admission*) { return Result<TableStats>(table.Stats()); },
      [](const GroupMeta& meta) {
        TableStats stats{};
        stats.rows = meta.rows;
        stats.steps = static_cast<uint64_t>(meta.state.steps);
        return Result<TableStats>(stats);
      });
}

Result<RowPage> Storage::ReadPage(int group, Key from, size_t most) {
  std::lock_guard<std::mutex> guard(mu_);
  const auto gate = core_->TakeAlone();
  SOK_RETURN_IF_ERROR(Ready());
  SOK_ASSIGN_OR_RETURN(auto described, DescriptionOf(group));
  if (described.dim == 0) return NoGroup(group);
  const RowLayout layout = LayoutOf(described);
  if (const auto open = groups_.find(group); open != groups_.end()) {
    SOK_RETURN_IF_ERROR(open->second.store->Settle());
  }
  SOK_ASSIGN_OR_RETURN(auto view, core_->database->Look(group, from));
  const uint32_t now = core_->expiry->Now();
  RowPage page;
  page.last = true;
  Status status = view->ForEach([&](int, Key key, std::string_view bytes) {
    RowValue value;
    if (!value.Parse(bytes, layout)) return DamagedRow(group, key, path());
    if (core_->expiry->Expired(value.header.meta.update_time, now)) return Status();
    if (page.keys.size() == most) {
      page.last = false;
      return Status(Code::kFailedPrecondition, "the page is full");  // this ends the walk
    }
    page.keys.push_back(key);
    const size_t end = page.embeddings.size();
    page.embeddings.resize(end + described.dim);
    layout.DecodeEmbedding(value.values.data(), page.embeddings.data() + end);
    return Status();
  });
  if (!status.ok() && page.last) return status;
  return page;
}

}  // namespace sok
