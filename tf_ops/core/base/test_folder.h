// Files for tests, and disks that are full.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/status.h"

namespace sok {

// For as long as this lives, no file of this process grows beyond some bytes, as on a disk that is
// full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

// Makes a new folder in the system's folder for temporary files. It is removed, with its contents,
// when the object is destroyed.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sok_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  size_t CountFiles() const {
    const std::filesystem::directory_iterator files(path_);
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

 private:
  std::filesystem::path path_;
};

// Returns size and time of every file of a folder, by name.
inline auto ListingOf(const std::string& path) {
  std::map<std::string, std::pair<uint64_t, std::filesystem::file_time_type>> listing;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    std::error_code gone;
    const uint64_t bytes = entry.file_size(gone);
    listing[entry.path().string()] = {bytes, entry.last_write_time(gone)};
  }
  return listing;
}

// Copies a folder without folders in it as it was at one moment. RocksDB compacts in the
// background, so files that are copied one after another belong to one moment only if none of them
// changed meanwhile; otherwise they are copied again.
inline void CopyOfOneMoment(const std::string& from, const std::string& to) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::error_code gone;
    const auto before = ListingOf(from);
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive, gone);
    if (!gone && ListingOf(from) == before) return;
  }
  FAIL("the folder changed while it was copied, 1,000 times");
}

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

inline void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(out.flush());
}

inline bool Contains(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

}  // namespace sok
