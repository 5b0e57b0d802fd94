// Reads the files of Damo-Embedding's dump(): embeddings of several groups, without slots. Native
// endian, without padding, version or checksum:
//
//   int32 n, int32 groups[n], int32 dims[n], int64 counts[n],
//   then until the end of the file: int64 key, int32 group, float32[dim of that group]
//
// Layout: EmbeddingWarehouse::dump in src/embedding.cc of github.com/uopensail/damo-embedding. Its
// dump() leaves key 0 out. The files of its checkpoint() are another format, and are refused.
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

// Returns true if path starts with a sensible header of such a file; the length of the file is not
// looked at.
bool LooksLikeDamoDump(const std::string& path);

// Thread-safe. Memory: about 1 MiB, or one record if that is longer. With no checksum in the file,
// a flipped bit in a key or a float cannot be found.
class DamoDumpReader {
 public:
  // kInvalidArgument if the header makes no sense: the file is something else. kDataLoss if the
  // length of the file is not what the header tells.
  static Result<std::unique_ptr<DamoDumpReader>> Open(const std::string& path);

  // In the order of the file.
  const std::vector<DamoGroup>& groups() const { return groups_; }

  // Walks all records: kDataLoss, with the offset, if one is of a group that the header does not
  // have, or if a group has another number of records than the header tells.
  // kFailedPrecondition if progress returned false.
  Status Verify(const DumpProgress& progress = nullptr) const;

  // Calls fn with the key and embedding of every record, one at a time, in the order of the file,
  // which mixes the groups. Stops at the first Status that is not OK, fn's own or that of a bad
  // record. A caller that must change all or nothing calls Verify first.
  Status ForEachPiece(const PieceFn& fn, const DumpProgress& progress = nullptr) const;

 private:
  explicit DamoDumpReader(std::unique_ptr<InputFile> file) : file_(std::move(file)) {}
  Status CheckLength() const;

  std::unique_ptr<InputFile> file_;
  std::vector<DamoGroup> groups_;
};

}  // namespace sok
