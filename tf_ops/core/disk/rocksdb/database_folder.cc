#include "core/disk/rocksdb/database_folder.h"

#include <sys/stat.h>

#include <string_view>

#include "core/base/folder.h"
#include "core/disk/open_folders.h"

namespace sok {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool EndsWith(std::string_view name, std::string_view suffix) {
  return name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
}

}  // namespace

Status CheckNew(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
    return InvalidArgument("expected a folder for the storage, got the file '" + path + "'");
  }
  for (const std::string& name : FilesIn(path)) {
    if (name == FolderClaim::kFileName || name == "LOCK" || name == "IDENTITY" ||
        StartsWith(name, "LOG") || StartsWith(name, "MANIFEST-") || StartsWith(name, "OPTIONS-") ||
        EndsWith(name, ".log") || EndsWith(name, ".dbtmp")) {
      continue;
    }
    return InvalidArgument("expected an empty folder or a storage, got '" + path +
                           "', which has '" + name +
                           "' in it; give the storage a folder of its own");
  }
  return Status();
}

bool HoldsDatabase(const std::string& path) {
  struct stat info;
  return stat((path + "/CURRENT").c_str(), &info) == 0;
}

uint64_t DatabaseBytes(const std::string& path) {
  return BytesOfFiles(path, [](const std::string& name) {
    return EndsWith(name, ".sst") || EndsWith(name, ".log");
  });
}

}  // namespace sok
