// A dump: embedding rows of several groups in one file that can be moved between machines. The
// layout is in core/dump/dump_format.h.
//
// Damage is detected: every byte of a file is covered by a checksum or compared with its expected
// value, so a file that was cut, has grown or has a flipped byte fails in Open or Verify, before a
// load has changed anything. Memory: one block, about 1 MiB or one row if that is longer; and the
// index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/dump/piece.h"
#include "core/dump/progress.h"

namespace sok {

struct DumpGroup {
  int group = 0;        // [0, 256)
  int dim = 0;          // [1, 2^20]
  std::string meta;     // the caller's own, kept byte for byte; at most 1 MiB
  int slot_floats = 0;  // [0, 2^23], after the embedding of every row
  uint64_t rows = 0;    // set by readers only
};

// Writes a dump. One thread at a time. After an error every later call returns the same error, the
// temporary file is removed, and an older file at path is unchanged.
class DumpWriter {
 public:
  // Writes to a temporary file beside path; see ReplacementFile for what path may be.
  static Result<std::unique_ptr<DumpWriter>> Open(const std::string& path);
  // Without a Finish before, removes the temporary file.
  ~DumpWriter() = default;

  // Rows that follow belong to this group. Groups come in ascending order, each once; a group
  // without rows is kept. kInvalidArgument if anything is out of its range; `rows` is ignored.
  Status BeginGroup(const DumpGroup& group);

  // Keys are not compared with each other: a key that is added twice to a group is in the file
  // twice. Floats keep their bits, also NaN.
  //
  // The piece must have all columns, slots only if the group has them; its update counts and times
  // are in [0, 2^32 - 1].
  Status AddRows(const TableContents& piece);
  // Returns kInvalidArgument unless the present group has rows of these widths, which AddRows takes
  // for granted.
  Status CheckWidths(int dim, int slot_floats) const;

  // Completes the file and puts it at path in one step. When this returns OK, the file is on the
  // device. The writer takes no more calls. If only the last step fails, which flushes the folder,
  // the new file is at path, and the error says so.
  Status Finish();

 private:
  explicit DumpWriter(std::unique_ptr<ReplacementFile> file) : file_(std::move(file)) {}
  Status StartBlocks();
  void PutRow(const TableContents& piece, size_t row);
  Status WriteBlock();
  Status WriteIndex();
  Status Keep(Status status);

  std::unique_ptr<ReplacementFile> file_;
  Status error_;
  std::vector<DumpGroup> groups_;
  // The block that is being filled: its columns have the same places as in a full block.
  FileBuffer block_;
  size_t block_rows_ = 0;
  size_t rows_per_block_ = 0;  // 0 until the group's first row
  size_t row_floats_ = 0;
};

// Reads a dump. Thread-safe. Keeps reading the file that it opened, also if another file takes its
// name.
class DumpReader {
 public:
  // Checks the header, the index and the length of the file, not the rows. kInvalidArgument if the
  // file is something else or of a newer version, kDataLoss if it is a damaged dump.
  static Result<std::unique_ptr<DumpReader>> Open(const std::string& path);

  // Reads every block and checks it. kDataLoss names the offset of the first bad one.
  // kFailedPrecondition if progress returned false.
  Status Verify(const DumpProgress& progress = nullptr) const;

  // Ascending by number, groups without rows too.
  const std::vector<DumpGroup>& groups() const { return groups_; }
  // The number of rows of all groups.
  uint64_t rows() const;

  // Calls fn with the rows of every block in the order of the file, and stops at the first Status
  // that is not OK, from fn or for a bad block: checksums are compared again. A caller that
  // must change all or nothing calls Verify first.
  Status ForEachPiece(const PieceFn& fn, const DumpProgress& progress = nullptr) const;
  // Calls fn with the rows of one block, that of group number `index` of groups() which begins with
  // row `begin`: 0, or where the block before it has ended.
  Status ReadPiece(size_t index, uint64_t begin, const PieceFn& fn) const;

 private:
  explicit DumpReader(std::unique_ptr<InputFile> file) : file_(std::move(file)) {}
  Status ReadHeader() const;
  Status ReadIndex();
  Status ParseIndex(const char* index, uint64_t bytes, uint64_t offset);
  Status CheckLengths(uint64_t index_offset) const;
  struct Block;
  Status ReadBlock(const DumpGroup& group, uint64_t offset, uint64_t rows, Block* block) const;

  std::unique_ptr<InputFile> file_;
  std::vector<DumpGroup> groups_;
};

}  // namespace sok
