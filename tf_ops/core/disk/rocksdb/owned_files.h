// The files of a database, which can be changed only while this process owns the folder.
#pragma once

#include <rocksdb/file_system.h>
#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/status.h"
#include "core/disk/open_folders.h"
#include "core/disk/rocksdb/database_files.h"
#include "core/disk/written_note.h"

namespace sok {

// RocksDB finds its files by their paths, also in its own threads and when it closes. If another
// folder has been moved to the path, or another process writes to the folder, RocksDB would remove
// and replace files of others. So every call that makes, renames or removes a file checks this
// first, and fails. How far logs and manifests have been written is noted. Thread-safe.
class OwnedFiles final : public DatabaseFiles {
 public:
  OwnedFiles(std::string path, std::shared_ptr<FolderClaim> claim,
             std::shared_ptr<WrittenNote> note);
  const char* Name() const override { return "sok_embed.owned_files"; }

  // Returns success while the folder, its lock and its CURRENT file, which names the manifest,
  // belong to this process. Errors: those of FolderClaim::Check, kUnavailable for another CURRENT.
  Status Check();
  // Has every later call that changes files fail with this error: what RocksDB has read of them is
  // not whole. The first error counts.
  void Refuse(Status error);
  // Returns the number of the log that was written to last; 0: none was.
  uint64_t last_log() const { return *last_log_; }
  // Gives the folder up, even if other objects still refer to this one.
  void Release() { claim_->Release(); }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* result,
                                       rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name,
                                      const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSWritableFile>* result,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus LinkFile(const std::string& from, const std::string& to,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override;

 private:
  // The folder's CURRENT as this process has left it.
  struct Mark {
    FolderIdentity file;
    off_t bytes = 0;
    timespec written = {};
    bool operator==(const Mark& other) const;
  };
  Mark Look() const;
  // The part of Check called with mu_ held.
  Status CheckHeld();
  rocksdb::IOStatus Checked();
  // Forgets what is noted of files that are about to go.
  rocksdb::IOStatus Forget(const std::function<bool(const std::string& name)>& gone);
  // Returns the name of a file in the folder, without the folder; empty for files elsewhere.
  std::string NameHere(const std::string& path) const;

  const std::string folder_;
  const std::string current_;
  const std::shared_ptr<FolderClaim> claim_;
  const std::shared_ptr<WrittenNote> note_;
  // Its files may live longer than this object.
  const std::shared_ptr<std::atomic<uint64_t>> last_log_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  std::mutex mu_;  // held while CURRENT is replaced; guards mark_ and refused_
  Mark mark_;
  Status refused_;
  std::atomic<uint64_t> manifest_{
      0};  // the number of the one that CURRENT was made to name; 0: none
};

}  // namespace sok
