#include "core/disk/rocksdb/table_footers.h"

#include <cstdint>
#include <cstring>

#include "core/base/file.h"
#include "core/base/folder.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// The layout is that of rocksdb/table/format.h, format versions 1 to 5: type of checksums, two
// handles of two varints each, zeros up to 41 bytes, version, magic number. Later versions have a
// checksum.
constexpr uint64_t kMagic = 0x88e241b785f4cff7;
constexpr size_t kFooterBytes = 53;
constexpr size_t kVersionAt = 41;
constexpr size_t kMagicAt = 45;
constexpr uint32_t kLastVersion = 5;
constexpr uint64_t kTrailerBytes = 5;  // the bytes behind every block

// Reads the varint at *at, and moves *at past it. Returns false if it does not end before `end`.
bool ReadVarint(const unsigned char* bytes, size_t end, size_t* at, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && *at < end; shift += 7) {
    const unsigned char byte = bytes[(*at)++];
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

Status CheckFooter(const std::string& path) {
  const auto file = InputFile::Open(path);
  if (!file.ok()) return Status();  // RocksDB reports it, if it needs the file
  const uint64_t bytes = file.value()->bytes();
  unsigned char footer[kFooterBytes];
  if (bytes < kFooterBytes ||
      !file.value()->ReadAt(bytes - kFooterBytes, footer, kFooterBytes).ok()) {
    return Status();
  }
  uint64_t magic;
  uint32_t version;
  std::memcpy(&magic, footer + kMagicAt, sizeof(magic));
  std::memcpy(&version, footer + kVersionAt, sizeof(version));
  if (magic != kMagic || version < 1 || version > kLastVersion) return Status();
  size_t at = 1;
  const uint64_t blocks = bytes - kFooterBytes;
  for (int handle = 0; handle < 2; ++handle) {
    uint64_t offset = 0, size = 0;
    if (ReadVarint(footer, kVersionAt, &at, &offset) &&
        ReadVarint(footer, kVersionAt, &at, &size) && blocks >= kTrailerBytes &&
        offset <= blocks - kTrailerBytes && size <= blocks - kTrailerBytes - offset) {
      continue;
    }
    return Status(Code::kDataLoss,
                  "the table file '" + path + "' is damaged: its footer points to " +
                      std::to_string(size) + " bytes at byte " + std::to_string(offset) + " of " +
                      std::to_string(bytes) + "; restore the folder from a checkpoint or a dump");
  }
  return Status();
}

}  // namespace

Status CheckTableFooters(const std::string& folder) {
  SOK_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(folder));
  for (const std::string& name : names) {
    if (name.size() <= 4 || name.compare(name.size() - 4, 4, ".sst") != 0) continue;
    SOK_RETURN_IF_ERROR(CheckFooter(folder + "/" + name));
  }
  return Status();
}

}  // namespace sok
