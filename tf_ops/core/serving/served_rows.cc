#include "core/serving/served_rows.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

Status Damaged(const std::string& path, const std::string& what) {
  return Status(
      Code::kDataLoss,
      what + " " + path +
          " is not a file of rows of sok-embed, or it is damaged or incomplete: check the "
          "path, or export or copy the file again.");
}

// Returns the number that these bytes stand for, in the byte order of the file and the machine.
uint64_t NumberAt(const char* bytes) {
  uint64_t number;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

// Keeps the first error of several threads.
class FirstError {
 public:
  void Note(Status status) {
    std::lock_guard<std::mutex> guard(mu_);
    if (status_.ok()) status_ = std::move(status);
    failed_.store(true, std::memory_order_relaxed);
  }
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  Status Take() { return std::move(status_); }

 private:
  std::mutex mu_;
  std::atomic<bool> failed_{false};
  Status status_;
};

}  // namespace

Result<std::shared_ptr<const ServedRows>> ServedRows::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(errno, "open", path);
  struct stat found;
  Mapping mapping;
  Status status;
  if (fstat(fd, &found) != 0) {
    status = SystemError(errno, "look at", path);
  } else if (!S_ISREG(found.st_mode)) {
    status = InvalidArgument("Expected a file of rows. Received: " + path +
                             ", which is a folder, a device, a pipe or a socket.");
  } else if (found.st_size < 8) {
    status = Damaged(path, "Expected a file of rows. Received: a file of " +
                               std::to_string(found.st_size) + " bytes.");
  } else {
    mapping.size = static_cast<uint64_t>(found.st_size);
    void* const mapped = mmap(nullptr, mapping.size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
      status = SystemError(errno, "map", path);
    } else {
      mapping.bytes = static_cast<const char*>(mapped);
    }
  }
  close(fd);
  SOK_RETURN_IF_ERROR(status);
  std::shared_ptr<ServedRows> rows(new ServedRows(path, mapping));
  SOK_RETURN_IF_ERROR(rows->ReadHeader());
  return std::shared_ptr<const ServedRows>(std::move(rows));
}

ServedRows::ServedRows(std::string path, Mapping mapping)
    : path_(std::move(path)), bytes_at_(mapping.bytes), bytes_(mapping.size) {}

ServedRows::~ServedRows() { munmap(const_cast<char*>(bytes_at_), bytes_); }

Status ServedRows::ReadHeader() {
  const uint64_t length = NumberAt(bytes_at_);
  if (length > std::min(kMostHeaderBytes, bytes_) || length + 8 > bytes_ ||
      (length + 8) % kServingPage != 0) {
    return Damaged(path_, "Expected a header that ends at a multiple of " +
                              std::to_string(kServingPage) + ", within the file's " +
                              std::to_string(bytes_) + " bytes. Received: one of " +
                              std::to_string(length) + " bytes.");
  }
  header_text_.assign(bytes_at_ + 8, length);
  data_ = bytes_at_ + 8 + length;
  auto header = ParseServingHeader(header_text_, bytes_ - 8 - length);
  if (!header.ok()) return header.status().Within(path_ + ": ");
  header_ = std::move(header.value());
  layout_.emplace(header_.type, header_.dim, header_.rows, header_.bucket_bits);
  const uint64_t noted = NumberAt(column(ServingLayout::kChecksums));
  const uint64_t found = Checksum(bytes_at_, 8 + length, 0);
  if (found != noted) {
    return Damaged(path_, "Expected a header with the checksum " + std::to_string(noted) +
                              ", as the file says. Received: one with " + std::to_string(found) +
                              ".");
  }
  if (header_.missing.has_value()) {
    const MissingRows& start = *header_.missing;
    auto made = Initializer::Make(start.kind, start.a, start.b, start.seed, start.group);
    if (!made.ok()) return made.status().Within(path_ + ": ");
    missing_ = std::move(made.value());
  }
  row_bytes_ = ServedRowBytes(header_.type, header_.dim);
  keys_ = reinterpret_cast<const Key*>(column(ServingLayout::kKeys));
  offsets_ = reinterpret_cast<const uint32_t*>(column(ServingLayout::kOffsets));
  scale_bias_ = column(ServingLayout::kScaleBias);
  rows_ = column(ServingLayout::kRows);
  const uint64_t last = uint64_t{1} << header_.bucket_bits;
  return offsets_[0] == 0 && offsets_[last] == header_.rows ? Status() : WrongOffsets();
}

