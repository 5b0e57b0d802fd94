#include "core/storage/storage_folder.h"

#include "core/base/folder.h"
#include "core/disk/journal.h"
#include "core/disk/rocksdb/database_folder.h"

namespace sok {

bool HoldsStorage(const std::string& path) { return HoldsDatabase(path); }

uint64_t FileBytes(const std::string& path) {
  return DatabaseBytes(path) + BytesOfFiles(path, [](const std::string& name) {
           return name.compare(0, sizeof(kJournalPrefix) - 1, kJournalPrefix) == 0;
         });
}

}  // namespace sok
