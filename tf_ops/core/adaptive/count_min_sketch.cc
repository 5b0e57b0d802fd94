#include "core/adaptive/count_min_sketch.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/policies/chunk_format.h"

namespace sok {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "cells are copied as they lie in memory");

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
// The keys of a bucket have equal bits of one hash, so another hash chooses their cells.
constexpr uint64_t kSalt = 0xd1b54a32d192ed03ull;
constexpr size_t kHugeFrom = 2 << 20;                // bytes
constexpr uint64_t kLargestRow = UINT64_C(1) << 32;  // cells

constexpr std::string_view kMagic = "SOKC";
constexpr uint32_t kVersion = 1;
constexpr size_t kVersionAt = 4;
constexpr size_t kGroupsAt = 8;
constexpr size_t kCellsPerGroupAt = 16;
constexpr size_t kCellBitsAt = 24;
constexpr size_t kChecksumAt = 28;
constexpr size_t kCellsAt = 36;

// Maps `random` to a number below `bound`: Lemire 2019, "Fast random integer generation in an
// interval", without its rejection, whose bias is bound / 2^32.
uint64_t Below(uint32_t random, uint64_t bound) { return random * bound >> 32; }

uint64_t MachineBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string Text(const SketchConfig& config) {
  return std::to_string(config.buckets) + " buckets of " + std::to_string(config.cells_per_bucket) +
         " cells of " + std::to_string(config.cell_bits) + " bits";
}

Status NoMemory(const SketchConfig& config) {
  return Status(Code::kResourceExhausted,
                "Expected a count-min sketch that fits into memory, " +
                    std::to_string(MachineBytes()) + " bytes in all. Received: " + Text(config) +
                    ". Lower the sketch's capacity, the bits of its counters or the number of "
                    "static buckets.");
}

Status Check(const SketchConfig& config) {
  if (config.buckets < 1) {
    return InvalidArgument(
        "Expected a count-min sketch of at least 1 bucket. Received: 0. Give the number of static "
        "buckets here.");
  }
  if (config.cells_per_bucket < CountMinSketch::kRows ||
      config.cells_per_bucket % CountMinSketch::kRows != 0 ||
      config.cells_per_bucket / CountMinSketch::kRows > kLargestRow) {
    return InvalidArgument("Expected cells_per_bucket to be a positive multiple of " +
                           std::to_string(CountMinSketch::kRows) + ", at most " +
                           std::to_string(CountMinSketch::kRows * kLargestRow) +
                           ". Received: " + std::to_string(config.cells_per_bucket) +
                           ". CellsPerBucket gives it for a capacity.");
  }
  if (config.cell_bits != 8 && config.cell_bits != 16) {
    return InvalidArgument(
        "Expected cells of 8 or 16 bits. Received: " + std::to_string(config.cell_bits) + ".");
  }
  const uint64_t cell_bytes = static_cast<uint64_t>(config.cell_bits) / 8;
  if (config.buckets > MachineBytes() / cell_bytes / config.cells_per_bucket)
    return NoMemory(config);
  return Status();
}

Status Damaged(const std::string& expected, const std::string& received) {
  return Status(Code::kDataLoss, "Expected the count-min sketch to " + expected + ". Received: " +
                                     received + ". Restore the saved table from a copy.");
}

}  // namespace

Result<std::unique_ptr<CountMinSketch>> CountMinSketch::Make(const SketchConfig& config) {
  SOK_RETURN_IF_ERROR(Check(config));
  const size_t bytes =
      config.buckets * config.cells_per_bucket * static_cast<uint64_t>(config.cell_bits) / 8;
  PageBuffer memory(bytes, bytes >= kHugeFrom);
  if (memory.data() == nullptr) return NoMemory(config);
  return std::unique_ptr<CountMinSketch>(new CountMinSketch(config, std::move(memory)));
}

CountMinSketch::CountMinSketch(const SketchConfig& config, PageBuffer memory)
    : config_(config), row_cells_(config.cells_per_bucket / kRows), memory_(std::move(memory)) {}

uint64_t CountMinSketch::CellsPerBucket(uint64_t capacity, uint64_t all_buckets) {
  // There are eight cells a key, and eight more a bucket, because keys do not spread evenly: see
  // the header.
  constexpr uint64_t kCellsPerKey = 8, kMore = 8, kLargest = UINT64_C(1) << 56;
  const uint64_t cells = std::min(capacity, kLargest) * kCellsPerKey;
  const uint64_t share = cells / all_buckets + (cells % all_buckets != 0) + kMore;
  return (share + kRows - 1) / kRows * kRows;
}

template <typename Fn>
void CountMinSketch::WithCell(const Fn& fn) const {
  if (config_.cell_bits == 8) {
    fn(static_cast<uint8_t*>(nullptr));
  } else {
    fn(static_cast<uint16_t*>(nullptr));
  }
}

template <typename Cell>
void CountMinSketch::FindCells(Key key, uint32_t bucket, Cell** cells) const {
  // Each of two independent outputs of SplitMix64 gives the cells of two rows.
  const uint64_t hash = Mix64(key + kSalt);
  const uint64_t random[] = {hash, Mix64(hash + kGolden)};
  Cell* row = reinterpret_cast<Cell*>(memory_.data()) + bucket * config_.cells_per_bucket;
  for (uint64_t r = 0; r < kRows; ++r, row += row_cells_) {
    cells[r] = row + Below(static_cast<uint32_t>(random[r / 2] >> (r % 2 * 32)), row_cells_);
    __builtin_prefetch(cells[r]);
  }
}

