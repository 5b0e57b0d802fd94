#include "core/disk/rocksdb/database_files.h"

#include <fcntl.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/file_stream.h"
#include "core/disk/overlapping_reads.h"

namespace sok {
namespace {

using rocksdb::IOStatus;

class File final : public rocksdb::FSRandomAccessFile {
 public:
  File(std::string name, std::unique_ptr<OverlappingReads> reads)
      : name_(std::move(name)), reads_(std::move(reads)) {}

  IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions& /*options*/,
                rocksdb::Slice* result, char* scratch,
                rocksdb::IODebugContext* /*debug*/) const override {
    OverlappingReads::Request request{offset, n, scratch};
    reads_->Read(&request, 1);
    *result = rocksdb::Slice(scratch, request.read);
    return StatusOf(request);
  }

  IOStatus MultiRead(rocksdb::FSReadRequest* blocks, size_t n,
                     const rocksdb::IOOptions& /*options*/,
                     rocksdb::IODebugContext* /*debug*/) override {
    std::vector<OverlappingReads::Request> requests;
    requests.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      requests.push_back({blocks[i].offset, blocks[i].len, blocks[i].scratch});
    }
    reads_->Read(requests.data(), n);
    for (size_t i = 0; i < n; ++i) {
      blocks[i].result = rocksdb::Slice(blocks[i].scratch, requests[i].read);
      blocks[i].status = StatusOf(requests[i]);
    }
    return IOStatus::OK();
  }

  IOStatus Prefetch(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                    rocksdb::IODebugContext* /*debug*/) override {
    // A compaction then reads long pieces into buffers of its own, past the system's cache.
    if (options.io_activity == rocksdb::Env::IOActivity::kCompaction) {
      return IOStatus::NotSupported("compactions read past the system's cache");
    }
    reads_->Advise(offset, n, POSIX_FADV_WILLNEED);
    return IOStatus::OK();
  }

  void Hint(AccessPattern pattern) override { reads_->Advise(0, 0, AdviceOf(pattern)); }

 private:
  static int AdviceOf(AccessPattern pattern) {
    switch (pattern) {
      case kRandom:
        return POSIX_FADV_RANDOM;
      case kSequential:
        return POSIX_FADV_SEQUENTIAL;
      case kWillNeed:
        return POSIX_FADV_WILLNEED;
      case kWontNeed:
        return POSIX_FADV_DONTNEED;
      case kNormal:
        break;
    }
    return POSIX_FADV_NORMAL;
  }

  IOStatus StatusOf(const OverlappingReads::Request& request) const {
    if (request.error == 0) return IOStatus::OK();
    return IOStatus::IOError("could not read " + std::to_string(request.size) + " bytes at " +
                                 std::to_string(request.offset) + " of '" + name_ + "'",
                             std::generic_category().message(request.error));
  }

  const std::string name_;
  const std::unique_ptr<OverlappingReads> reads_;
};

// A file of rows, which is written once, from beginning to end, without the system's cache.
class TableFile final : public rocksdb::FSWritableFile {
 public:
  TableFile(int fd, const std::string& name) : stream_(fd, name) {}

  using FSWritableFile::Append;
  IOStatus Append(const rocksdb::Slice& bytes, const rocksdb::IOOptions& /*options*/,
                  rocksdb::IODebugContext* /*debug*/) override {
    if (ended_) return error_ = IOStatus::IOError("a file of rows was written behind its end");
    return Keep(stream_.Write(bytes.data(), bytes.size()));
  }
  IOStatus Flush(const rocksdb::IOOptions& /*options*/,
                 rocksdb::IODebugContext* /*debug*/) override {
    return error_;
  }
  IOStatus Sync(const rocksdb::IOOptions& /*options*/,
                rocksdb::IODebugContext* /*debug*/) override {
    return End();
  }
  IOStatus Close(const rocksdb::IOOptions& /*options*/,
                 rocksdb::IODebugContext* /*debug*/) override {
    return End();
  }
  uint64_t GetFileSize(const rocksdb::IOOptions& /*options*/,
                       rocksdb::IODebugContext* /*debug*/) override {
    return stream_.bytes();
  }

 private:
  IOStatus End() {
    if (ended_ || !error_.ok()) return error_;
    ended_ = true;
    return Keep(stream_.Finish());
  }
  IOStatus Keep(const Status& status) {
    if (status.ok()) return error_;
    const std::string message(status.text());
    // RocksDB recovers by itself only after a full disk.
    const std::string full = std::generic_category().message(ENOSPC);
    error_ = message.find(full) != std::string::npos ? IOStatus::NoSpace(message)
                                                     : IOStatus::IOError(message);
    return error_;
  }

  FileStream stream_;
  IOStatus error_;
  bool ended_ = false;
};

bool IsTable(std::string_view name) {
  constexpr std::string_view kEnd = ".sst";
  return name.size() > kEnd.size() && name.substr(name.size() - kEnd.size()) == kEnd;
}

}  // namespace

std::unique_ptr<rocksdb::FSWritableFile> NewTableFile(const std::string& path) {
  const int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) return nullptr;
  return std::make_unique<TableFile>(fd, path);
}

std::unique_ptr<rocksdb::FSRandomAccessFile> OpenFile(const std::string& path) {
  auto reads = OverlappingReads::Open(path);
  if (reads == nullptr) return nullptr;
  return std::make_unique<File>(path, std::move(reads));
}

IOStatus DatabaseFiles::NewWritableFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSWritableFile>* result,
                                        rocksdb::IODebugContext* debug) {
  auto table = IsTable(name) ? NewTableFile(name) : nullptr;
  // RocksDB's own files say what is wrong with a path.
  if (table == nullptr) return target()->NewWritableFile(name, options, result, debug);
  *result = std::move(table);
  return IOStatus::OK();
}

IOStatus DatabaseFiles::NewRandomAccessFile(const std::string& name,
                                            const rocksdb::FileOptions& options,
                                            std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                            rocksdb::IODebugContext* debug) {
  const bool plain = !options.use_mmap_reads && !options.use_direct_reads;
  auto file = plain ? OpenFile(name) : nullptr;
  // RocksDB's own files say what is wrong with a path.
  if (file == nullptr) return target()->NewRandomAccessFile(name, options, result, debug);
  *result = std::move(file);
  return IOStatus::OK();
}

}  // namespace sok
