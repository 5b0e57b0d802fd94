#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/status_macros.h"
#include "core/dump/damo_dump.h"
#include "core/dump/dump_file.h"
#include "core/dump/dump_format.h"

namespace sok {
namespace {

Status Damaged(const std::string& path, uint64_t offset, const std::string& expected,
               const std::string& received) {
  return Status(Code::kDataLoss, "Expected " + expected + " at byte " + std::to_string(offset) +
                                     " of " + path + ". Received: " + received +
                                     ". The dump is damaged or incomplete: copy or dump it again.");
}

// Takes the bytes at an offset, followed in memory by their checksum.
Status CompareChecksum(const std::string& path, uint64_t offset, const char* bytes, size_t size) {
  if (dump::Load<uint64_t>(bytes + size) == Checksum(bytes, size, offset)) return Status();
  return Damaged(path, offset, std::to_string(size) + " bytes that agree with their checksum",
                 "others");
}

// Returns the rows of the block that begins with a row of a group.
uint64_t RowsOfBlock(const DumpGroup& group, uint64_t begin) {
  return std::min(group.rows - begin,
                  dump::RowsPerBlock(dump::RowBytes(group.dim, group.slot_floats)));
}

// Returns the bytes of the blocks of the first rows of a group.
uint64_t BlockBytes(const DumpGroup& group, uint64_t rows) {
  const uint64_t row_bytes = dump::RowBytes(group.dim, group.slot_floats);
  const uint64_t per_block = dump::RowsPerBlock(row_bytes);
  const uint64_t blocks = rows / per_block + (rows % per_block != 0);
  return rows * row_bytes + blocks * dump::kBlockFrameBytes;
}

Status Foreign(const InputFile& file) {
  const std::string sentence =
      "Expected a sok-embed dump, which starts with 'SOKDUMP'. Received: " + file.path() +
      ", which is not a sok-embed dump";
  if (file.bytes() == 0) return InvalidArgument(sentence + " but an empty file.");
  if (LooksLikeDamoDump(file.path())) {
    return InvalidArgument(sentence +
                           " but looks like one of Damo-Embedding. Read it with load_damo.");
  }
  return InvalidArgument(sentence + ". Check the path.");
}

}  // namespace

Result<std::unique_ptr<DumpReader>> DumpReader::Open(const std::string& path) {
  SOK_ASSIGN_OR_RETURN(auto file, InputFile::Open(path));
  std::unique_ptr<DumpReader> reader(new DumpReader(std::move(file)));
  SOK_RETURN_IF_ERROR(reader->ReadHeader());
  SOK_RETURN_IF_ERROR(reader->ReadIndex());
  return reader;
}

Status DumpReader::ReadHeader() const {
  char header[dump::kHeaderBytes] = {};
  const uint64_t bytes = std::min<uint64_t>(file_->bytes(), sizeof(header));
  SOK_RETURN_IF_ERROR(file_->ReadAt(0, header, bytes));
  if (std::memcmp(header, dump::kMagic, dump::kMagicBytes) != 0) return Foreign(*file_);
  if (bytes < sizeof(header)) {
    return Damaged(file_->path(), 0, "a header of 24 bytes", std::to_string(bytes) + " bytes");
  }
  const auto version = dump::Load<uint32_t>(header + 8);
  if (version > dump::kVersion) {
    return InvalidArgument("Expected a dump of version " + std::to_string(dump::kVersion) +
                           ", the newest that this sok-embed knows. Received: version " +
                           std::to_string(version) + " at byte 8 of " + file_->path() +
                           ". Load it with the sok-embed that wrote it, or a newer one.");
  }
  SOK_RETURN_IF_ERROR(CompareChecksum(file_->path(), 0, header, 16));
  const auto header_bytes = dump::Load<uint32_t>(header + 12);
  if (version == dump::kVersion && header_bytes == dump::kHeaderBytes) return Status();
  return Damaged(file_->path(), 8, "version 1 with a header of 24 bytes",
                 "version " + std::to_string(version) + " with " + std::to_string(header_bytes));
}

Status DumpReader::ReadIndex() {
  const std::string& path = file_->path();
  const uint64_t bytes = file_->bytes();
  if (bytes < dump::kHeaderBytes + sizeof(uint32_t) + dump::kFooterBytes) {
    return Damaged(path, dump::kHeaderBytes, "an index and a footer",
                   std::to_string(bytes - dump::kHeaderBytes) + " bytes");
  }
  const uint64_t footer_offset = bytes - dump::kFooterBytes;
  char footer[dump::kFooterBytes];
  SOK_RETURN_IF_ERROR(file_->ReadAt(footer_offset, footer, sizeof(footer)));
  if (std::memcmp(footer + 32, dump::kEndMagic, dump::kMagicBytes) != 0) {
    return Damaged(path, footer_offset + 32, "the end mark 'SOKDEND'",
                   "something else; the file was cut or has grown");
  }
  if (const auto told = dump::Load<uint64_t>(footer + 8); told != bytes) {
    return Damaged(path, footer_offset + 8, "the length of the file, " + std::to_string(bytes),
                   std::to_string(told));
  }
  const auto offset = dump::Load<uint64_t>(footer);
  constexpr uint64_t kMaxIndexBytes =
      sizeof(uint32_t) + dump::kGroups * (dump::kIndexEntryBytes + dump::kMaxMetaBytes);
  if (offset < dump::kHeaderBytes || offset > footer_offset ||
      footer_offset - offset > kMaxIndexBytes) {
    return Damaged(path, footer_offset, "the offset of the index", std::to_string(offset));
  }
  FileBuffer index;
  if (!index.Reserve(bytes - offset)) return OutOfMemory(bytes - offset, path);
  SOK_RETURN_IF_ERROR(file_->ReadAt(offset, index.data(), bytes - offset));
  SOK_RETURN_IF_ERROR(CompareChecksum(path, offset, index.data(), footer_offset + 24 - offset));
  SOK_RETURN_IF_ERROR(ParseIndex(index.data(), footer_offset - offset, offset));
  if (const auto told = dump::Load<uint64_t>(footer + 16); told != rows()) {
    return Damaged(path, footer_offset + 16, "the rows of all groups, " + std::to_string(rows()),
                   std::to_string(told));
  }
  return CheckLengths(offset);
}

Status DumpReader::ParseIndex(const char* index, uint64_t bytes, uint64_t offset) {
  const auto damaged = [&](uint64_t at, const std::string& expected) {
    return Damaged(file_->path(), offset + at, expected, "something else");
  };
  if (bytes < sizeof(uint32_t)) return damaged(0, "the number of groups");
  const auto count = dump::Load<uint32_t>(index);
  if (count > dump::kGroups) return damaged(0, "a number of groups in [0, 256]");
  uint64_t at = sizeof(uint32_t);
  for (uint32_t i = 0; i < count; ++i) {
    if (bytes - at < dump::kIndexEntryBytes) return damaged(at, "an index entry of 24 bytes");
    const auto group = dump::Load<uint32_t>(index + at);
    const auto dim = dump::Load<uint32_t>(index + at + 4);
    const auto slot_floats = dump::Load<uint32_t>(index + at + 8);
    const auto meta_bytes = dump::Load<uint32_t>(index + at + 12);
    const auto rows = dump::Load<uint64_t>(index + at + 16);
    if (group >= dump::kGroups || (i > 0 && static_cast<int>(group) <= groups_.back().group)) {
      return damaged(at, "ascending groups in [0, 256)");
    }
    if (dim < 1 || dim > dump::kMaxDim) return damaged(at + 4, "a dim in [1, 2^20]");
    if (slot_floats > dump::kMaxSlotFloats) return damaged(at + 8, "slot_floats in [0, 2^23]");
    at += dump::kIndexEntryBytes;
    if (meta_bytes > dump::kMaxMetaBytes || meta_bytes > bytes - at) {
      return damaged(at - 12, "a meta of at most 2^20 bytes within the index");
    }
    groups_.push_back({static_cast<int>(group), static_cast<int>(dim),
                       std::string(index + at, meta_bytes), static_cast<int>(slot_floats), rows});
    at += meta_bytes;
  }
  return at == bytes ? Status() : damaged(at, "the footer after the last group");
}

// The blocks of all groups must fill the space between header and index. Sizes come from the file,
// so they are checked before they are multiplied.
Status DumpReader::CheckLengths(uint64_t index_offset) const {
  uint64_t left = index_offset - dump::kHeaderBytes;
  for (const DumpGroup& group : groups_) {
    if (group.rows > left / dump::RowBytes(group.dim, group.slot_floats) ||
        BlockBytes(group, group.rows) > left) {
      return Damaged(file_->path(), index_offset - left,
                     std::to_string(group.rows) + " rows of group " + std::to_string(group.group),
                     std::to_string(left) + " bytes, which are too few");
    }
    left -= BlockBytes(group, group.rows);
  }
  if (left == 0) return Status();
  return Damaged(file_->path(), index_offset - left, "the index after the last row",
                 std::to_string(left) + " bytes more");
}

uint64_t DumpReader::rows() const {
  uint64_t rows = 0;
  for (const DumpGroup& group : groups_) rows += group.rows;
  return rows;
}

// A block: its bytes in the file, and its columns as TableContents.
struct DumpReader::Block {
  // Copies the columns from a payload of n rows. Throws std::bad_alloc.
  void Spread(const DumpGroup& group, const char* payload, size_t n) {
    const size_t dim = group.dim, slot_floats = group.slot_floats;
    const auto* nums = reinterpret_cast<const uint32_t*>(payload + n * sizeof(Key));
    const auto* times = nums + n;
    const auto* floats = reinterpret_cast<const float*>(times + n);
    update_nums.assign(nums, nums + n);
    update_times.assign(times, times + n);
    piece.n = n;
    piece.slot_floats = group.slot_floats;
    piece.rows = {reinterpret_cast<const Key*>(payload), floats, nullptr, update_nums.data(),
                  update_times.data()};
    if (slot_floats == 0) return;
    embeddings.resize(n * dim);
    slots.resize(n * slot_floats);
    for (size_t row = 0; row < n; ++row, floats += dim + slot_floats) {
      std::copy_n(floats, dim, embeddings.data() + row * dim);
      std::copy_n(floats + dim, slot_floats, slots.data() + row * slot_floats);
    }
    piece.rows.embeddings = embeddings.data();
    piece.rows.slots = slots.data();
  }

