#include "core/serving/served_rows_writer.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/initializer.h"
#include "core/base/status_macros.h"
#include "core/serving/served_values.h"

namespace sok {
namespace {

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// Writes one column from its beginning to its end, and keeps the checksums of its blocks.
class ColumnWriter {
 public:
  // `begin` is the column's place in the file.
  ColumnWriter(ReplacementFile* file, uint64_t begin) : file_(file), at_(begin) {
    block_.reserve(kServingBlock);
  }

  Status Put(const void* bytes, size_t size) {
    const char* from = static_cast<const char*>(bytes);
    while (size > 0) {
      const size_t part = std::min<size_t>(size, kServingBlock - block_.size());
      block_.insert(block_.end(), from, from + part);
      from += part;
      size -= part;
      if (block_.size() == kServingBlock) SOK_RETURN_IF_ERROR(Flush());
    }
    return Status();
  }

  // Writes the rest; only at the end, and only once.
  Status Flush() {
    if (block_.empty()) return Status();
    sums_.push_back(Checksum(block_.data(), block_.size(), at_));
    SOK_RETURN_IF_ERROR(file_->WriteAt(at_, block_.data(), block_.size()));
    at_ += block_.size();
    block_.clear();
    return Status();
  }

  const std::vector<uint64_t>& sums() const { return sums_; }

 private:
  ReplacementFile* const file_;
  uint64_t at_;
  std::vector<char> block_;
  std::vector<uint64_t> sums_;
};

}  // namespace

Result<std::unique_ptr<ServedRowsWriter>> ServedRowsWriter::Open(const std::string& path,
                                                                 ServingHeader header,
                                                                 size_t memory) {
  if (header.dim < 1 || header.dim > ServingHeader::kMostDim) {
    return InvalidArgument("Expected the dim of rows in [1, " +
                           std::to_string(ServingHeader::kMostDim) +
                           "]. Received: " + std::to_string(header.dim) + ".");
  }
  if (header.missing.has_value()) {
    const MissingRows& start = *header.missing;
    SOK_RETURN_IF_ERROR(
        Initializer::Make(start.kind, start.a, start.b, start.seed, start.group).status());
  }
  const ServingLayout none(header.type, header.dim, 0, 0);
  SOK_RETURN_IF_ERROR(ServingHeaderBytes(header, none).status());
  SOK_ASSIGN_OR_RETURN(auto file, ReplacementFile::Open(path));
  return std::unique_ptr<ServedRowsWriter>(
      new ServedRowsWriter(std::move(file), std::move(header), memory));
}

ServedRowsWriter::ServedRowsWriter(std::unique_ptr<ReplacementFile> file, ServingHeader header,
                                   size_t memory)
    : file_(std::move(file)),
      header_(std::move(header)),
      row_bytes_(ServedRowBytes(header_.type, header_.dim)),
      sorter_(sizeof(Key) + sizeof(ScaleBias) + row_bytes_, memory, FolderOf(file_->path())) {}

// A record is the key, scale and bias, and the row.
Status ServedRowsWriter::Add(const Key* keys, const float* rows, size_t n,
                             const ParallelFor& parallel_for) {
  SOK_RETURN_IF_ERROR(error_);
  const auto fail = [&](Status status) {
    file_->Discard();
    return error_ = std::move(status);
  };
  if (n > ServingHeader::kMostRows - sorter_.size()) {
    return fail(InvalidArgument("Expected at most " + std::to_string(ServingHeader::kMostRows) +
                                " rows in a file. Received: more. Divide the table by its keys."));
  }
  const size_t record = sizeof(Key) + sizeof(ScaleBias) + row_bytes_;
  const auto dim = static_cast<size_t>(header_.dim);
  for (size_t done = 0; done < n;) {
    size_t count = n - done;
    auto room = sorter_.Room(&count);
    if (!room.ok()) return fail(room.status());
    std::mutex mu;
    size_t failed_at = n;
    Status failure;
    parallel_for(static_cast<int64_t>(count), 5 + header_.dim, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        char* const to = room.value() + i * record;
        const Key key = keys[done + i];
        ScaleBias scale_bias{};
        Status status = EncodeServedRow(header_.type, key, rows + (done + i) * dim, header_.dim,
                                        to + sizeof(Key) + sizeof(ScaleBias), &scale_bias);
        std::memcpy(to, &key, sizeof(key));
        std::memcpy(to + sizeof(key), &scale_bias, sizeof(scale_bias));
        if (status.ok()) continue;
        std::lock_guard<std::mutex> guard(mu);
        if (i < failed_at) failed_at = i, failure = std::move(status);
        return;
      }
    });
    if (!failure.ok()) return fail(std::move(failure));
    sorter_.Added(count);
    done += count;
  }
  return Status();
}

