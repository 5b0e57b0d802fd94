// Says what the folder of a storage tells without being opened.
#pragma once

#include <cstdint>
#include <string>

namespace sok {

// Returns whether there is a storage in the folder. Whether it can be opened is another question.
bool HoldsStorage(const std::string& path);

// Returns the bytes of the files with rows: those of the database, its log, and the journal. A
// process that was killed leaves rows in the journal until the folder is opened for writing.
uint64_t FileBytes(const std::string& path);

}  // namespace sok
