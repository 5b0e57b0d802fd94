#include "core/dump/rows_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"
#include "core/dump/dump_format.h"

namespace sok {
namespace {

using dump::Append;
using dump::Store;

constexpr char kMagic[] = "SOKROWS\n", kEndMagic[] = "SOKREND\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 40;
constexpr size_t kHeadBytes = 24;  // of a block
constexpr size_t kChecksumBytes = 8;
constexpr uint64_t kPieceBytes = 1 << 20;
constexpr size_t kAlignedRows = 16;

// Writes a block of rows that Next or NextKept of a capture copies. Returns whether there may be
// more rows.
Result<bool> PutSome(const NumberedCapture& each,
                     Result<size_t> (RowCapture::*next)(const CapturedColumns&, size_t),
                     RowsFileWriter* writer, uint64_t* written) {
  SOK_ASSIGN_OR_RETURN(const auto room,
                       writer->MakeRoom(each.capture->dim, each.capture->slot_floats()));
  SOK_ASSIGN_OR_RETURN(const auto rows, (each.capture->rows.get()->*next)(room.columns, room.room));
  if (rows > 0) SOK_RETURN_IF_ERROR(writer->PutRows(each.table, rows));
  *written += rows;
  return rows == room.room;
}

// Writes all copies that are kept at present.
Status PutKept(const NumberedCapture& each, RowsFileWriter* writer, uint64_t* written) {
  for (;;) {
    const auto more = PutSome(each, &RowCapture::NextKept, writer, written);
    if (!more.ok() || !more.value()) return more.status();
  }
}

}  // namespace

Result<std::unique_ptr<RowsFileWriter>> RowsFileWriter::Create(const std::string& path,
                                                               const Identity& identity) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return SystemError(errno, "make", path);
  std::unique_ptr<RowsFileWriter> writer(new RowsFileWriter(fd, path));
  std::string header(kMagic, dump::kMagicBytes);
  Append(header, kVersion);
  Append(header, static_cast<uint32_t>(kHeaderBytes));
  Append(header, identity.attempt);
  Append(header, identity.worker);
  Append(header, identity.workers);
  Append(header, Checksum(header.data(), header.size(), 0));
  SOK_RETURN_IF_ERROR(writer->Write(header.data(), header.size()));
  return Result<std::unique_ptr<RowsFileWriter>>(std::move(writer));
}

Result<RowsFileWriter::Room> RowsFileWriter::MakeRoom(int dim, int slot_floats) {
  dim_ = dim;
  slot_floats_ = slot_floats;
  const uint64_t row_bytes = dump::RowBytes(dim, slot_floats);
  room_ = std::max<uint64_t>(1, kMostPayload / row_bytes);
  // A multiple of kAlignedRows keeps columns aligned, so that readers need not copy them.
  if (room_ > kAlignedRows) room_ -= room_ % kAlignedRows;
  const size_t bytes = kHeadBytes + room_ * row_bytes + kChecksumBytes;
  if (!block_.Reserve(bytes)) return OutOfMemory(bytes, path_);
  Room room;
  room.room = room_;
  char* at = block_.data() + kHeadBytes;
  room.columns.keys = reinterpret_cast<Key*>(at);
  at += room_ * sizeof(Key);
  room.columns.update_nums = reinterpret_cast<uint32_t*>(at);
  at += room_ * sizeof(uint32_t);
  room.columns.update_times = reinterpret_cast<uint32_t*>(at);
  at += room_ * sizeof(uint32_t);
  room.columns.embeddings = reinterpret_cast<float*>(at);
  room.columns.slots = room.columns.embeddings + room_ * static_cast<size_t>(dim);
  return room;
}

Status RowsFileWriter::PutRows(uint32_t table, size_t n) {
  // If there are fewer rows than room, the columns are moved together.
  char* const payload = block_.data() + kHeadBytes;
  size_t to = 0, from = 0;
  for (const size_t width :
       {sizeof(Key), sizeof(uint32_t), sizeof(uint32_t), static_cast<size_t>(dim_) * sizeof(float),
        static_cast<size_t>(slot_floats_) * sizeof(float)}) {
    if (to != from) std::memmove(payload + to, payload + from, n * width);
    to += n * width;
    from += room_ * width;
  }
  return PutBlock(table, RowsBlock::kRows, n, to);
}

Status RowsFileWriter::PutBytes(uint32_t table, RowsBlock kind, const void* bytes, size_t size) {
  for (size_t begin = 0; begin < size; begin += kMostPayload) {
    const size_t payload = std::min<size_t>(kMostPayload, size - begin);
    const size_t block = kHeadBytes + payload + kChecksumBytes;
    if (!block_.Reserve(block)) return OutOfMemory(block, path_);
    std::memcpy(block_.data() + kHeadBytes, static_cast<const char*>(bytes) + begin, payload);
    SOK_RETURN_IF_ERROR(PutBlock(table, kind, begin, payload));
  }
  return Status();
}

