// The folder that a database is made in.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"

namespace sok {

// kInvalidArgument unless RocksDB may make a database there: nothing, an empty folder, or what a
// process left that died doing it.
Status CheckNew(const std::string& path);

// Makes the folder and those above it, where they are missing.
Status MakeFolders(const std::string& path);

// What a folder holds, but for "." and "..".
std::vector<std::string> FilesIn(const std::string& path);

// Removes the files in the folder whose names begin so.
void RemoveFiles(const std::string& path, const std::string& prefix);

}  // namespace sok
