#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/status_macros.h"
#include "core/dump/dump_file.h"
#include "core/dump/dump_format.h"

namespace sok {
namespace {

std::string OutOfRange(const std::string& what, const std::string& range, uint64_t received) {
  return "Expected " + what + " in " + range +
         ". Received: " + std::to_string(static_cast<int64_t>(received)) + ".";
}

Status CheckGroup(const DumpGroup& g) {
  const std::string of = " of group " + std::to_string(g.group) + " of a dump";
  if (g.group < 0 || g.group >= dump::kGroups) {
    return InvalidArgument(OutOfRange("the number of a group", "[0, 256)", g.group));
  }
  if (g.dim < 1 || g.dim > dump::kMaxDim) {
    return InvalidArgument(OutOfRange("the dim" + of, "[1, 2^20]", g.dim));
  }
  if (g.slot_floats < 0 || g.slot_floats > dump::kMaxSlotFloats) {
    return InvalidArgument(OutOfRange("slot_floats" + of, "[0, 2^23]", g.slot_floats));
  }
  if (g.meta.size() > dump::kMaxMetaBytes) {
    return InvalidArgument(OutOfRange("the bytes of the meta" + of, "[0, 2^20]", g.meta.size()));
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<DumpWriter>> DumpWriter::Open(const std::string& path) {
  SOK_ASSIGN_OR_RETURN(auto file, ReplacementFile::Open(path));
  std::unique_ptr<DumpWriter> writer(new DumpWriter(std::move(file)));

  std::string header(dump::kMagic, dump::kMagicBytes);
  dump::Append(header, dump::kVersion);
  dump::Append(header, static_cast<uint32_t>(dump::kHeaderBytes));
  dump::Append(header, Checksum(header.data(), header.size(), 0));
  SOK_RETURN_IF_ERROR(writer->file_->Write(header.data(), header.size()));
  return writer;
}

Status DumpWriter::Keep(Status status) {
  if (!status.ok()) {
    error_ = status;
    file_->Discard();
  }
  return status;
}

Status DumpWriter::BeginGroup(const DumpGroup& group) {
  if (!error_.ok()) return error_;
  if (Status status = CheckGroup(group); !status.ok()) return Keep(std::move(status));
  if (!groups_.empty() && group.group <= groups_.back().group) {
    return Keep(InvalidArgument("Expected groups in ascending order, each once. Received: group " +
                                std::to_string(group.group) + " after group " +
                                std::to_string(groups_.back().group) + "."));
  }
  if (Status status = WriteBlock(); !status.ok()) return Keep(std::move(status));
  groups_.push_back(group);
  groups_.back().rows = 0;
  rows_per_block_ = 0;
  return Status();
}

// The memory of the block is allocated at the first row.
Status DumpWriter::StartBlocks() {
  if (groups_.empty()) {
    return Status(Code::kFailedPrecondition,
                  "Expected BeginGroup before the first row of a dump. Received: AddRows.");
  }
  const DumpGroup& group = groups_.back();
  const uint64_t row_bytes = dump::RowBytes(group.dim, group.slot_floats);
  const uint64_t rows = dump::RowsPerBlock(row_bytes);
  const uint64_t bytes = dump::kBlockFrameBytes + rows * row_bytes;
  if (!block_.Reserve(bytes)) return OutOfMemory(bytes, file_->path());
  rows_per_block_ = rows;
  row_floats_ = static_cast<size_t>(group.dim) + static_cast<size_t>(group.slot_floats);
  return Status();
}

Status DumpWriter::CheckWidths(int dim, int slot_floats) const {
  if (!groups_.empty() && groups_.back().dim == dim && groups_.back().slot_floats == slot_floats) {
    return Status();
  }
  const std::string expected =
      groups_.empty() ? "a group that was begun"
                      : "rows of " + std::to_string(groups_.back().dim) + " and slots of " +
                            std::to_string(groups_.back().slot_floats) + " numbers";
  return InvalidArgument("expected " + expected + " for a dump, got rows of " +
                         std::to_string(dim) + " and slots of " + std::to_string(slot_floats));
}

Status DumpWriter::AddRows(const TableContents& piece) {
  if (!error_.ok()) return error_;
  if (rows_per_block_ == 0) {
    if (Status status = StartBlocks(); !status.ok()) return Keep(std::move(status));
  }
  for (size_t row = 0; row < piece.n; ++row) {
    PutRow(piece, row);
    if (block_rows_ < rows_per_block_) continue;
    if (Status status = WriteBlock(); !status.ok()) return Keep(std::move(status));
  }
  return Status();
}

void DumpWriter::PutRow(const TableContents& piece, size_t row) {
  const DumpGroup& group = groups_.back();
  const RowColumns& rows = piece.rows;
  char* column = block_.data() + dump::kBlockHeadBytes;
  dump::Store(column + block_rows_ * sizeof(Key), rows.keys[row]);
  column += rows_per_block_ * sizeof(Key);
  for (const int64_t* counts : {rows.update_nums, rows.update_times}) {
    dump::Store(column + block_rows_ * sizeof(uint32_t), static_cast<uint32_t>(counts[row]));
    column += rows_per_block_ * sizeof(uint32_t);
  }
  float* floats = reinterpret_cast<float*>(column) + block_rows_ * row_floats_;
  std::copy_n(rows.embeddings + row * group.dim, group.dim, floats);
  std::copy_n(rows.slots + row * group.slot_floats, group.slot_floats, floats + group.dim);
  ++groups_.back().rows;
  ++block_rows_;
}

Status DumpWriter::WriteBlock() {
  if (block_rows_ == 0) return Status();
  char* payload = block_.data() + dump::kBlockHeadBytes;
  // If the block is not full, its columns are moved together.
  size_t to = 0, from = 0;
  for (size_t width :
       {sizeof(Key), sizeof(uint32_t), sizeof(uint32_t), row_floats_ * sizeof(float)}) {
    std::memmove(payload + to, payload + from, block_rows_ * width);
    to += block_rows_ * width;
    from += rows_per_block_ * width;
  }
  dump::Store(block_.data(), static_cast<uint32_t>(groups_.back().group));
  dump::Store(block_.data() + 4, static_cast<uint32_t>(block_rows_));
  dump::Store(block_.data() + 8, static_cast<uint64_t>(to));
  const size_t bytes = dump::kBlockHeadBytes + to;
  dump::Store(payload + to, Checksum(block_.data(), bytes, file_->bytes()));
  block_rows_ = 0;
  return file_->Write(block_.data(), bytes + dump::kChecksumBytes);
}

Status DumpWriter::WriteIndex() {
  const uint64_t offset = file_->bytes();
  uint64_t rows = 0;
  std::string index;
  dump::Append(index, static_cast<uint32_t>(groups_.size()));
  for (const DumpGroup& group : groups_) {
    dump::Append(index, static_cast<uint32_t>(group.group));
    dump::Append(index, static_cast<uint32_t>(group.dim));
    dump::Append(index, static_cast<uint32_t>(group.slot_floats));
    dump::Append(index, static_cast<uint32_t>(group.meta.size()));
    dump::Append(index, group.rows);
    index += group.meta;
    rows += group.rows;
  }
  const uint64_t file_bytes = offset + index.size() + dump::kFooterBytes;
  dump::Append(index, offset);
  dump::Append(index, file_bytes);
  dump::Append(index, rows);
  dump::Append(index, Checksum(index.data(), index.size(), offset));
  index.append(dump::kEndMagic, dump::kMagicBytes);
  return file_->Write(index.data(), index.size());
}

Status DumpWriter::Finish() {
  if (!error_.ok()) return error_;
  Status status = WriteBlock();
  if (status.ok()) status = WriteIndex();
  if (status.ok()) status = file_->Commit();
  if (!status.ok()) return Keep(std::move(status));
  error_ = Status(Code::kFailedPrecondition,
                  "The dump " + file_->path() + " is finished. Open a new one to write more.");
  return Status();
}

}  // namespace sok
