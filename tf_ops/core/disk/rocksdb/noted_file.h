// Notes how far RocksDB has written a log or a manifest.
#pragma once

#include <rocksdb/file_system.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/disk/written_note.h"

namespace sok {

// Returns a file that notes its length and the checksum of its bytes in `note` each time when it is
// on the device, and the number of the log in `last_log` whenever it writes to one. `folder` and
// `name` are its path.
std::unique_ptr<rocksdb::FSWritableFile> NotedFile(std::unique_ptr<rocksdb::FSWritableFile> file,
                                                   const std::string& folder,
                                                   const std::string& name,
                                                   std::shared_ptr<WrittenNote> note,
                                                   std::shared_ptr<std::atomic<uint64_t>> last_log);

}  // namespace sok
