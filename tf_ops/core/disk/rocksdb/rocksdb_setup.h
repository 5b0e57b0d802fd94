// Sets RocksDB up for rows, and translates its errors into Status. Every function may be called
// from any thread. Errors of RocksDB become a Status in FromRocksdb alone.
#pragma once

#include <rocksdb/compaction_filter.h>
#include <rocksdb/options.h>
#include <rocksdb/status.h>

#include <memory>
#include <string>

#include "core/base/status.h"

namespace sok {

class Expiry;

// Makes a filter that removes expired rows while RocksDB rewrites files.
std::unique_ptr<rocksdb::CompactionFilter> MakeExpiryFilter(std::shared_ptr<const Expiry> expiry);

// The memory that RocksDB takes in addition to cached rows: a block cache of kBlockCacheBytes, and
// memtables of at most kMemtableBytes.
constexpr size_t kBlockCacheBytes = size_t{32} << 20;
constexpr size_t kMemtableBytes = size_t{96} << 20;

rocksdb::DBOptions DatabaseOptions();
// Returns the options for published rows. Files that are `ttl` seconds old are rewritten, so that
// the compaction filter sees their rows; 0: files are not rewritten because of their age.
rocksdb::ColumnFamilyOptions RowOptions(const std::shared_ptr<rocksdb::Cache>& block_cache,
                                        const rocksdb::CompactionFilter* filter, uint32_t ttl);
// Returns the options for pending rows: writes of these never wait for files to be merged.
rocksdb::ColumnFamilyOptions PendingOptions(const std::shared_ptr<rocksdb::Cache>& block_cache);
rocksdb::ColumnFamilyOptions MetaOptions();

// Returns the Status of an attempt that failed. `what` names the attempt, such as "open the storage
// '/data/rows'".
Status FromRocksdb(const rocksdb::Status& status, const std::string& what);

}  // namespace sok
