#include "core/disk/rocksdb/publication_order.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <cinttypes>
#include <cstdio>
#include <utility>

namespace sok {
namespace {

Status NotOfOneMoment(const std::string& folder, const std::string& why) {
  return Status(Code::kDataLoss,
                "the files of the storage '" + folder + "' are not of one moment: " + why +
                    "; such is a copy of a folder while it is in use: copy it with "
                    "checkpoint(path), or while the storage is closed");
}

// Finds the order that a record says.
class Reader final : public rocksdb::WriteBatch::Handler {
 public:
  rocksdb::Status PutCF(uint32_t /*family*/, const rocksdb::Slice& key,
                        const rocksdb::Slice& value) override {
    if (key == kLoggedName) order_ = PublicationOrder::Decode({value.data(), value.size()});
    return rocksdb::Status::OK();
  }
  rocksdb::Status DeleteCF(uint32_t /*family*/, const rocksdb::Slice& /*key*/) override {
    return rocksdb::Status::OK();
  }
  const PublicationOrder& order() const { return order_; }

 private:
  PublicationOrder order_;
};

}  // namespace

std::string PublicationOrder::Encode() const {
  std::string text;
  for (uint64_t number : {logged, ingested, last_log, last_log_of_rows}) {
    text += (text.empty() ? "" : " ") + std::to_string(number);
  }
  return text;
}

PublicationOrder PublicationOrder::Decode(std::string_view text) {
  PublicationOrder order;
  const int read =
      std::sscanf(std::string(text).c_str(), "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
                  &order.logged, &order.ingested, &order.last_log, &order.last_log_of_rows);
  return read == 4 ? order : PublicationOrder();
}

Status CheckOrder(const std::string& folder, const std::string& logged,
                  const std::string& ingested) {
  const PublicationOrder of_log = PublicationOrder::Decode(logged);
  const PublicationOrder of_files = PublicationOrder::Decode(ingested);
  if (of_log.logged < of_files.logged) {
    return NotOfOneMoment(folder, "its logs have " + std::to_string(of_log.logged) +
                                      " flushes, and its tables follow the flush " +
                                      std::to_string(of_files.logged) + " of these");
  }
  if (of_files.ingested < of_log.ingested) {
    return NotOfOneMoment(folder, "its tables have " + std::to_string(of_files.ingested) +
                                      " flushes, and its logs follow the flush " +
                                      std::to_string(of_log.ingested) + " of these");
  }
  return Status();
}

void OrderOfLogs::ColumnFamilyLogNumberMap(const std::map<uint32_t, uint64_t>& logs,
                                           const std::map<std::string, uint32_t>& families) {
  const auto first_log = [&](const std::string& family) {
    const auto id = families.find(family);
    const auto log = id == families.end() ? logs.end() : logs.find(id->second);
    return log == logs.end() ? 0 : log->second;
  };
  first_log_of_rows_ = first_log(rocksdb::kDefaultColumnFamilyName);
  first_log_of_meta_ = first_log(meta_);
}

rocksdb::WalFilter::WalProcessingOption OrderOfLogs::LogRecordFound(
    unsigned long long log, const std::string& /*name*/,  // NOLINT(runtime/int): RocksDB's own type
    const rocksdb::WriteBatch& batch, rocksdb::WriteBatch* /*changed*/, bool* /*has_changed*/) {
  Reader reader;
  // Records of other clients may have entries that this does not know. Those say no order.
  const bool known = batch.Iterate(&reader).ok();
  const PublicationOrder order = reader.order();
  if (!refused_.ok() || !known || order.logged == 0)
    return WalProcessingOption::kContinueProcessing;
  // One that failed and was there all the same has the number of the one that follows it.
  const bool follows =
      last_.logged > 0 && (order.logged == last_.logged || order.logged == last_.logged + 1);
  const auto is_in_files = [](uint64_t last, uint64_t first) { return last == 0 || last < first; };
  const bool in_files = is_in_files(order.last_log, first_log_of_meta_) &&
                        is_in_files(order.last_log_of_rows, first_log_of_rows_);
  last_ = order;
  if (follows || in_files) return WalProcessingOption::kContinueProcessing;
  refused_ = NotOfOneMoment(folder_, "the log " + std::to_string(log) + " has the flush " +
                                         std::to_string(order.logged) +
                                         ", and the one before it is missing, of the log " +
                                         std::to_string(order.last_log));
  refuse_(refused_);
  return WalProcessingOption::kCorruptedRecord;
}

}  // namespace sok
