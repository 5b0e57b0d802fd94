// The file system of a database.
#pragma once

#include <rocksdb/file_system.h>

#include <memory>
#include <string>

namespace sok {

// Returns a new file of rows, or null if it cannot be made: it is written once, from its beginning
// to its end, past the system's cache where that can be.
std::unique_ptr<rocksdb::FSWritableFile> NewTableFile(const std::string& path);

// A search of many keys asks for several blocks of a file at once, which are read together here.
// RocksDB alone reads them one after another, and each waits for the device. Files of rows are
// written past the system's cache: see docs/decisions/direct-io.md.
class DatabaseFiles : public rocksdb::FileSystemWrapper {
 public:
  DatabaseFiles() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "sok_embed.database_files"; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* debug) override;
};

}  // namespace sok
