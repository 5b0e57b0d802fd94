// How RocksDB is set up for rows, and its errors as ours.
#pragma once

#include <rocksdb/compaction_filter.h>
#include <rocksdb/options.h>
#include <rocksdb/status.h>

#include <memory>
#include <string>

#include "core/base/status.h"

namespace sok {

class Expiry;

// Removes expired rows while RocksDB rewrites files.
std::unique_ptr<rocksdb::CompactionFilter> MakeExpiryFilter(std::shared_ptr<const Expiry> expiry);

// Memory that RocksDB takes beside the rows' cache: a block cache of kBlockCacheBytes and memtables
// of at most kMemtableBytes.
constexpr size_t kBlockCacheBytes = size_t{32} << 20;
constexpr size_t kMemtableBytes = size_t{96} << 20;

rocksdb::DBOptions DatabaseOptions();
// ttl: how old files get before they are rewritten; 0: any age.
rocksdb::ColumnFamilyOptions RowOptions(const std::shared_ptr<rocksdb::Cache>& block_cache,
                                        const rocksdb::CompactionFilter* filter, uint32_t ttl);
rocksdb::ColumnFamilyOptions MetaOptions();

// what: of the attempt, such as "open the storage '/data/rows'".
Status FromRocksdb(const rocksdb::Status& status, const std::string& what);

}  // namespace sok
