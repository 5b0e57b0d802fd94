#include "core/disk/rocksdb/database_files.h"

#include <fcntl.h>

#include <system_error>
#include <utility>
#include <vector>

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

  IOStatus Prefetch(uint64_t offset, size_t n, const rocksdb::IOOptions& /*options*/,
                    rocksdb::IODebugContext* /*debug*/) override {
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

}  // namespace

IOStatus DatabaseFiles::NewRandomAccessFile(const std::string& name,
                                            const rocksdb::FileOptions& options,
                                            std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                            rocksdb::IODebugContext* debug) {
  const bool plain = !options.use_mmap_reads && !options.use_direct_reads;
  auto reads = plain ? OverlappingReads::Open(name) : nullptr;
  // RocksDB's own files say what is wrong with a path.
  if (reads == nullptr) return target()->NewRandomAccessFile(name, options, result, debug);
  *result = std::make_unique<File>(name, std::move(reads));
  return IOStatus::OK();
}

}  // namespace sok
