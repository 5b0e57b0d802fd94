#include "core/disk/rocksdb/database_folder.h"

#include <sys/stat.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/base/file_error.h"
#include "core/base/folder.h"
#include "core/base/status_macros.h"
#include "core/disk/journal.h"
#include "core/disk/open_folders.h"
#include "core/disk/rocksdb/noted_folder.h"
#include "core/disk/rocksdb/row_database_handles.h"
#include "core/disk/written_note.h"

namespace sok {
namespace {

namespace fs = std::filesystem;

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
  SOK_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(path));
  for (const std::string& name : names) {
    if (name == FolderClaim::kFileName || name == WrittenNote::kFileName || name == "LOCK" ||
        name == "IDENTITY" || StartsWith(name, "LOG") || StartsWith(name, "MANIFEST-") ||
        StartsWith(name, "OPTIONS-") || EndsWith(name, ".log") || EndsWith(name, ".dbtmp")) {
      continue;
    }
    return InvalidArgument("expected an empty folder or a storage, got '" + path +
                           "', which has '" + name +
                           "' in it; give the storage a folder of its own");
  }
  return Status();
}

Result<std::string> FileOfRows(const std::string& path) {
  SOK_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(path));
  for (const std::string& name : names) {
    struct stat info;
    const bool is_table = EndsWith(name, ".sst") && !StartsWith(name, kPublishPrefix);
    const bool is_log =
        LogNumber(name) > 0 && stat((path + "/" + name).c_str(), &info) == 0 && info.st_size > 0;
    if (is_table || is_log || StartsWith(name, kJournalPrefix)) return name;
  }
  return std::string();
}

Status CheckHasNoDatabase(const std::string& path) {
  SOK_ASSIGN_OR_RETURN(std::string file, FileOfRows(path));
  SOK_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(path));
  for (const std::string& name : names) {
    // The first manifest is made before CURRENT.
    if (file.empty() && ManifestNumber(name) > 1) file = name;
  }
  if (file.empty()) return Status();
  return Status(Code::kDataLoss, "the database in '" + path + "' is damaged: it has '" + file +
                                     "', and no file CURRENT, which names its manifest" + kRestore);
}

Status CheckNotInDatabase(const std::string& path, const char* what) {
  std::error_code ignored;
  const fs::path own = fs::weakly_canonical(fs::absolute(path, ignored), ignored);
  for (fs::path above = own.parent_path(); !above.empty(); above = above.parent_path()) {
    // Folders of releases, say, may have a file CURRENT of another kind.
    const auto manifest = CurrentManifest(above.string());
    if (manifest.ok() && !manifest.value().empty()) {
      return InvalidArgument(std::string("expected ") + what +
                             " outside of the folders of storages, got '" + path + "' in '" +
                             above.string() + "'; choose another place, or move it there");
    }
    if (above == above.root_path()) break;
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
