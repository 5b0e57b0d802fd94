// Reads the files of Damo-Embedding's dump(): embeddings of several groups, without slots. Native
// endian, without padding, version or checksum:
//
//   int32 n, int32 groups[n], int32 dims[n], int64 counts[n],
//   then until the end of the file: int64 key, int32 group, float32[dim of that group]
//
// Layout: EmbeddingWarehouse::dump in src/embedding.cc of github.com/uopensail/damo-embedding. Its
// dump() omits key 0. The files of its checkpoint() have another format, and are refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/dump/piece.h"
#include "core/dump/progress.h"

namespace sok {

struct DamoGroup {
  int group = 0;      // [0, 256)
  int dim = 0;        // [1, 2^20]
  uint64_t rows = 0;  // as the header counts them
};

// Returns true if the file at path starts with a valid header of such a dump; its length is not
// checked.
bool LooksLikeDamoDump(const std::string& path);

// Thread-safe. Memory: about 1 MiB, or one record if that is longer. Since the file has no
// checksum, a flipped bit in a key or a float is not detected.
class DamoDumpReader {
 public:
  // kInvalidArgument if the header is invalid: the file is something else. kDataLoss if the length
  // of the file does not fit the header.
  static Result<std::unique_ptr<DamoDumpReader>> Open(const std::string& path);

  // In the order of the file.
  const std::vector<DamoGroup>& groups() const { return groups_; }

  // Reads all records: kDataLoss, with the offset, if a record belongs to a group that is not in
  // the header, or if a group does not have as many records as the header says.
  // kFailedPrecondition if progress returned false.
  Status Verify(const DumpProgress& progress = nullptr) const;

  // Calls fn with the key and embedding of every record, one at a time, in the order of the file,
  // which mixes the groups. Stops at the first Status that is not OK, from fn or for a bad record.
  // A caller that must change either everything or nothing calls Verify first.
  Status ForEachPiece(const PieceFn& fn, const DumpProgress& progress = nullptr) const;

 private:
  explicit DamoDumpReader(std::unique_ptr<InputFile> file) : file_(std::move(file)) {}
  Status CheckLength() const;

  std::unique_ptr<InputFile> file_;
  std::vector<DamoGroup> groups_;
};

}  // namespace sok
