// Checks what RocksDB believes without a checksum: where the footer of a table file says that its
// first blocks are.
#pragma once

#include <string>

#include "core/base/status.h"

namespace sok {

// kPermissionDenied if the folder may not be listed: RocksDB takes it for one without a database.
// kDataLoss if a table file in the folder has a footer that points beyond the file. RocksDB would
// ask for as much memory as that says, some of it on threads where a failure ends the process.
// Files without a footer pass: RocksDB says so itself if it wants them, and a compaction that was
// killed leaves some.
Status CheckTableFooters(const std::string& folder);

}  // namespace sok
