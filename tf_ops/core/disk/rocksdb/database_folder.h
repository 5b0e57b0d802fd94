// Looks into the folder that RocksDB has a database in. Every function may be called at any time,
// from any thread, without opening the database.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace sok {

// Returns kInvalidArgument unless RocksDB may make a database there: the path must not exist, be an
// empty folder, or have the files of a process that died while it made a database.
Status CheckNew(const std::string& path);

// Returns the name of a file there that holds rows, or the names of such files; empty if there is
// none.
Result<std::string> FileOfRows(const std::string& path);
// Returns kDataLoss if a folder without CURRENT, which names the manifest, has such files.
Status CheckHasNoDatabase(const std::string& path);

// Returns kInvalidArgument if the path lies in the folder of a database, at any depth. `what` names
// what is to be there, such as "a checkpoint". The path need not exist.
Status CheckNotInDatabase(const std::string& path, const char* what);

// Returns true if RocksDB has made a database there.
bool HoldsDatabase(const std::string& path);

// Returns the bytes of the database's tables and of its write-ahead log.
uint64_t DatabaseBytes(const std::string& path);

}  // namespace sok
