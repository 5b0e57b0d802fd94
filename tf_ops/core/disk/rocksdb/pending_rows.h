// Walks through the pending rows of a RowDatabase. Included by its sources only.
#pragma once

#include <string_view>

#include "core/base/status.h"
#include "core/disk/rocksdb/rocksdb_setup.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/rocksdb/row_database_handles.h"

namespace sok {

// Pending rows in the order of the keys, the newest version of each. Rows that are set apart are
// older than the others. An empty value stands for a row that is gone.
class RowDatabase::PendingRows {
 public:
  // `set_apart`: walk through rows that are set apart alone, even if newer versions are pending.
  PendingRows(const RowDatabase& database, bool set_apart) : database_(database) {
    const Handles& h = *database.handles_;
    if (!set_apart && database.has_newest()) {
      newest_ = h.IterateWhole(h.pending[database.newest_]);
    }
    if (database.has_set_apart()) apart_ = h.IterateWhole(h.pending[1 - database.newest_]);
  }
  void Seek(std::string_view key) {
    for (rocksdb::Iterator* rows : {newest_.get(), apart_.get()}) {
      if (rows != nullptr) rows->Seek(SliceOf(key));
    }
    Choose();
  }
  bool Valid() const { return at_ != nullptr; }
  void Next() {
    if (both_) apart_->Next();
    at_->Next();
    Choose();
  }
  std::string_view key() const { return ViewOf(at_->key()); }
  std::string_view value() const { return ViewOf(at_->value()); }
  Status status() const {
    for (const rocksdb::Iterator* rows : {newest_.get(), apart_.get()}) {
      if (rows == nullptr || rows->status().ok()) continue;
      return FromRocksdb(rows->status(), "read rows of '" + database_.path_ + "'");
    }
    return Status();
  }

 private:
  void Choose() {
    rocksdb::Iterator* const newer =
        newest_ != nullptr && newest_->Valid() ? newest_.get() : nullptr;
    rocksdb::Iterator* const older = apart_ != nullptr && apart_->Valid() ? apart_.get() : nullptr;
    const int order = newer == nullptr || older == nullptr ? 0 : newer->key().compare(older->key());
    both_ = newer != nullptr && older != nullptr && order == 0;
    at_ = newer == nullptr || order > 0 ? older : newer;
  }

  const RowDatabase& database_;
  Handles::Iterator newest_, apart_;  // null: none
  rocksdb::Iterator* at_ = nullptr;   // the one with the next row; null: none is left
  bool both_ = false;                 // the other has an older version of it
};

}  // namespace sok
