// A record of a journal is read again whatever the stack held when it was written.
#include "core/disk/journal.h"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/disk/journal_reader.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sok {
namespace {

constexpr uint64_t kStorage = 7;

using Image = std::array<unsigned char, sizeof(XXH3_state_t)>;

// Returns the bytes of a state of the seed that has a secret of another one.
Image StateOf(uint64_t seed) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset_withSeed(&state, seed);
  std::memset(state.customSecret, 0x5a, sizeof(state.customSecret));
  Image image;
  std::memcpy(image.data(), &state, sizeof(state));
  return image;
}

// Leaves such bytes all over the stack below the caller, `phase` times the alignment of a state
// later than at a multiple of its size.
__attribute__((noinline)) void DirtyStack(const Image& image, size_t phase) {
  alignas(XXH3_state_t) volatile unsigned char stack[size_t{64} << 10];
  size_t from = image.size() - phase * alignof(XXH3_state_t);
  for (volatile unsigned char& byte : stack) byte = image[from++ % image.size()];
}

}  // namespace

TEST_CASE("a record of a journal has a right checksum whatever the stack held before") {
  const std::vector<float> row(64, 1.0f);
  const Image image = StateOf(1);
  for (size_t phase = 0; phase < sizeof(XXH3_state_t) / alignof(XXH3_state_t); ++phase) {
    const TestFolder folder;
    Journal journal(folder / ".", kStorage, 1);
    RowHeader header = {};
    header.version = RowHeader::kVersion;
    header.dim = 64;
    std::vector<RowBatch> rows(1);
    for (Key key = 0; key < 100; ++key) rows[0].Put(RowKey(0, key), header, row.data(), row.size());
    auto room = journal.Reserve(rows[0].bytes());
    REQUIRE(room.ok());
    const NamedValues named = {{"group/000", "text"}};
    Journal::Room taken = std::move(room.value());
    DirtyStack(image, phase);
    const Status written = journal.Append(std::move(taken), named, rows);
    REQUIRE(written.ok());
    const auto reader = JournalReader::Open(folder / ".", kStorage, 0);
    CHECK(reader.status().message() == "");
    if (reader.ok()) CHECK(reader.value()->places().size() == 100);
  }
}

}  // namespace sok