template <typename Cell, typename Fn>
void CountMinSketch::ForEachKey(const Key* keys, const uint32_t* buckets, size_t n,
                                const Fn& fn) const {
  constexpr size_t kAhead = 64;
  Cell* cells[kAhead][kRows];
  for (size_t begin = 0; begin < n; begin += kAhead) {
    const size_t end = std::min(n, begin + kAhead);
    for (size_t i = begin; i < end; ++i) FindCells(keys[i], buckets[i], cells[i - begin]);
    for (size_t i = begin; i < end; ++i) fn(i, cells[i - begin]);
  }
}

void CountMinSketch::Estimate(const Key* keys, const uint32_t* buckets, size_t n,
                              uint32_t* estimates) const {
  WithCell([&](auto* type) {
    using Cell = std::remove_pointer_t<decltype(type)>;
    ForEachKey<Cell>(keys, buckets, n, [&](size_t i, Cell* const* cells) {
      estimates[i] = std::min(std::min(*cells[0], *cells[1]), std::min(*cells[2], *cells[3]));
    });
  });
}

void CountMinSketch::Add(const Key* keys, const uint32_t* buckets, const uint32_t* counts, size_t n,
                         uint32_t* estimates) {
  Estimate(keys, buckets, n, estimates);
  for (size_t i = 0; i < n; ++i) estimates[i] += std::min(counts[i], max() - estimates[i]);
  WithCell([&](auto* type) {
    using Cell = std::remove_pointer_t<decltype(type)>;
    ForEachKey<Cell>(keys, buckets, n, [&](size_t i, Cell* const* cells) {
      const auto estimate = static_cast<Cell>(estimates[i]);
      for (uint64_t r = 0; r < kRows; ++r) *cells[r] = std::max(*cells[r], estimate);
    });
  });
}

void CountMinSketch::Halve(const ParallelFor& parallel_for) {
  constexpr int64_t kBlock = 4096;  // cells; halving them takes a microsecond or less
  const auto total = static_cast<int64_t>(cells());
  WithCell([&](auto* type) {
    using Cell = std::remove_pointer_t<decltype(type)>;
    auto* const all = reinterpret_cast<Cell*>(memory_.data());
    parallel_for((total + kBlock - 1) / kBlock, 500, [&](int64_t begin, int64_t end) {
      Cell* const last = all + std::min(total, end * kBlock);
      for (Cell* cell = all + begin * kBlock; cell < last; ++cell) {
        *cell = static_cast<Cell>(*cell >> 1);
      }
    });
  });
}

double CountMinSketch::Saturation() const {
  uint64_t saturated = 0;
  WithCell([&](auto* type) {
    using Cell = std::remove_pointer_t<decltype(type)>;
    const auto* const all = reinterpret_cast<const Cell*>(memory_.data());
    saturated = static_cast<uint64_t>(std::count(all, all + cells(), static_cast<Cell>(max())));
  });
  return static_cast<double>(saturated) / static_cast<double>(cells());
}

std::string CountMinSketch::Header(std::string_view cells) const {
  std::string header(kMagic);
  AppendLittleEndian(&header, kVersion, 4);
  AppendLittleEndian(&header, config_.buckets, 8);
  AppendLittleEndian(&header, config_.cells_per_bucket, 8);
  AppendLittleEndian(&header, static_cast<uint64_t>(config_.cell_bits), 4);
  const uint64_t seed = Checksum(header.data(), header.size(), 0);
  AppendLittleEndian(&header, Checksum(cells.data(), cells.size(), seed), 8);
  return header;
}

std::string CountMinSketch::Dump() const {
  const std::string_view cells(memory_.data(), cells_bytes());
  std::string dump;
  dump.reserve(kCellsAt + cells.size());
  dump.append(Header(cells)).append(cells);
  return dump;
}

Status CountMinSketch::Load(std::string_view dump) {
  if (dump.size() < kCellsAt) {
    return Damaged("have a header of " + std::to_string(kCellsAt) + " bytes",
                   std::to_string(dump.size()) + " bytes");
  }
  if (dump.substr(0, kMagic.size()) != kMagic) return Damaged("begin with \"SOKC\"", "other bytes");
  const uint64_t version = ReadLittleEndian(dump.data() + kVersionAt, 4);
  if (version != kVersion) {
    return InvalidArgument("Expected a count-min sketch of format version " +
                           std::to_string(kVersion) + ". Received: version " +
                           std::to_string(version) +
                           ". Open it with the release that saved it, or a later one.");
  }
  // The checksum is checked before the config, so that a damaged sketch is not reported as one of
  // another config.
  const std::string_view cells = dump.substr(kCellsAt);
  const uint64_t seed = Checksum(dump.data(), kChecksumAt, 0);
  if (ReadLittleEndian(dump.data() + kChecksumAt, 8) !=
      Checksum(cells.data(), cells.size(), seed)) {
    return Damaged("match its checksum", "changed bytes");
  }
  const SketchConfig saved = {ReadLittleEndian(dump.data() + kGroupsAt, 8),
                              ReadLittleEndian(dump.data() + kCellsPerGroupAt, 8),
                              static_cast<int>(ReadLittleEndian(dump.data() + kCellBitsAt, 4))};
  if (saved.buckets != config_.buckets || saved.cells_per_bucket != config_.cells_per_bucket ||
      saved.cell_bits != config_.cell_bits) {
    return InvalidArgument("Expected a count-min sketch of " + Text(config_) +
                           ". Received: " + Text(saved) +
                           ". Open it with the static_buckets, sketch_capacity and counter_bits "
                           "that it was saved with.");
  }
  if (cells.size() != cells_bytes()) {
    return Damaged("have " + std::to_string(cells_bytes()) + " bytes of cells",
                   std::to_string(cells.size()) + " bytes");
  }
  std::memcpy(memory_.data(), cells.data(), cells.size());
  return Status();
}

}  // namespace sok
