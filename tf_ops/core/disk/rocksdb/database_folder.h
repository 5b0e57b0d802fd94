// The folder that RocksDB makes a database in.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace sok {

// kInvalidArgument unless RocksDB may make a database there: nothing, an empty folder, or what a
// process left that died doing it.
Status CheckNew(const std::string& path);

// Whether RocksDB has made a database there.
bool HoldsDatabase(const std::string& path);

// The bytes of its tables and of its write-ahead log.
uint64_t DatabaseBytes(const std::string& path);

}  // namespace sok
