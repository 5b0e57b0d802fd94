// Finds out whether the files of a folder are of one moment.
//
// A flush of few rows is a record in a log of RocksDB, and one of many rows is files, which the
// manifest names. A copy of a folder that is in use may have the manifest of one moment and the
// logs of another, and each is whole. So each publication says how many came before it.
#pragma once

#include <rocksdb/wal_filter.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace sok {

// The names, among the named values, of what the last publications of each kind say.
constexpr char kLoggedName[] = "logged", kIngestedName[] = "ingested";

// Says where a publication stands among all others.
struct PublicationOrder {
  uint64_t logged = 0;    // publications that are records of a log
  uint64_t ingested = 0;  // publications that are files
  // For a record: the numbers of the logs that have the record before it, and the last record with
  // rows; 0: none is known.
  uint64_t last_log = 0, last_log_of_rows = 0;

  std::string Encode() const;
  // Returns zeros for a text that is none.
  static PublicationOrder Decode(std::string_view text);
};

// Returns kDataLoss if a publication of one kind names more of the other kind than there are.
// `logged` and `ingested`: the values of these names; empty: there are none.
Status CheckOrder(const std::string& folder, const std::string& logged,
                  const std::string& ingested);

// Looks at the records of logs while RocksDB reads them at an opening. RocksDB goes on where
// records are missing between two logs, or before the first.
class OrderOfLogs final : public rocksdb::WalFilter {
 public:
  // `meta`: the column family of the named values. refuse() is called at most once, with
  // kDataLoss, if records are missing, before RocksDB changes a file.
  using Refuse = std::function<void(const Status&)>;
  OrderOfLogs(std::string folder, std::string meta, Refuse refuse)
      : folder_(std::move(folder)), meta_(std::move(meta)), refuse_(std::move(refuse)) {}
  // Returns the error of that call, or success.
  const Status& refused() const { return refused_; }

  const char* Name() const override { return "sok_embed.order_of_logs"; }
  void ColumnFamilyLogNumberMap(const std::map<uint32_t, uint64_t>& logs,
                                const std::map<std::string, uint32_t>& families) override;
  WalProcessingOption LogRecordFound(unsigned long long log, const std::string& name,  // NOLINT
                                     const rocksdb::WriteBatch& batch, rocksdb::WriteBatch* changed,
                                     bool* has_changed) override;

 private:
  const std::string folder_, meta_;
  const Refuse refuse_;
  // Records of a column family in earlier logs than these are in its files.
  uint64_t first_log_of_rows_ = 0, first_log_of_meta_ = 0;
  PublicationOrder last_;  // of the last record; `logged` is 0 before the first
  Status refused_;
};

}  // namespace sok
