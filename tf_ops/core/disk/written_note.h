// Notes how far the files of a folder have been written.
//
// RocksDB and the journal read a file up to the place from which on it cannot be read, and take the
// rest for the end that a kill or a failure of power has torn. Bytes that a call had returned for
// can be damaged, cut off or missing in the same way, and only a note in another place tells one
// from the other. The note is the file "sok-written": see docs/reference/file-formats.md.
//
// A note costs one write of some hundred bytes and no sync. It survives the process. After a
// failure of power it may be older than the files, and says less than it could, but never more:
// a file leaves the note, on the device, before it is removed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "core/base/status.h"

namespace sok {

// Says how far a file has been written.
struct WrittenFile {
  uint64_t bytes = 0;     // that calls had returned for
  uint64_t synced = 0;    // those of them that are on the device
  uint64_t checksum = 0;  // XXH3 of these bytes, for a file whose content is noted; else 0
};

// The note of one folder. Thread-safe.
class WrittenNote {
 public:
  static constexpr char kFileName[] = "sok-written";
  using Files = std::map<std::string, WrittenFile>;  // by their names in the folder

  explicit WrittenNote(std::string folder) : folder_(std::move(folder)) {}
  ~WrittenNote();
  WrittenNote(const WrittenNote&) = delete;

  // Reads the note of the folder. Once the machine has been started again, it has only what was on
  // the device by then. Errors: kDataLoss for a damaged note; those of reading.
  Status Load();
  // Returns true if the folder has a note.
  bool exists() const;
  // Returns the files that are noted.
  Files files() const;

  // Makes the note if there is none, with what has been set so far. Until then Set and Drop only
  // change what is in memory, if the folder had no note.
  Status Start();
  // Notes a file.
  Status Set(const std::string& name, const WrittenFile& file);
  // Forgets the files for whose names `gone` returns true. With `sync` the device has forgotten
  // them, too, once this returns.
  Status Drop(const std::function<bool(const std::string& name)>& gone, bool sync);

 private:
  // Writes the note, if the folder has one. A file that has another name too is left to that: the
  // folder gets one of its own. Called with mu_ held.
  Status Write();
  std::string path() const { return folder_ + "/" + kFileName; }

  const std::string folder_;
  mutable std::mutex mu_;  // guards all below
  Files files_;
  int file_ = -1;
  uint64_t count_ = 0;  // of the last note that was written
  bool started_ = false;
};

}  // namespace sok
