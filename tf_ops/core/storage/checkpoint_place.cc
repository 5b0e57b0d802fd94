#include "core/storage/checkpoint_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/disk/rocksdb/database_folder.h"
#include "core/disk/rocksdb/noted_folder.h"

namespace sok {
namespace {

// A checkpoint is built in the folder of its storage under this name. RocksDB first writes to this
// name with ".tmp" appended.
constexpr char kStaging[] = "/sok-checkpoint";

std::string ParentOf(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool Same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Removes the file or folder at `path`, with everything in it. It follows no links, since files
// behind a link do not belong to the storage.
void RemoveFolder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// Returns the folder in which a checkpoint for `path` is built if the storage's folder cannot be
// used.
std::string UnfinishedOf(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path + ".tmp";
}

// Makes the folder that a checkpoint is written to. An existing folder of that name may be in use,
// which is an error.
Status CreateStagingFolder(const std::string& unfinished) {
  if (mkdir(unfinished.c_str(), 0777) == 0) return Status();
  if (errno != EEXIST) return SystemError(errno, "make the folder", unfinished);
  return InvalidArgument(
      "expected nothing at '" + unfinished +
      "', where the checkpoint would grow, got a file or a folder there, which stays as it is; "
      "choose another path, or move it away (a checkpoint that was killed leaves such a folder, "
      "which can be removed)");
}

// Moves a complete checkpoint to its path, where nothing may be. After an error nothing is there.
// `move_error` becomes the errno of the move, or 0.
Status MoveTo(const std::string& from, const std::string& path, int* move_error) {
  *move_error = std::rename(from.c_str(), path.c_str()) == 0 ? 0 : errno;
  if (*move_error != 0) return SystemError(*move_error, "move the finished checkpoint to", path);
  Status status = SyncFolder(ParentOf(path));
  if (!status.ok()) RemoveFolder(path);
  return status;
}

// Puts a file into another folder: as a hard link, or as a copy on another file system.
Status LinkOrCopy(const std::string& name, const std::string& from, const std::string& to) {
  const std::string source = from + "/" + name, target = to + "/" + name;
  if (link(source.c_str(), target.c_str()) != 0) {
    std::error_code error;
    std::filesystem::copy_file(source, target, error);
    if (error) return SystemError(error.value(), "copy to the checkpoint", source);
  }
  return SyncFile(target);
}

// Builds the checkpoint in "<path>.tmp", together with some files of `folder`. RocksDB's part is
// built in a folder inside of it, so that no reader finds it without these files.
Status CheckpointInPlace(const Database& database, const std::string& folder,
                         const std::string& path, const WrittenNote::Files& files) {
  const std::string unfinished = UnfinishedOf(path), inner = unfinished + "/checkpoint";
  SOK_RETURN_IF_ERROR(CreateStagingFolder(unfinished));
  Status status = database.Checkpoint(inner);
  for (const auto& [name, file] : files) {
    if (status.ok()) status = LinkOrCopy(name, folder, inner);
  }
  if (status.ok()) status = NoteCopy(inner, files);
  if (status.ok()) status = SyncFolder(inner);
  int error = 0;
  if (status.ok()) status = MoveTo(inner, path, &error);
  RemoveFolder(unfinished);
  return status;
}

Status CheckFree(const std::string& path) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) return Status();
  return InvalidArgument("expected a path for the checkpoint that does not exist yet, got '" +
                         path + "'");
}

}  // namespace

Status CheckOutside(const std::string& path, const std::string& folder, const char* what) {
  if (path.empty()) {
    return InvalidArgument(std::string("expected a path for the ") + what + ", got ''");
  }
  struct stat own, above, at;
  if (stat(folder.c_str(), &own) != 0) return Status();
  std::string ancestor = ParentOf(path);
  while (stat(ancestor.c_str(), &at) == 0) {
    if (Same(at, own)) {
      return InvalidArgument(std::string("expected a path for the ") + what +
                             " outside of the folder of the storage, got '" + path + "' in '" +
                             folder + "'; choose a place beside it");
    }
    ancestor += "/..";
    if (stat(ancestor.c_str(), &above) != 0 || Same(above, at)) break;
  }
  return Status();
}

Status MakeCheckpoint(const Database& database, const std::string& folder,
                      const std::string& path) {
  SOK_RETURN_IF_ERROR(CheckOutside(path, folder, "checkpoint"));
  SOK_RETURN_IF_ERROR(CheckNotInDatabase(path, "a checkpoint"));
  struct stat own, parent;
  const bool movable = stat(folder.c_str(), &own) == 0 &&
                       stat(ParentOf(path).c_str(), &parent) == 0 && own.st_dev == parent.st_dev &&
                       access(folder.c_str(), W_OK) == 0;
  SOK_RETURN_IF_ERROR(CheckFree(path));
  if (!movable) return CheckpointInPlace(database, folder, path, {});
  const std::string staging = folder + kStaging;
  RemoveUnfinishedCheckpoints(folder);
  SOK_RETURN_IF_ERROR(database.Checkpoint(staging));
  int error = 0;
  Status status = NoteCopy(staging);
  if (status.ok()) status = MoveTo(staging, path, &error);
  if (!status.ok()) RemoveUnfinishedCheckpoints(folder);
  // Two mounts of one device look like one file system, but no file can be moved between them.
  return error == EXDEV ? CheckpointInPlace(database, folder, path, {}) : status;
}

Status CheckpointOfReader(const Database& database, const std::string& folder,
                          const std::string& path, const WrittenNote::Files& journal) {
  SOK_RETURN_IF_ERROR(CheckOutside(path, folder, "checkpoint"));
  SOK_RETURN_IF_ERROR(CheckNotInDatabase(path, "a checkpoint"));
  SOK_RETURN_IF_ERROR(CheckFree(path));
  return CheckpointInPlace(database, folder, path, journal);
}

void RemoveUnfinishedCheckpoints(const std::string& folder) {
  RemoveFolder(folder + kStaging);
  RemoveFolder(folder + kStaging + ".tmp");
}

}  // namespace sok