Status ServedRows::WrongOffsets() const {
  const uint64_t last = uint64_t{1} << header_.bucket_bits;
  uint64_t bucket = 0;
  while (bucket < last && offsets_[bucket] >= (bucket == 0 ? 0 : offsets_[bucket - 1]) &&
         offsets_[bucket] <= (bucket == 0 ? 0 : header_.rows)) {
    ++bucket;
  }
  return Damaged(
      path_, "Expected offsets of buckets that ascend from 0 to " + std::to_string(header_.rows) +
                 ". Received: " + std::to_string(offsets_[bucket]) + " as offset " +
                 std::to_string(bucket) + " of " + std::to_string(last) +
                 (bucket == 0 ? "." : ", after " + std::to_string(offsets_[bucket - 1]) + "."));
}

Status ServedRows::VerifyColumn(ServingLayout::Index index, const ParallelFor& parallel_for) const {
  const ServingColumn& of = (*layout_)[index];
  const char* const sums = column(ServingLayout::kChecksums) + 8 * layout_->FirstChecksum(index);
  const auto file_offset = static_cast<uint64_t>(column(index) - bytes_at_);
  FirstError error;
  parallel_for(static_cast<int64_t>(of.blocks()), 100000, [&](int64_t begin, int64_t end) {
    for (auto block = static_cast<uint64_t>(begin); block < static_cast<uint64_t>(end); ++block) {
      const uint64_t at = block * kServingBlock;
      const uint64_t size = std::min(kServingBlock, of.bytes - at);
      if (error.failed()) return;
      const uint64_t noted = NumberAt(sums + 8 * block);
      const uint64_t found = Checksum(column(index) + at, size, file_offset + at);
      if (found == noted) continue;
      error.Note(Damaged(path_, "Expected the checksum " + std::to_string(noted) + " of the " +
                                    std::to_string(size) + " bytes at byte " +
                                    std::to_string(file_offset + at) + ", of '" + of.name +
                                    "'. Received: bytes with " + std::to_string(found) + "."));
    }
  });
  return error.Take();
}

Status ServedRows::VerifyKeys(const ParallelFor& parallel_for) const {
  FirstError error;
  parallel_for(int64_t{1} << header_.bucket_bits, 50, [&](int64_t begin, int64_t end) {
    for (int64_t bucket = begin; bucket < end && !error.failed(); ++bucket) {
      const uint32_t first = offsets_[bucket], last = offsets_[bucket + 1];
      if (first > last || last > header_.rows) return error.Note(WrongOffsets());
      for (uint32_t i = first; i < last; ++i) {
        const uint64_t hash = Mix64(keys_[i]);
        const bool in_bucket = BucketOf(hash, header_.bucket_bits) == static_cast<uint64_t>(bucket);
        if (in_bucket && (i == first || Mix64(keys_[i - 1]) < hash)) continue;
        return error.Note(Damaged(path_,
                                  "Expected keys in the order of their hashes, each in its "
                                  "bucket. Received: key " +
                                      ShownKey(keys_[i]) + " in row " + std::to_string(i) + "."));
      }
    }
  });
  return error.Take();
}

Status ServedRows::Verify(const ParallelFor& parallel_for) const {
  for (const auto index : {ServingLayout::kKeys, ServingLayout::kOffsets, ServingLayout::kScaleBias,
                           ServingLayout::kRows}) {
    SOK_RETURN_IF_ERROR(VerifyColumn(index, parallel_for));
  }
  const char* const padding = column(ServingLayout::kPadding);
  const char* const end = column(ServingLayout::kRows);
  const char* const wrong = std::find_if(padding, end, [](char byte) { return byte != 0; });
  if (wrong != end) {
    return Damaged(path_, "Expected zeros as padding. Received: " +
                              std::to_string(static_cast<unsigned char>(*wrong)) + " at byte " +
                              std::to_string(wrong - bytes_at_) + ".");
  }
  return VerifyKeys(parallel_for);
}

}  // namespace sok
