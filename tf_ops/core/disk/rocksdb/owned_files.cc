#include "core/disk/rocksdb/owned_files.h"

#include <cstdlib>
#include <new>
#include <utility>

#include "core/base/status_macros.h"
#include "core/disk/rocksdb/noted_file.h"
#include "core/disk/rocksdb/noted_folder.h"

namespace sok {

using rocksdb::IOStatus;

OwnedFiles::OwnedFiles(std::string path, std::shared_ptr<FolderClaim> claim,
                       std::shared_ptr<WrittenNote> note)
    : folder_(std::move(path)),
      current_(folder_ + "/CURRENT"),
      claim_(std::move(claim)),
      note_(std::move(note)),
      mark_(Look()) {}

bool OwnedFiles::Mark::operator==(const Mark& other) const {
  return file == other.file && bytes == other.bytes && written.tv_sec == other.written.tv_sec &&
         written.tv_nsec == other.written.tv_nsec;
}

OwnedFiles::Mark OwnedFiles::Look() const {
  struct stat info;
  if (stat(current_.c_str(), &info) != 0) return {};
  return {{info.st_dev, info.st_ino}, info.st_size, info.st_mtim};
}

Status OwnedFiles::Check() {
  SOK_RETURN_IF_ERROR(claim_->Check());
  std::lock_guard<std::mutex> guard(mu_);
  return CheckHeld();
}

Status OwnedFiles::CheckHeld() {
  if (!refused_.ok()) return refused_;
  if (Look() == mark_) return Status();
  return Status(Code::kUnavailable,
                "the storage was changed by another program while this process has it open: '" +
                    current_ +
                    "' is not the file any more that this process has written; nothing is written "
                    "from here on, so that what the other has written stays whole, and what is in "
                    "memory can still be looked up: save what you need of it, then end this "
                    "process, look for the other program, and open the storage again");
}

void OwnedFiles::Refuse(Status error) {
  std::lock_guard<std::mutex> guard(mu_);
  if (refused_.ok()) refused_ = std::move(error);
}

IOStatus OwnedFiles::Checked() {
  const Status status = Check();
  return status.ok() ? IOStatus::OK() : IOStatus::IOError(status.message());
}

IOStatus OwnedFiles::Forget(const std::function<bool(const std::string& name)>& gone) {
  try {
    const Status status = note_->Drop(gone, /*sync=*/true);
    return status.ok() ? IOStatus::OK() : IOStatus::IOError(status.message());
  } catch (const std::bad_alloc&) {
    return IOStatus::NoSpace();
  }
}

std::string OwnedFiles::NameHere(const std::string& path) const {
  // RocksDB has paths with and without the slashes that a caller has put at the folder's end.
  const auto trimmed = [](std::string folder) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    return folder;
  };
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return "";
  return trimmed(path.substr(0, slash + 1)) == trimmed(folder_) ? path.substr(slash + 1) : "";
}

IOStatus OwnedFiles::NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                     std::unique_ptr<rocksdb::FSWritableFile>* result,
                                     rocksdb::IODebugContext* debug) {
  IOStatus status = Checked();
  if (status.ok()) status = DatabaseFiles::NewWritableFile(name, options, result, debug);
  const std::string here = status.ok() ? NameHere(name) : "";
  if (IsNoted(here)) *result = NotedFile(std::move(*result), folder_, here, note_, last_log_);
  return status;
}

IOStatus OwnedFiles::ReopenWritableFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSWritableFile>* result,
                                        rocksdb::IODebugContext* debug) {
  const IOStatus status = Checked();
  return status.ok() ? target()->ReopenWritableFile(name, options, result, debug) : status;
}

IOStatus OwnedFiles::ReuseWritableFile(const std::string& name, const std::string& old_name,
                                       const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* result,
                                       rocksdb::IODebugContext* debug) {
  const IOStatus status = Checked();
  return status.ok() ? target()->ReuseWritableFile(name, old_name, options, result, debug) : status;
}

IOStatus OwnedFiles::DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                                rocksdb::IODebugContext* debug) {
  IOStatus status = Checked();
  const std::string here = NameHere(name);
  if (status.ok() && IsNoted(here)) {
    // Earlier manifests go with the first file that this one does not need: with an old CURRENT
    // they would show a state without it.
    status = Forget([&](const std::string& noted) {
      const uint64_t manifest = ManifestNumber(noted);
      return noted == here || (manifest > 0 && manifest < manifest_);
    });
  }
  return status.ok() ? target()->DeleteFile(name, options, debug) : status;
}

IOStatus OwnedFiles::RenameFile(const std::string& from, const std::string& to,
                                const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) {
  if (to != current_) {
    const IOStatus status = Checked();
    return status.ok() ? target()->RenameFile(from, to, options, debug) : status;
  }
  if (Status status = claim_->Check(); !status.ok()) return IOStatus::IOError(status.message());
  // No check may run between the two calls: CURRENT is a new file then, and mark_ is still the old
  // one.
  std::lock_guard<std::mutex> guard(mu_);
  if (Status status = CheckHeld(); !status.ok()) return IOStatus::IOError(status.message());
  IOStatus status = target()->RenameFile(from, to, options, debug);
  mark_ = Look();
  // RocksDB writes the name of a manifest to a file that has the manifest's number.
  if (status.ok()) manifest_ = std::strtoull(NameHere(from).c_str(), nullptr, 10);
  return status;
}

IOStatus OwnedFiles::LinkFile(const std::string& from, const std::string& to,
                              const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) {
  const IOStatus status = Checked();
  return status.ok() ? target()->LinkFile(from, to, options, debug) : status;
}

}  // namespace sok
