// Finds out about the folder of a storage without opening it.
#pragma once

#include <cstdint>
#include <string>

namespace sok {

// Returns true if there is a storage in the folder, even one that cannot be opened.
bool HoldsStorage(const std::string& path);

// Returns the bytes of the files with rows: those of the database, its log, and the journal. A
// process that was killed leaves rows in the journal until the folder is opened for writing.
uint64_t FileBytes(const std::string& path);

}  // namespace sok