  FileBuffer bytes;
  std::vector<int64_t> update_nums, update_times;
  std::vector<float> embeddings, slots;
  TableContents piece;
};

Status DumpReader::ReadBlock(const DumpGroup& group, uint64_t offset, uint64_t rows,
                             Block* block) const {
  const uint64_t payload = rows * dump::RowBytes(group.dim, group.slot_floats);
  const uint64_t bytes = payload + dump::kBlockFrameBytes;
  if (!block->bytes.Reserve(bytes)) return OutOfMemory(bytes, file_->path());
  char* const data = block->bytes.data();
  SOK_RETURN_IF_ERROR(file_->ReadAt(offset, data, bytes));
  SOK_RETURN_IF_ERROR(
      CompareChecksum(file_->path(), offset, data, dump::kBlockHeadBytes + payload));
  const auto told_group = dump::Load<uint32_t>(data);
  const auto told_rows = dump::Load<uint32_t>(data + 4);
  const auto told_payload = dump::Load<uint64_t>(data + 8);
  if (told_group != static_cast<uint32_t>(group.group) || told_rows != rows ||
      told_payload != payload) {
    return Damaged(
        file_->path(), offset,
        "a block of " + std::to_string(rows) + " rows of group " + std::to_string(group.group),
        std::to_string(told_rows) + " rows of group " + std::to_string(told_group));
  }
  return OrNoMemory([&] {
    block->Spread(group, data + dump::kBlockHeadBytes, rows);
    return Status();
  });
}

Status DumpReader::Verify(const DumpProgress& progress) const {
  return ForEachPiece([](int, const TableContents&) { return Status(); }, progress);
}

Status DumpReader::ForEachPiece(const PieceFn& fn, const DumpProgress& progress) const {
  Block block;
  uint64_t offset = dump::kHeaderBytes;
  for (const DumpGroup& group : groups_) {
    for (uint64_t begin = 0; begin < group.rows; begin += block.piece.n) {
      const uint64_t rows = RowsOfBlock(group, begin);
      SOK_RETURN_IF_ERROR(ReadBlock(group, offset, rows, &block));
      SOK_RETURN_IF_ERROR(fn(group.group, block.piece));
      offset += BlockBytes(group, rows);
      SOK_RETURN_IF_ERROR(dump::Report(progress, offset, file_->bytes(), file_->path()));
    }
  }
  return dump::Report(progress, file_->bytes(), file_->bytes(), file_->path());
}

Status DumpReader::ReadPiece(size_t index, uint64_t begin, const PieceFn& fn) const {
  const DumpGroup& group = groups_.at(index);
  uint64_t offset = dump::kHeaderBytes + BlockBytes(group, begin);
  for (size_t i = 0; i < index; ++i) offset += BlockBytes(groups_[i], groups_[i].rows);
  Block block;
  SOK_RETURN_IF_ERROR(ReadBlock(group, offset, RowsOfBlock(group, begin), &block));
  return fn(group.group, block.piece);
}

}  // namespace sok
