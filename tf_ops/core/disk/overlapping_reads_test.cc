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
