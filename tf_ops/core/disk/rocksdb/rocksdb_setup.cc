#include "core/disk/rocksdb/rocksdb_setup.h"

#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_buffer_manager.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/expiry.h"
#include "core/base/file_error.h"
#include "core/disk/row_codec.h"

namespace sok {
namespace {

// Files stay in the last format that RocksDB 7.8 reads.
constexpr uint32_t kFormatOfTables = 5;

// The most sorted runs whose filters a search reads; there are a few more while runs are merged.
constexpr int kMostRuns = 20;

class ExpiryFilter final : public rocksdb::CompactionFilter {
 public:
  explicit ExpiryFilter(std::shared_ptr<const Expiry> expiry) : expiry_(std::move(expiry)) {}

  // Each version of a row is judged by itself. If this one is removed, older ones may become
  // visible, but they were updated earlier, so they have expired too.
  bool Filter(int /*level*/, const rocksdb::Slice& key, const rocksdb::Slice& value,
              std::string* /*new_value*/, bool* /*value_changed*/) const override {
    if (value.size() < sizeof(RowHeader)) return false;
    RowHeader header;
    std::memcpy(&header, value.data(), sizeof(header));
    if (!expiry_->MayRemove(header.meta.update_time)) return false;
    if (key.size() == RowKey::kBytes) {
      const std::string_view bytes(key.data(), key.size());
      expiry_->Notify(RowKey::Group(bytes), RowKey::KeyOf(bytes));
    }
    return true;
  }
  const char* Name() const override { return "sok_embed.expiry"; }

 private:
  const std::shared_ptr<const Expiry> expiry_;
};

}  // namespace

std::unique_ptr<rocksdb::CompactionFilter> MakeExpiryFilter(std::shared_ptr<const Expiry> expiry) {
  return std::make_unique<ExpiryFilter>(std::move(expiry));
}

rocksdb::DBOptions DatabaseOptions() {
  rocksdb::DBOptions options;
  options.max_background_jobs = 3;  // one writes memtables, and two merge where files are many
  options.max_open_files = 512;
  options.db_write_buffer_size = kMemtableBytes;
  options.max_total_wal_size = uint64_t{128} << 20;
  options.keep_log_file_num = 2;
  options.max_log_file_size = size_t{1} << 20;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.avoid_unnecessary_blocking_io = true;
  options.compaction_readahead_size = size_t{2} << 20;  // such reads go past the system's cache
  // RocksDB must not reserve space on the disk: it would take 39 MB for a new database.
  options.allow_fallocate = false;
  // The OPTIONS file of RocksDB is for people: no call may fail because of it.
  options.fail_if_options_file_error = false;
  return options;
}

rocksdb::ColumnFamilyOptions RowOptions(const std::shared_ptr<rocksdb::Cache>& block_cache,
                                        const rocksdb::CompactionFilter* filter, uint32_t ttl) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = block_cache;
  // One in 500 of the keys that a run does not have passes, and costs a read of the disk.
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(14));
  // Index and filters stay in memory, about two and a half bytes a row. In the block cache they
  // would cost a search of each file locks and system calls.
  table.index_type = rocksdb::BlockBasedTableOptions::kBinarySearch;
  table.cache_index_and_filter_blocks = false;
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  table.optimize_filters_for_memory = false;  // which is for filters in a block cache
  table.format_version = kFormatOfTables;

  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;  // floats hardly compress
  options.write_buffer_size = size_t{32} << 20;
  options.max_write_buffer_number = 3;
  options.memtable_whole_key_filtering = true;
  options.memtable_prefix_bloom_size_ratio = 0.02;
  // Files are merged when there are kMostRuns sorted runs, each of which has filters that keep most
  // searches out: merging new rows into old ones level by level writes each row ten times and more.
  options.compaction_style = rocksdb::kCompactionStyleUniversal;
  options.compaction_options_universal.max_size_amplification_percent = 100;
  options.level0_file_num_compaction_trigger = kMostRuns;
  options.target_file_size_base = uint64_t{512} << 20;  // so that all files are open at a time
  options.level0_slowdown_writes_trigger = 4 * kMostRuns;
  options.level0_stop_writes_trigger = 6 * kMostRuns;
  options.compaction_filter = filter;
  if (filter == nullptr) {
    options.periodic_compaction_seconds = 0;  // by default all files are rewritten each month
  } else if (ttl > 0) {
    options.periodic_compaction_seconds = std::max<uint64_t>(ttl, 60);
  }
  return options;
}

rocksdb::ColumnFamilyOptions PendingOptions(const std::shared_ptr<rocksdb::Cache>& block_cache) {
  rocksdb::ColumnFamilyOptions options = RowOptions(block_cache, nullptr, 0);
  // Writes are never slowed down: training would wait for all merges in the queue, for a minute and
  // more. Until files are merged, only searches take longer.
  options.level0_slowdown_writes_trigger = std::numeric_limits<int>::max();
  options.level0_stop_writes_trigger = std::numeric_limits<int>::max();
  return options;
}

rocksdb::ColumnFamilyOptions MetaOptions() {
  rocksdb::BlockBasedTableOptions table;
  table.format_version = kFormatOfTables;
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = size_t{4} << 20;
  options.compression = rocksdb::kNoCompression;
  return options;
}

Status FromRocksdb(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return Status();
  const std::string text = status.ToString();
  const auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  const std::string message = "could not " + what + ": " + text;
  if (status.IsNoSpace() || status.IsCompactionTooLarge() || says("No space left") ||
      says("File too large") || says("Disk quota exceeded")) {
    return Status(Code::kResourceExhausted, message + kMakeRoom);
  }
  if (says("Read-only file system")) {
    return Status(Code::kPermissionDenied, message + kMountForWriting);
  }
  if (says("Permission denied")) return Status(Code::kPermissionDenied, message + kCheckOwner);
  if (says("unsupported format_version") || says("Unsupported compression")) {
    return Status(Code::kDataLoss,
                  message +
                      "; a newer RocksDB than the one of sok-embed has written to the folder, "
                      "such as that of another client, and the rows may be whole: have that "
                      "client rewrite the files in a format of RocksDB 9.10, without compression, "
                      "or restore the folder "
                      "from a checkpoint or a dump");
  }
  if (status.IsCorruption()) {
    return Status(Code::kDataLoss, message + kRestore);
  }
  if (status.IsPathNotFound() || status.IsNotFound() || says("No such file or directory")) {
    return Status(Code::kNotFound, message);
  }
  // After an error of the disk while RocksDB reads its options, its message says that they are
  // unsupported, or speaks of direct I/O.
  const bool of_disk = says("IO error") || says("Direct I/O");
  if (status.IsInvalidArgument() && !of_disk) return Status(Code::kInvalidArgument, message);
  return Status(Code::kInternal, message);
}

}  // namespace sok
