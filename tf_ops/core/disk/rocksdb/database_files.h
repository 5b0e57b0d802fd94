// The file system of a database.
#pragma once

#include <rocksdb/file_system.h>

#include <memory>
#include <string>

namespace sok {

// A search of many keys asks for several blocks of a file at once, which are read together here.
// RocksDB alone reads them one after another, and each waits for the device.
class DatabaseFiles : public rocksdb::FileSystemWrapper {
 public:
  DatabaseFiles() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "sok_embed.database_files"; }

  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* debug) override;
};

}  // namespace sok
