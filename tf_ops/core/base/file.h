// Two kinds of files: one is read at offsets, the other takes the place of an older file when it is
// complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace sok {

// Returns the Status of a failed system call: "Cannot <verb> <path>: <the system's words>. <what to
// do>." Its code is kNotFound, kPermissionDenied, kResourceExhausted (disk, quota, file size limit,
// descriptors, memory), kInvalidArgument (a folder, a name that is too long), or kInternal, as
// where the device failed. It is never kDataLoss, which says that what a file holds was read and is
// damaged.
Status SystemError(int error, const std::string& verb, const std::string& path);

// Flushes the contents of a file to the device.
Status SyncFile(const std::string& path);

// Flushes the names in a folder to the device. `verb` is used in the error: "Cannot <verb>
// <folder>".
Status SyncFolder(const std::string& folder,
                  const std::string& verb = "bring to the device the folder");

// Memory for one block; data() is null if the system has none.
class FileBuffer {
 public:
  FileBuffer() = default;
  // Makes the buffer of another size. It is not filled, and contents are lost if the size grows.
  bool Reserve(size_t size);
  char* data() { return bytes_.get(); }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t size_ = 0;
};

Status OutOfMemory(size_t bytes, const std::string& path);

// A regular file open for reading. It stays the same file if another takes its name. Thread-safe.
class InputFile {
 public:
  // Opens a file. Errors: kInvalidArgument if path is not a regular file; otherwise as SystemError
  // returns.
  static Result<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Reads exactly size bytes. Errors: kDataLoss if the file ends before.
  Status ReadAt(uint64_t offset, void* out, size_t size) const;

  // Returns the length that the file had at Open.
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  InputFile(int fd, uint64_t bytes, std::string path)
      : fd_(fd), bytes_(bytes), path_(std::move(path)) {}

  const int fd_;
  const uint64_t bytes_;
  const std::string path_;
};

// A file that replaces another. It is written under a temporary name in path's folder,
// "<name>.tmp-<process>-<random>"; Commit gives it the name path, and until then nothing at path
// has changed. If the process is killed, the temporary file remains until the next Open for the
// same path; in all other cases it is removed. One thread may use it at a time.
class ReplacementFile {
 public:
  // A regular file may exist at path; a symbolic link there will itself be replaced, not what it
  // points to. Errors: kInvalidArgument if path is a folder, a device or a pipe.
  static Result<std::unique_ptr<ReplacementFile>> Open(const std::string& path);
  // Removes the temporary file, unless committed.
  ~ReplacementFile() { Discard(); }
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  // Appends all bytes, or returns an error; after an error the temporary file is useless.
  Status Write(const void* bytes, size_t size) { return WriteAt(bytes_, bytes, size); }
  // Writes all bytes at an offset. Bytes before it that were never written are 0.
  Status WriteAt(uint64_t offset, const void* bytes, size_t size);

  // Flushes the bytes to the device, renames the file to its path, and flushes the folder.
  Status Commit();

  // Closes and removes the temporary file. Does nothing after Commit.
  void Discard();

  // Returns the offset behind the last byte that was written.
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  ReplacementFile(int fd, std::string temporary, std::string path)
      : fd_(fd), temporary_(std::move(temporary)), path_(std::move(path)) {}

  int fd_;
  std::string temporary_;  // empty once there is none
  const std::string path_;
  uint64_t bytes_ = 0;
};

}  // namespace sok
