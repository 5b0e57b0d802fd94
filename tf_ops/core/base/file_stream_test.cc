#include "core/base/file_stream.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "core/base/test_folder.h"

namespace sok {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::unique_ptr<FileStream> NewStream(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  REQUIRE(fd >= 0);
  return std::make_unique<FileStream>(fd, path);
}

std::string Bytes(size_t n) {
  std::string bytes(n, 0);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(i * 7 + i / 4099);
  return bytes;
}

TEST_CASE("a stream writes every byte in order, whatever the pieces are") {
  const TestFolder folder;
  int number = 0;
  for (size_t size :
       {size_t{0}, size_t{1}, size_t{4096}, 4 * kMiB, 4 * kMiB + 1, 8 * kMiB, 13 * kMiB + 4095}) {
    const std::string bytes = Bytes(size);
    for (size_t piece : {size_t{999}, size_t{4096}, 5 * kMiB + 3}) {
      const std::string path = folder / std::to_string(number++);
      {
        const auto stream = NewStream(path);
        for (size_t begin = 0; begin < size; begin += piece) {
          REQUIRE(stream->Write(bytes.data() + begin, std::min(piece, size - begin)).ok());
        }
        CHECK(stream->bytes() == size);
        REQUIRE(stream->Finish().ok());
      }
      CHECK(ReadAll(path) == bytes);
    }
  }
}

TEST_CASE("a stream on a full disk says so, at the latest at its end") {
  const TestFolder folder;
  const std::string bytes = Bytes(kMiB);
  for (size_t room : {size_t{100}, 2 * kMiB + 512, 9 * kMiB + 1}) {
    const std::string path = folder / ("full-" + std::to_string(room));
    const auto stream = NewStream(path);
    const FileSizeLimit limit(room);
    Status status;
    for (int i = 0; i < 12 && status.ok(); ++i) status = stream->Write(bytes.data(), bytes.size());
    if (status.ok()) status = stream->Finish();
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(status.message().find("Cannot write byte " + std::to_string(room) + " of " + path) == 0);
  }
}

TEST_CASE("a stream that nobody finishes ends") {
  const TestFolder folder;
  const std::string bytes = Bytes(9 * kMiB);
  const auto stream = NewStream(folder / "left");
  CHECK(stream->Write(bytes.data(), bytes.size()).ok());
}

}  // namespace
}  // namespace sok
