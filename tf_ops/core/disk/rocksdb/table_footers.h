// Checks the footers of table files, which say where the first blocks are. RocksDB trusts them
// without a checksum.
#pragma once

#include <string>

#include "core/base/status.h"

namespace sok {

// Returns kPermissionDenied if the folder may not be listed, which RocksDB would treat as a folder
// without a database; kDataLoss if a table file has a footer that points beyond the file, for which
// RocksDB would allocate as much memory as the footer says, partly on threads where a failure ends
// the process. Files without a footer pass: a compaction that was killed leaves such files, and
// RocksDB reports them if it needs them.
Status CheckTableFooters(const std::string& folder);

}  // namespace sok