Status RowsFileWriter::PutRemoved(uint32_t table, const Key* keys, size_t n) {
  constexpr size_t kMostKeys = kMostPayload / sizeof(Key);
  for (size_t begin = 0; begin < n; begin += kMostKeys) {
    const size_t count = std::min(kMostKeys, n - begin);
    const size_t block = kHeadBytes + count * sizeof(Key) + kChecksumBytes;
    if (!block_.Reserve(block)) return OutOfMemory(block, path_);
    std::memcpy(block_.data() + kHeadBytes, keys + begin, count * sizeof(Key));
    SOK_RETURN_IF_ERROR(PutBlock(table, RowsBlock::kRemoved, count, count * sizeof(Key)));
  }
  return Status();
}

Status RowsFileWriter::PutBlock(uint32_t table, RowsBlock kind, uint64_t number, size_t payload) {
  char* const block = block_.data();
  Store(block, table);
  Store(block + 4, static_cast<uint32_t>(kind));
  Store(block + 8, number);
  Store(block + 16, static_cast<uint64_t>(payload));
  const size_t covered = kHeadBytes + payload;
  Store(block + covered, Checksum(block, covered, file_.bytes()));
  return Write(block, covered + kChecksumBytes);
}

Status RowsFileWriter::Write(const char* bytes, size_t size) {
  const uint64_t begin = file_.bytes();
  SOK_RETURN_IF_ERROR(file_.Write(bytes, size));
  for (size_t done = 0; done < size;) {
    const uint64_t in_piece = (begin + done) % kPieceBytes;
    const size_t part = std::min<size_t>(kPieceBytes - in_piece, size - done);
    piece_.Add(bytes + done, part);
    done += part;
    if (in_piece + part < kPieceBytes) continue;
    Append(pieces_, piece_.value());
    piece_.Start(begin + done);
  }
  return Status();
}

Result<RowsFileWriter::Summary> RowsFileWriter::Finish(const std::string& index) {
  const uint64_t offset = file_.bytes();
  std::string end = index;
  Append(end, offset);
  Append(end, static_cast<uint64_t>(offset + index.size() + 4 * sizeof(uint64_t)));
  Append(end, Checksum(end.data(), end.size(), offset));
  end.append(kEndMagic, dump::kMagicBytes);
  SOK_RETURN_IF_ERROR(Write(end.data(), end.size()));
  SOK_RETURN_IF_ERROR(file_.Finish());
  if (file_.bytes() % kPieceBytes != 0) Append(pieces_, piece_.value());
  return Summary{file_.bytes(), Checksum(pieces_.data(), pieces_.size(), file_.bytes())};
}

Status RowsBlocks::Add(const TableContents& piece) {
  const RowColumns& from = piece.rows;
  const size_t dim = dim_, slots = slot_floats_;
  for (size_t begin = 0; begin < piece.n;) {
    if (filled_ == 0) {
      SOK_ASSIGN_OR_RETURN(room_, writer_->MakeRoom(dim_, slot_floats_));
    }
    const CapturedColumns& to = room_.columns;
    const size_t n = std::min(room_.room - filled_, piece.n - begin);
    std::copy_n(from.keys + begin, n, to.keys + filled_);
    std::copy_n(from.update_nums + begin, n, to.update_nums + filled_);
    std::copy_n(from.update_times + begin, n, to.update_times + filled_);
    std::copy_n(from.embeddings + begin * dim, n * dim, to.embeddings + filled_ * dim);
    std::copy_n(from.slots + begin * slots, n * slots, to.slots + filled_ * slots);
    begin += n;
    filled_ += n;
    if (filled_ == room_.room) SOK_RETURN_IF_ERROR(End());
  }
  return Status();
}

Status RowsBlocks::End() {
  if (filled_ == 0) return Status();
  const size_t n = filled_;
  filled_ = 0;
  return writer_->PutRows(table_, n);
}

Status PutCaptures(const std::vector<NumberedCapture>& captures, RowsFileWriter* writer) {
  const CaptureBudget& budget = CaptureBudget::OfProcess();
  std::vector<uint64_t> written(captures.size(), 0);
  for (size_t i = 0; i < captures.size(); ++i) {
    const std::vector<Key>& removed = captures[i].capture->rows->removed();
    SOK_RETURN_IF_ERROR(writer->PutRemoved(captures[i].table, removed.data(), removed.size()));
    for (bool is_more = true; is_more;) {
      // Trainers may be blocked on the copy budget: drain later tables first.
      for (size_t j = i; j < captures.size() && 2 * budget.used() > budget.limit(); ++j) {
        SOK_RETURN_IF_ERROR(PutKept(captures[j], writer, &written[j]));
      }
      SOK_ASSIGN_OR_RETURN(is_more, PutSome(captures[i], &RowCapture::Next, writer, &written[i]));
    }
    const uint64_t rows = captures[i].capture->rows->rows();
    if (written[i] == rows) continue;
    return Status(Code::kInternal, "expected " + std::to_string(rows) +
                                       " rows of a table that is saved, found " +
                                       std::to_string(written[i]) + "; the save is of no use");
  }
  return Status();
}

}  // namespace sok
