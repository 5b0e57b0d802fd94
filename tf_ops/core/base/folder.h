// Folders: what is in them, making them, removing files from them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace sok {

// Makes the folder and those above it, where they are missing.
Status MakeFolders(const std::string& path);

// What a folder holds, but for "." and "..".
std::vector<std::string> FilesIn(const std::string& path);

// The sizes of those files of the folder whose names are `wanted`, added up; 0 without a folder.
uint64_t BytesOfFiles(const std::string& path,
                      const std::function<bool(const std::string& name)>& wanted);

// Removes the files in the folder whose names begin so.
void RemoveFiles(const std::string& path, const std::string& prefix);

}  // namespace sok
