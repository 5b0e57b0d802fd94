// The layout of a sok-embed dump, version 1: little-endian, without padding.
// docs/reference/dump-format.md has the same as tables.
//
//   header  magic[8] u32 version, u32 header_bytes, u64 checksum of the 16 bytes before
//   block*  u32 group, u32 rows, u64 payload_bytes, payload, u64 checksum of all that
//   index   u32 groups, then of each: u32 group, dim, slot_floats, meta_bytes, u64 rows, meta
//   footer  u64 index_offset, file_bytes, rows, u64 checksum from index_offset to here,
//   end_magic[8]
//
// A payload holds its rows by column: u64 keys, u32 update_nums, u32 update_times, then float32
// (rows, dim + slot_floats). Groups ascend; the blocks of a group are adjacent, and each except the
// last has RowsPerBlock rows. So the index alone determines the place of every block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace sok::dump {

#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "numbers are copied as they lie in memory; a big-endian machine must swap them");
#endif

constexpr char kMagic[] = "SOKDUMP\n";
constexpr char kEndMagic[] = "SOKDEND\n";
constexpr size_t kMagicBytes = 8;
constexpr uint32_t kVersion = 1;

constexpr uint64_t kChecksumBytes = 8;
constexpr uint64_t kHeaderBytes = 24;
constexpr uint64_t kBlockHeadBytes = 16;
constexpr uint64_t kBlockFrameBytes = kBlockHeadBytes + kChecksumBytes;
constexpr uint64_t kIndexEntryBytes = 24;  // without the meta
constexpr uint64_t kFooterBytes = 40;

constexpr int kGroups = 256;
constexpr int kMaxDim = 1 << 20;
constexpr int kMaxSlotFloats = 8 << 20;
constexpr uint32_t kMaxMetaBytes = 1 << 20;
constexpr uint64_t kMaxPayloadBytes = 1 << 20;  // unless a single row is longer

constexpr uint64_t kRowMetaBytes = 16;  // key, update_num, update_time

constexpr uint64_t RowBytes(int dim, int slot_floats) {
  return kRowMetaBytes + 4 * (static_cast<uint64_t>(dim) + static_cast<uint64_t>(slot_floats));
}

constexpr uint64_t RowsPerBlock(uint64_t row_bytes) {
  return row_bytes > kMaxPayloadBytes ? 1 : kMaxPayloadBytes / row_bytes;
}

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void Store(char* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

}  // namespace sok::dump
