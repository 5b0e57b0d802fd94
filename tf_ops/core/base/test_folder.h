// Files for tests, and disks that are full.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/dump/dump_file.h"

namespace sok {

// As long as it lives, no file of this process grows beyond some bytes: a disk that is full.
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

// A new folder under the system's one for temporary files; goes with all that is in it.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sok_dump_XXXXXX").string();
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

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(out.flush());
}

inline bool Contains(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

struct TestRow {
  Key key;
  uint32_t update_num, update_time;
  std::vector<uint32_t> bits;  // of the floats
  bool operator==(const TestRow& other) const {
    return key == other.key && update_num == other.update_num && update_time == other.update_time &&
           bits == other.bits;
  }
};

struct TestGroup {
  DumpGroup group;
  std::vector<TestRow> rows;
};

// Any bits: NaN, infinities and denormal numbers are among the floats.
inline TestGroup RandomGroup(std::mt19937_64& random, DumpGroup group, size_t rows) {
  TestGroup made{std::move(group), {}};
  made.group.rows = rows;
  for (size_t i = 0; i < rows; ++i) {
    TestRow row{random(), static_cast<uint32_t>(random()), static_cast<uint32_t>(random()), {}};
    row.bits.resize(static_cast<size_t>(made.group.dim + made.group.slot_floats));
    for (uint32_t& bits : row.bits) bits = static_cast<uint32_t>(random());
    made.rows.push_back(std::move(row));
  }
  return made;
}

inline Status AddTestRow(DumpWriter& writer, const TestRow& row) {
  return writer.AddRow(row.key, row.update_num, row.update_time,
                       reinterpret_cast<const float*>(row.bits.data()));
}

inline Status WriteDump(const std::string& path, const std::vector<TestGroup>& groups) {
  auto writer = DumpWriter::Open(path);
  if (!writer.ok()) return writer.status();
  for (const TestGroup& group : groups) {
    if (Status s = writer.value()->BeginGroup(group.group); !s.ok()) return s;
    for (const TestRow& row : group.rows) {
      if (Status s = AddTestRow(*writer.value(), row); !s.ok()) return s;
    }
  }
  return writer.value()->Finish();
}

// Open, then Verify.
inline Status CheckDump(const std::string& path) {
  const auto reader = DumpReader::Open(path);
  return reader.ok() ? reader.value()->Verify() : reader.status();
}

}  // namespace sok
