#include "core/disk/rocksdb/noted_file.h"

#include <mutex>
#include <new>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/file.h"
#include "core/disk/rocksdb/noted_folder.h"

namespace sok {
namespace {

using rocksdb::IOStatus;

IOStatus ToRocksdb(const Status& status) {
  if (status.ok()) return IOStatus::OK();
  return status.code() == Code::kResourceExhausted ? IOStatus::NoSpace(status.message())
                                                   : IOStatus::IOError(status.message());
}

class File final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  File(std::unique_ptr<rocksdb::FSWritableFile> file, std::string folder, std::string name,
       std::shared_ptr<WrittenNote> note, std::shared_ptr<std::atomic<uint64_t>> last_log)
      : FSWritableFileOwnerWrapper(std::move(file)),
        folder_(std::move(folder)),
        name_(std::move(name)),
        log_(LogNumber(name_)),
        note_(std::move(note)),
        last_log_(std::move(last_log)) {
    checksum_.Start(0);
  }

  IOStatus Append(const rocksdb::Slice& bytes, const rocksdb::IOOptions& options,
                  rocksdb::IODebugContext* debug) override {
    return Appended(bytes, target()->Append(bytes, options, debug));
  }
  IOStatus Append(const rocksdb::Slice& bytes, const rocksdb::IOOptions& options,
                  const rocksdb::DataVerificationInfo& verification,
                  rocksdb::IODebugContext* debug) override {
    return Appended(bytes, target()->Append(bytes, options, verification, debug));
  }
  IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    const WrittenFile reached = Reached();
    const IOStatus status = target()->Sync(options, debug);
    return status.ok() ? Note(reached) : status;
  }
  IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    const WrittenFile reached = Reached();
    const IOStatus status = target()->Fsync(options, debug);
    return status.ok() ? Note(reached) : status;
  }

 private:
  IOStatus Appended(const rocksdb::Slice& bytes, const IOStatus& status) {
    if (!status.ok()) return status;
    if (log_ > 0) *last_log_ = log_;
    const std::lock_guard<std::mutex> guard(mu_);
    checksum_.Add(bytes.data(), bytes.size());
    bytes_ += bytes.size();
    return status;
  }
  WrittenFile Reached() {
    const std::lock_guard<std::mutex> guard(mu_);
    return {bytes_, bytes_, checksum_.value()};
  }
  IOStatus Note(const WrittenFile& reached) {
    try {
      // A note must not have a file of which a failure of power leaves not even the name.
      if (!has_name_) {
        if (const Status status = SyncFolder(folder_); !status.ok()) return ToRocksdb(status);
        has_name_ = true;
      }
      return ToRocksdb(note_->Set(name_, reached));
    } catch (const std::bad_alloc&) {
      return IOStatus::NoSpace();  // from which RocksDB recovers
    }
  }

  const std::string folder_, name_;
  const uint64_t log_;
  const std::shared_ptr<WrittenNote> note_;
  const std::shared_ptr<std::atomic<uint64_t>> last_log_;
  std::mutex mu_;  // guards the next two
  RunningChecksum checksum_;
  uint64_t bytes_ = 0;
  std::atomic<bool> has_name_{false};
};

}  // namespace

std::unique_ptr<rocksdb::FSWritableFile> NotedFile(
    std::unique_ptr<rocksdb::FSWritableFile> file, const std::string& folder,
    const std::string& name, std::shared_ptr<WrittenNote> note,
    std::shared_ptr<std::atomic<uint64_t>> last_log) {
  return std::make_unique<File>(std::move(file), folder, name, std::move(note),
                                std::move(last_log));
}

}  // namespace sok
