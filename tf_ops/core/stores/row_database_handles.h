// What RowDatabase keeps of RocksDB. Included by its sources only.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/compaction_filter.h>
#include <rocksdb/db.h>

#include <memory>
#include <string>

#include "core/stores/open_folders.h"
#include "core/stores/row_database.h"

namespace sok {

// Files that a publication has not finished begin with this.
constexpr char kPublishPrefix[] = "sok-publish-";

struct RowDatabase::Handles {
  // In this order: the database goes first, then what it uses.
  std::unique_ptr<rocksdb::CompactionFilter> filter;
  std::shared_ptr<rocksdb::Cache> block_cache;
  rocksdb::ColumnFamilyOptions row_options;
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* published = nullptr;
  rocksdb::ColumnFamilyHandle* meta = nullptr;
  rocksdb::ColumnFamilyHandle* pending = nullptr;
  std::string locked;  // the folder, if it is open for writing

  ~Handles() {
    if (db == nullptr) return;
    for (auto* handle : {published, meta, pending}) {
      if (handle != nullptr) db->DestroyColumnFamilyHandle(handle);
    }
    db->Close();
    db.reset();
    if (!locked.empty()) OpenFolders::Remove(locked);
  }
};

}  // namespace sok
