#include "core/stores/database_folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <string_view>
#include <vector>

#include "core/stores/file_error.h"

namespace sok {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

}  // namespace

std::vector<std::string> FilesIn(const std::string& path) {
  std::vector<std::string> names;
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(folder);
  return names;
}

Status CheckNew(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
    return InvalidArgument("expected a folder for the storage, got the file '" + path + "'");
  }
  for (const std::string& name : FilesIn(path)) {
    if (name == "LOCK" || name == "IDENTITY" || StartsWith(name, "LOG") ||
        StartsWith(name, "MANIFEST-") || StartsWith(name, "OPTIONS-") ||
        (name.size() > 4 && name.substr(name.size() - 4) == ".log") ||
        (name.size() > 6 && name.substr(name.size() - 6) == ".dbtmp")) {
      continue;
    }
    return InvalidArgument("expected an empty folder or a storage, got '" + path +
                           "', which has '" + name +
                           "' in it; give the storage a folder of its own");
  }
  return Status();
}

Status MakeFolders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {
      return FileError(errno, "could not make the folder '" + part + "'");
    }
    if (end == std::string::npos) return Status();
  }
}

void RemoveFiles(const std::string& path, const std::string& prefix) {
  for (const std::string& name : FilesIn(path)) {
    if (StartsWith(name, prefix)) std::remove((path + "/" + name).c_str());
  }
}

}  // namespace sok
