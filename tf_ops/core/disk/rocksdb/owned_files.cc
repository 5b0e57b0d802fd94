#include "core/disk/rocksdb/owned_files.h"

#include <utility>

#include "core/base/status_macros.h"

namespace sok {

using rocksdb::IOStatus;

OwnedFiles::OwnedFiles(std::string path, std::shared_ptr<FolderClaim> claim)
    : current_(std::move(path) + "/CURRENT"), claim_(std::move(claim)), mark_(Look()) {}

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
  if (Look() == mark_) return Status();
  return Status(Code::kUnavailable,
                "the storage was changed by another program while this process has it open: '" +
                    current_ +
                    "' is not the file any more that this process has written; nothing is written "
                    "from here on, so that what the other has written stays whole, and what is in "
                    "memory can still be looked up: save what you need of it, then end this "
                    "process, look for the other program, and open the storage again");
}

IOStatus OwnedFiles::Checked() {
  const Status status = Check();
  return status.ok() ? IOStatus::OK() : IOStatus::IOError(status.message());
}

IOStatus OwnedFiles::NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                     std::unique_ptr<rocksdb::FSWritableFile>* result,
                                     rocksdb::IODebugContext* debug) {
  const IOStatus status = Checked();
  return status.ok() ? DatabaseFiles::NewWritableFile(name, options, result, debug) : status;
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
  const IOStatus status = Checked();
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
  return status;
}

IOStatus OwnedFiles::LinkFile(const std::string& from, const std::string& to,
                              const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) {
  const IOStatus status = Checked();
  return status.ok() ? target()->LinkFile(from, to, options, debug) : status;
}

}  // namespace sok
