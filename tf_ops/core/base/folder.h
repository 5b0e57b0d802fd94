// Lists folders, makes them, and removes files from them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace sok {

// Makes the folder and its parent folders, where they are missing.
Status MakeFolders(const std::string& path);

// Returns the names in a folder, but for "." and ".."; no names for a folder that is missing.
// Errors are SystemError's.
Result<std::vector<std::string>> FilesIn(const std::string& path);

// Returns the sum of the sizes of the files in the folder for whose names `wanted` returns true; 0
// for a folder that is missing or cannot be listed.
uint64_t BytesOfFiles(const std::string& path,
                      const std::function<bool(const std::string& name)>& wanted);

// Removes the files in the folder whose names begin with `prefix`, as far as it can be listed.
void RemoveFiles(const std::string& path, const std::string& prefix);

}  // namespace sok
