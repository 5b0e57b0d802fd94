// The file system of a database.
#pragma once

#include <rocksdb/file_system.h>

#include <memory>
#include <string>

namespace sok {

// Returns a new file of rows, or null if it cannot be made. The file is written once, from
// beginning to end, without the system's cache if the file system allows that.
std::unique_ptr<rocksdb::FSWritableFile> NewTableFile(const std::string& path);

// Returns a file to read, or null if it cannot be opened.
std::unique_ptr<rocksdb::FSRandomAccessFile> OpenFile(const std::string& path);

// Reads blocks of a file together: a search of many keys asks for several at once, and RocksDB
// would read them one after another, each waiting for the device. Files of rows are written without
// the system's cache: see docs/decisions/direct-io.md.
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
