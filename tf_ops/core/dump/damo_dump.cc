#include "core/dump/damo_dump.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"
#include "core/dump/dump_format.h"

namespace sok {
namespace {

constexpr uint64_t kRecordHeadBytes = 12;  // key, group
constexpr uint64_t kWindowBytes = 1 << 20;
constexpr int kNoDim = 0;

constexpr uint64_t RecordBytes(int dim) {
  return kRecordHeadBytes + 4 * static_cast<uint64_t>(dim);
}

constexpr uint64_t HeaderBytes(uint64_t groups) { return 4 + groups * 16; }

Status Foreign(const InputFile& file, uint64_t offset, const std::string& expected,
               const std::string& received) {
  return InvalidArgument("Expected a file of Damo-Embedding's dump(), with " + expected +
                         " at byte " + std::to_string(offset) + ". Received: " + received + " in " +
                         file.path() +
                         ". Check the path; a file of checkpoint() or of another byte order cannot "
                         "be read.");
}

Status Damaged(const InputFile& file, uint64_t offset, const std::string& expected,
               const std::string& received) {
  return Status(Code::kDataLoss, "Expected " + expected + " at byte " + std::to_string(offset) +
                                     " of " + file.path() + ". Received: " + received +
                                     ". The dump is damaged or incomplete: copy or dump it again.");
}

Result<std::vector<DamoGroup>> ReadHeader(const InputFile& file) {
  char head[dump::kMagicBytes] = {};
  const uint64_t head_bytes = std::min<uint64_t>(file.bytes(), sizeof(head));
  SOK_RETURN_IF_ERROR(file.ReadAt(0, head, head_bytes));
  if (head_bytes < 4) {
    return Foreign(file, 0, "the number of groups", std::to_string(head_bytes) + " bytes");
  }
  if (std::memcmp(head, dump::kMagic, sizeof(head)) == 0) {
    return InvalidArgument("Expected a file of Damo-Embedding's dump(). Received: " + file.path() +
                           ", which is a sok-embed dump. Read it with load.");
  }
  const auto n = dump::Load<int32_t>(head);
  if (n < 0 || n > dump::kGroups) {
    return Foreign(file, 0, "a number of groups in [0, 256]", std::to_string(n));
  }
  std::string header(HeaderBytes(n), '\0');
  if (file.bytes() < header.size()) {
    return Foreign(file, 0, "a header of " + std::to_string(header.size()) + " bytes",
                   std::to_string(file.bytes()) + " bytes");
  }
  SOK_RETURN_IF_ERROR(file.ReadAt(0, header.data(), header.size()));

  std::vector<DamoGroup> groups;
  for (int i = 0; i < n; ++i) {
    const size_t group_at = 4 + 4 * i, dim_at = group_at + 4 * n, count_at = 4 + 8 * n + 8 * i;
    const auto group = dump::Load<int32_t>(&header[group_at]);
    const auto dim = dump::Load<int32_t>(&header[dim_at]);
    const auto count = dump::Load<int64_t>(&header[count_at]);
    const bool twice = std::any_of(groups.begin(), groups.end(),
                                   [&](const DamoGroup& other) { return other.group == group; });
    if (group < 0 || group >= dump::kGroups || twice) {
      return Foreign(file, group_at, "groups in [0, 256), each once", std::to_string(group));
    }
    if (dim < 1 || dim > dump::kMaxDim) {
      return Foreign(file, dim_at, "a dim in [1, 2^20]", std::to_string(dim));
    }
    if (count < 0) {
      return Foreign(file, count_at, "a number of rows from 0", std::to_string(count));
    }
    groups.push_back({group, dim, static_cast<uint64_t>(count)});
  }
  return groups;
}

}  // namespace

bool LooksLikeDamoDump(const std::string& path) {
  const auto file = InputFile::Open(path);
  if (!file.ok()) return false;
  const auto groups = ReadHeader(*file.value());
  // Four zero bytes are a dump without groups only if nothing follows.
  return groups.ok() && (!groups.value().empty() || file.value()->bytes() == 4);
}

Result<std::unique_ptr<DamoDumpReader>> DamoDumpReader::Open(const std::string& path) {
  SOK_ASSIGN_OR_RETURN(auto file, InputFile::Open(path));
  SOK_ASSIGN_OR_RETURN(auto groups, ReadHeader(*file));
  std::unique_ptr<DamoDumpReader> reader(new DamoDumpReader(std::move(file)));
  reader->groups_ = std::move(groups);
  SOK_RETURN_IF_ERROR(reader->CheckLength());
  return reader;
}

// Counts come from the file, so they are checked before they are multiplied.
Status DamoDumpReader::CheckLength() const {
  const uint64_t start = HeaderBytes(groups_.size());
  uint64_t left = file_->bytes() - start;
  for (const DamoGroup& group : groups_) {
    if (group.rows > left / RecordBytes(group.dim)) {
      return Damaged(*file_, start,
                     std::to_string(group.rows) + " records of group " +
                         std::to_string(group.group) + " with " +
                         std::to_string(RecordBytes(group.dim)) + " bytes each",
                     std::to_string(left) + " bytes for them");
    }
    left -= group.rows * RecordBytes(group.dim);
  }
  if (left == 0) return Status();
  return Damaged(*file_, file_->bytes() - left, "the end of the file",
                 std::to_string(left) + " bytes more");
}

Status DamoDumpReader::Verify(const DumpProgress& progress) const {
  return ForEachPiece([](int, const TableContents&) { return Status(); }, progress);
}

Status DamoDumpReader::ForEachPiece(const PieceFn& fn, const DumpProgress& progress) const {
  std::array<int, dump::kGroups> dims{};  // kNoDim if there is no such group
  std::array<uint64_t, dump::kGroups> rows{};
  uint64_t longest = 0;
  for (const DamoGroup& group : groups_) {
    dims[group.group] = group.dim;
    longest = std::max(longest, RecordBytes(group.dim));
  }
  const uint64_t total = file_->bytes(), window_bytes = std::max(kWindowBytes, longest);
  FileBuffer window;
  if (!window.Reserve(window_bytes)) return OutOfMemory(window_bytes, file_->path());

  uint64_t offset = HeaderBytes(groups_.size());
  uint64_t begin = offset, end = offset;  // bounds of the window in the file
  Key key = 0;
  TableContents piece;
  piece.n = 1;
  piece.rows.keys = &key;
  while (offset < total) {
    // If the window does not have the whole record, it is filled anew from the record's beginning.
    const char* record = nullptr;
    int32_t group = 0;
    for (uint64_t needed = kRecordHeadBytes;;) {
      if (end - offset < needed) {
        SOK_RETURN_IF_ERROR(dump::Report(progress, offset, total, file_->path()));
        begin = offset;
        end = offset + std::min(window_bytes, total - offset);
        if (end - offset < needed) {
          return Damaged(*file_, offset, "a record of " + std::to_string(needed) + " bytes",
                         std::to_string(end - offset) + " bytes");
        }
        SOK_RETURN_IF_ERROR(file_->ReadAt(begin, window.data(), end - begin));
      }
      record = window.data() + (offset - begin);
      group = dump::Load<int32_t>(record + 8);
      if (group < 0 || group >= dump::kGroups || dims[group] == kNoDim) {
        return Damaged(*file_, offset + 8, "a group that the header has", std::to_string(group));
      }
      if (needed == RecordBytes(dims[group])) break;
      needed = RecordBytes(dims[group]);
    }
    ++rows[group];
    key = dump::Load<Key>(record);
    // Headers and records have a multiple of 4 bytes, so the floats are aligned in the window.
    piece.rows.embeddings = reinterpret_cast<const float*>(record + kRecordHeadBytes);
    SOK_RETURN_IF_ERROR(fn(group, piece));
    offset += RecordBytes(dims[group]);
  }
  for (const DamoGroup& group : groups_) {
    if (rows[group.group] != group.rows) {
      return Damaged(*file_, total,
                     std::to_string(group.rows) + " records of group " +
                         std::to_string(group.group) + " up to the end",
                     std::to_string(rows[group.group]));
    }
  }
  return dump::Report(progress, total, total, file_->path());
}

}  // namespace sok
