#include "core/base/folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "core/base/file.h"
#include "core/base/file_error.h"

namespace sok {

Result<std::vector<std::string>> FilesIn(const std::string& path) {
  std::vector<std::string> names;
  const auto close = [](DIR* folder) { closedir(folder); };
  const std::unique_ptr<DIR, decltype(close)> folder(opendir(path.c_str()), close);
  if (folder == nullptr) {
    if (errno == ENOENT || errno == ENOTDIR) return names;
    return SystemError(errno, "list the folder", path);
  }
  while (true) {
    errno = 0;
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return SystemError(errno, "list the folder", path);
  return names;
}

Status MakeFolders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0777) == 0) {
      // Without this, a power failure may remove the new folder's name, and everything in it.
      const size_t slash = part.rfind('/');
      Status status = SyncFolder(slash == std::string::npos ? "." : part.substr(0, slash + 1));
      // A process that may create a folder there may still lack permission to open it for reading.
      if (!status.ok() && status.code() != Code::kPermissionDenied) return status;
    } else if (errno != EEXIST) {
      return FileError(errno, "could not make the folder '" + part + "'");
    }
    if (end == std::string::npos) return Status();
  }
}

uint64_t BytesOfFiles(const std::string& path,
                      const std::function<bool(const std::string& name)>& wanted) {
  const Result<std::vector<std::string>> names = FilesIn(path);
  if (!names.ok()) return 0;
  uint64_t bytes = 0;
  for (const std::string& name : names.value()) {
    struct stat file;
    if (wanted(name) && stat((path + "/" + name).c_str(), &file) == 0) {
      bytes += static_cast<uint64_t>(file.st_size);
    }
  }
  return bytes;
}

void RemoveFiles(const std::string& path, const std::string& prefix) {
  const Result<std::vector<std::string>> names = FilesIn(path);
  if (!names.ok()) return;
  for (const std::string& name : names.value()) {
    if (name.compare(0, prefix.size(), prefix) == 0) std::remove((path + "/" + name).c_str());
  }
}

}  // namespace sok
