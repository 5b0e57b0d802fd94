// Reading rows and named values: the newest first, in journal, pending rows and files.
#include <rocksdb/db.h>

#include <map>
#include <utility>

#include "core/base/status_macros.h"
#include "core/disk/journal_reader.h"
#include "core/disk/rocksdb/known_keys.h"
#include "core/disk/rocksdb/rocksdb_setup.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/rocksdb/row_database_handles.h"

namespace sok {
namespace {

constexpr int64_t kReadCost = 160;  // nanoseconds a key, so that 128 keys are worth a thread

// Returns reading options for rows that go into the caller's own cache.
rocksdb::ReadOptions RowRead() {
  rocksdb::ReadOptions reading;
  reading.fill_cache = false;
  return reading;
}

}  // namespace

Status RowDatabase::Read(const RowKey* keys, size_t n, const Found& found) const {
  if (keys_ == nullptr) return ReadKnown(keys, n, found);
  const std::vector<uint32_t> known = keys_->Select(keys, n);
  filtered_.fetch_add(n - known.size(), std::memory_order_relaxed);
  if (known.size() == n) return ReadKnown(keys, n, found);
  std::vector<RowKey> wanted(known.size());
  for (size_t i = 0; i < known.size(); ++i) wanted[i] = keys[known[i]];
  return ReadKnown(wanted.data(), wanted.size(),
                   [&](size_t i, std::string_view value) { found(known[i], value); });
}

Status RowDatabase::ReadKnown(const RowKey* keys, size_t n, const Found& each) const {
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  if (n == 0) return Status();
  uint64_t rows = 0;
  const auto found = [&](size_t i, std::string_view value) {
    ++rows;
    each(i, value);
  };
  const Status status = ReadNewest(keys, n, found);
  searched_.fetch_add(n, std::memory_order_relaxed);
  found_.fetch_add(rows, std::memory_order_relaxed);
  return status;
}

Status RowDatabase::ReadNewest(const RowKey* keys, size_t n, const Found& found) const {
  if (journal_ == nullptr && !has_pending()) return ReadFiles(keys, n, found);
  std::vector<RowKey> wanted(keys, keys + n);
  std::vector<size_t> positions;  // positions of keys that are still wanted; empty: all
  const auto each = [&](size_t i, std::string_view value) {
    found(positions.empty() ? i : positions[i], value);
  };
  // Keeps only the keys at `rest`, for which newer data has neither a row nor a tombstone.
  const auto keep = [&](const std::vector<size_t>& rest) {
    for (size_t i = 0; i < rest.size(); ++i) {
      wanted[i] = wanted[rest[i]];
      if (!positions.empty()) positions[i] = positions[rest[i]];
    }
    if (positions.empty()) positions = rest;
    wanted.resize(rest.size());
    positions.resize(rest.size());
    return rest.empty();
  };
  if (journal_ != nullptr) {
    SOK_ASSIGN_OR_RETURN(const auto rest, ReadJournal(wanted.data(), wanted.size(), each));
    if (keep(rest)) return Status();
  }
  if (has_newest()) {
    SOK_ASSIGN_OR_RETURN(const auto rest, ReadPending(newest_, wanted.data(), wanted.size(), each));
    if (keep(rest)) return Status();
  }
  if (has_set_apart()) {
    SOK_ASSIGN_OR_RETURN(const auto rest,
                         ReadPending(1 - newest_, wanted.data(), wanted.size(), each));
    if (keep(rest)) return Status();
  }
  return ReadFiles(wanted.data(), wanted.size(), each);
}

Result<std::vector<size_t>> RowDatabase::ReadJournal(const RowKey* keys, size_t n,
                                                     const Found& found) const {
  std::vector<size_t> rest;
  std::string value;
  for (size_t i = 0; i < n; ++i) {
    const JournalReader::Place* place = journal_->Find(keys[i]);
    if (place == nullptr) {
      rest.push_back(i);
    } else if (place->size > 0) {
      SOK_RETURN_IF_ERROR(journal_->Read(*place, &value));
      found(i, value);
    }
  }
  return rest;
}

Result<std::vector<size_t>> RowDatabase::ReadPending(int family, const RowKey* keys, size_t n,
                                                     const Found& found) const {
  std::vector<size_t> rest;
  std::vector<rocksdb::Slice> wanted(n);
  for (size_t i = 0; i < n; ++i) wanted[i] = rocksdb::Slice(keys[i].bytes, RowKey::kBytes);
  std::vector<rocksdb::PinnableSlice> values(n);
  std::vector<rocksdb::Status> statuses(n);
  handles_->db->MultiGet(RowRead(), handles_->pending[family], n, wanted.data(), values.data(),
                         statuses.data(), true);
  for (size_t i = 0; i < n; ++i) {
    if (statuses[i].IsNotFound()) {
      rest.push_back(i);
    } else if (!statuses[i].ok()) {
      return FromRocksdb(statuses[i], "read rows of '" + path_ + "'");
    } else if (values[i].size() > 0) {
      found(i, ViewOf(values[i]));
    }
  }
  return rest;
}

Status RowDatabase::ReadPublished(const RowKey* keys, size_t n, const Found& found) const {
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  return ReadFiles(keys, n, found);
}

Status RowDatabase::ReadFiles(const RowKey* keys, size_t n, const Found& found) const {
  const Handles& h = *handles_;
  std::vector<rocksdb::Slice> wanted(n);
  for (size_t i = 0; i < n; ++i) wanted[i] = rocksdb::Slice(keys[i].bytes, RowKey::kBytes);
  std::vector<rocksdb::PinnableSlice> values(n);
  std::vector<rocksdb::Status> statuses(n);
  readers_.Run(static_cast<int64_t>(n), kReadCost, [&](int64_t begin, int64_t end) {
    h.db->MultiGet(RowRead(), h.published, end - begin, wanted.data() + begin,
                   values.data() + begin, statuses.data() + begin, true);
  });
  for (size_t i = 0; i < n; ++i) {
    if (statuses[i].ok()) {
      found(i, ViewOf(values[i]));
    } else if (!statuses[i].IsNotFound()) {
      return FromRocksdb(statuses[i], "read rows of '" + path_ + "'");
    }
  }
  return Status();
}
void RowDatabase::ShowJournal(std::unique_ptr<JournalReader> journal, Meta meta) {
  journal_ = std::move(journal);
  journal_meta_ = std::move(meta);
}

Result<std::map<std::string, std::string>> RowDatabase::ReadMeta(const std::string& prefix) const {
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  std::map<std::string, std::string> found;
  const Handles::Iterator names = handles_->Iterate({}, handles_->meta);
  for (names->Seek(prefix); names->Valid() && names->key().starts_with(prefix); names->Next()) {
    found[names->key().ToString()] = names->value().ToString();
  }
  if (!names->status().ok()) return FromRocksdb(names->status(), "read '" + path_ + "'");
  for (const auto& [name, value] : journal_meta_) {
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    if (value.has_value()) {
      found[name] = *value;
    } else {
      found.erase(name);
    }
  }
  return found;
}
}  // namespace sok