Status ServedRowsWriter::Finish() {
  SOK_RETURN_IF_ERROR(error_);
  error_ = Status(Code::kFailedPrecondition,
                  "The file " + file_->path() + " is finished. Open a new one to write more.");
  header_.rows = sorter_.size();
  header_.bucket_bits = BucketBits(header_.rows);
  const ServingLayout layout(header_.type, header_.dim, header_.rows, header_.bucket_bits);
  auto head = ServingHeaderBytes(header_, layout);
  Status status = head.ok() ? WriteColumns(layout, head.value()) : head.status();
  if (status.ok()) status = file_->Commit();
  if (!status.ok()) file_->Discard();
  return status;
}

Status ServedRowsWriter::WriteColumns(const ServingLayout& layout, const std::string& head) {
  const auto writer_of = [&](ServingLayout::Index index) {
    return ColumnWriter(file_.get(), head.size() + layout[index].begin);
  };
  ColumnWriter keys = writer_of(ServingLayout::kKeys);
  ColumnWriter offsets = writer_of(ServingLayout::kOffsets);
  ColumnWriter scales = writer_of(ServingLayout::kScaleBias);
  ColumnWriter rows = writer_of(ServingLayout::kRows);
  uint64_t buckets = 0;  // buckets with a written offset
  uint32_t number = 0;
  const auto begin_buckets = [&](uint64_t end) {
    for (; buckets < end; ++buckets) SOK_RETURN_IF_ERROR(offsets.Put(&number, sizeof(number)));
    return Status();
  };
  SOK_RETURN_IF_ERROR(sorter_.Drain([&](uint64_t hash, const char* record) {
    SOK_RETURN_IF_ERROR(begin_buckets(BucketOf(hash, header_.bucket_bits) + 1));
    SOK_RETURN_IF_ERROR(keys.Put(record, sizeof(Key)));
    if (HasScale(header_.type)) {
      SOK_RETURN_IF_ERROR(scales.Put(record + sizeof(Key), sizeof(ScaleBias)));
    }
    ++number;
    return rows.Put(record + sizeof(Key) + sizeof(ScaleBias), row_bytes_);
  }));
  SOK_RETURN_IF_ERROR(begin_buckets((uint64_t{1} << header_.bucket_bits) + 1));
  std::vector<uint64_t> sums = {Checksum(head.data(), head.size(), 0)};
  for (ColumnWriter* column : {&keys, &offsets, &scales, &rows}) {
    SOK_RETURN_IF_ERROR(column->Flush());
    sums.insert(sums.end(), column->sums().begin(), column->sums().end());
  }
  SOK_RETURN_IF_ERROR(file_->WriteAt(0, head.data(), head.size()));
  const std::string padding(layout[ServingLayout::kPadding].bytes, '\0');
  SOK_RETURN_IF_ERROR(file_->WriteAt(head.size() + layout[ServingLayout::kPadding].begin,
                                     padding.data(), padding.size()));
  return file_->WriteAt(head.size() + layout[ServingLayout::kChecksums].begin, sums.data(),
                        sums.size() * sizeof(sums[0]));
}

}  // namespace sok
