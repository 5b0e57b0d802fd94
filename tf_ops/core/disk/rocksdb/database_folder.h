// The folder that RocksDB makes a database in.
#pragma once

#include <string>

#include "core/base/status.h"

namespace sok {

// kInvalidArgument unless RocksDB may make a database there: nothing, an empty folder, or what a
// process left that died doing it.
Status CheckNew(const std::string& path);

}  // namespace sok
