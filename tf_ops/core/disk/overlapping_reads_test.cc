#include "core/disk/overlapping_reads.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "core/base/page_memory.h"
#include "core/base/test_folder.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

std::string RandomBytes(size_t n, std::mt19937_64* rng) {
  std::string bytes(n, '\0');
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>((*rng)()); });
  return bytes;
}

}  // namespace

TEST_CASE("many places of a file are read at once, from the system's cache and from the device") {
  std::mt19937_64 rng(TestSeed());
  const TestFolder folder;
  const std::string path = folder / "file";
  const std::string bytes = RandomBytes(1'000'003, &rng);
  std::ofstream(path, std::ios::binary) << bytes;

  const auto file = OverlappingReads::Open(path);
  REQUIRE(file != nullptr);
  for (int round = 0; round < 50; ++round) {
    if (round % 2 == 0) {  // a tmpfs keeps what it has
      const int descriptor = open(path.c_str(), O_RDONLY);
      fsync(descriptor);
      posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
      close(descriptor);
    }
    std::vector<OverlappingReads::Request> requests;
    std::vector<std::string> read;
    for (size_t left = rng() % 40; left > 0; --left) {
      const size_t size = 1 + rng() % 9'000;
      const size_t near_end = bytes.size() - rng() % size;
      read.emplace_back(size, '\0');
      requests.push_back({rng() % 10 == 0 ? near_end : rng() % bytes.size(), size, nullptr});
    }
    for (size_t i = 0; i < read.size(); ++i) requests[i].to = read[i].data();
    file->Read(requests.data(), requests.size());
    for (const auto& request : requests) {
      REQUIRE(request.error == 0);
      const std::string expected = bytes.substr(request.offset, request.size);
      REQUIRE(std::string(request.to, request.read) == expected);
    }
  }
  char rest[16];
  OverlappingReads::Request behind{bytes.size() + 5, sizeof(rest), rest};
  file->Read(&behind, 1);
  CHECK((behind.read == 0 && behind.error == 0));
}

TEST_CASE("long pieces of whole pages are read past the cache, and whole at the file's end") {
  std::mt19937_64 rng(TestSeed());
  const TestFolder folder;
  const std::string path = folder / "file";
  const std::string bytes = RandomBytes(3'000'003, &rng);
  std::ofstream(path, std::ios::binary) << bytes;
  const auto file = OverlappingReads::Open(path);
  REQUIRE(file != nullptr);
  const PageBuffer to(size_t{2} << 20, /*huge_pages=*/false);
  for (int round = 0; round < 40; ++round) {
    const int descriptor = open(path.c_str(), O_RDONLY);
    fsync(descriptor);
    // Every fourth time all of it is in the cache, else what the reads before have left there.
    posix_fadvise(descriptor, 0, 0, round % 4 == 0 ? POSIX_FADV_WILLNEED : POSIX_FADV_DONTNEED);
    close(descriptor);
    const size_t page = 4096;
    const size_t off_the_page = round % 5 == 0 ? 512 : 0;
    const size_t offset = rng() % (bytes.size() / page) * page + off_the_page;
    const size_t size = (size_t{64} + rng() % 400) * page;
    OverlappingReads::Request requests[] = {{offset, size, to.data()}, {7, 5, to.data() + size}};
    file->Read(requests, 1 + round % 2);
    REQUIRE(requests[0].error == 0);
    REQUIRE(std::string(to.data(), requests[0].read) == bytes.substr(offset, size));
    if (round % 2 == 1) CHECK(std::string(to.data() + size, 5) == bytes.substr(7, 5));
  }
}

TEST_CASE("a place that cannot be read has an error, and a file that is not there is not opened") {
  const TestFolder folder;
  CHECK(OverlappingReads::Open(folder / "none") == nullptr);
  CHECK(errno == ENOENT);
  const auto file = OverlappingReads::Open(folder / ".");  // opens, and has no bytes to be read
  REQUIRE(file != nullptr);
  char to[2][8];
  OverlappingReads::Request requests[] = {{0, 8, to[0]}, {8, 8, to[1]}};
  file->Read(requests, 2);
  for (const auto& request : requests) CHECK(request.error == EISDIR);
}

}  // namespace sok
