// The file of rows that a worker writes for a checkpoint: blocks with checksums, then an index.
// docs/reference/rows-format.md has the layout as tables; numbers are little-endian.
//
//   header  magic[8] u32 version, u32 header_bytes, u64 attempt, u32 worker, u32 workers, u64
//           checksum of all before
//   block*  u32 table, u32 kind, u64 number, u64 payload_bytes, payload, u64 checksum of all that
//   index   JSON, which the caller writes
//   footer  u64 index_offset, file_bytes, checksum from index_offset to here, end_magic[8]
//
// sok_embed/checkpoint/files/rows_file.py reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/file.h"
#include "core/base/file_stream.h"
#include "core/base/status.h"
#include "core/rows/row_capture.h"
#include "core/tables/table_capture.h"
#include "core/tables/table_contents.h"

namespace sok {

// Kinds of blocks.
enum class RowsBlock : uint32_t { kRows = 1, kAdmission = 2, kSketch = 3, kRemoved = 4 };

// One thread at a time may use it. After an error the file is useless.
class RowsFileWriter {
 public:
  // The largest payload of a block in bytes, unless a single row is longer.
  static constexpr uint64_t kMostPayload = 4 << 20;

  struct Identity {
    uint64_t attempt;
    uint32_t worker, workers;
  };
  struct Summary {
    uint64_t bytes;
    uint64_t checksum;  // of the pieces of 1 MiB of the file: see files.py
  };

  // Makes the file, which must not exist yet.
  static Result<std::unique_ptr<RowsFileWriter>> Create(const std::string& path,
                                                        const Identity& identity);
  RowsFileWriter(const RowsFileWriter&) = delete;
  RowsFileWriter& operator=(const RowsFileWriter&) = delete;

  // Takes the columns of up to `room` rows, before PutRows.
  struct Room {
    CapturedColumns columns;
    size_t room;
  };
  // Errors: kResourceExhausted if there is no memory for a block.
  Result<Room> MakeRoom(int dim, int slot_floats);
  // Writes the first n rows of the room as a block.
  Status PutRows(uint32_t table, size_t n);
  // Writes bytes in blocks; the `number` of each block is the offset of its bytes.
  Status PutBytes(uint32_t table, RowsBlock kind, const void* bytes, size_t size);
  // Writes keys in blocks; the `number` of each block is the number of its keys.
  Status PutRemoved(uint32_t table, const Key* keys, size_t n);

  // Writes the index and flushes the file to the device.
  Result<Summary> Finish(const std::string& index);

 private:
  RowsFileWriter(int fd, const std::string& path) : path_(path), file_(fd, path) {}

  Status PutBlock(uint32_t table, RowsBlock kind, uint64_t number, size_t payload);
  Status Write(const char* bytes, size_t size);

  const std::string path_;
  FileStream file_;
  FileBuffer block_;  // head, payload, checksum
  int dim_ = 0, slot_floats_ = 0;
  size_t room_ = 0;  // rows that the block has room for
  RunningChecksum piece_;
  std::string pieces_;  // checksums of whole pieces
};

// Writes rows of a table, which come some at a time, in full blocks.
class RowsBlocks {
 public:
  // Nothing else may be written until End.
  RowsBlocks(RowsFileWriter* writer, uint32_t table, int dim, int slot_floats)
      : writer_(writer), table_(table), dim_(dim), slot_floats_(slot_floats) {}
  // The piece has all columns, slots only if the table has them.
  Status Add(const TableContents& piece);
  // Writes the last block.
  Status End();

 private:
  RowsFileWriter* const writer_;
  const uint32_t table_;
  const int dim_, slot_floats_;
  RowsFileWriter::Room room_{};
  size_t filled_ = 0;  // rows of the room
};

// A capture and the number of its table in the file.
struct NumberedCapture {
  uint32_t table;
  TableCapture* capture;
};

// Writes the rows and the removed keys of captures. While copies of rows take more than half of the
// CaptureBudget, it writes the captures with copies first.
Status PutCaptures(const std::vector<NumberedCapture>& captures, RowsFileWriter* writer);

}  // namespace sok
