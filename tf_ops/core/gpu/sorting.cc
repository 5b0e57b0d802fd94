#include "core/gpu/sorting.h"

#include <utility>

#include "core/base/status_macros.h"

namespace sok::gpu {
namespace {

uint64_t TilesOf(uint64_t n) { return (n + kTile - 1) / kTile; }

}  // namespace

uint64_t SortCounts(uint64_t n) { return kDigits * TilesOf(n) + kDigits; }

Status SortKernels::Load(const Module& index) {
  const std::pair<void**, const char*> all[] = {
      {&count_digits, "CountDigits"},  {&scan_digits, "ScanDigits"}, {&scan, "Scan"},
      {&move_by_digit, "MoveByDigit"}, {&count_heads, "CountHeads"}, {&write_heads, "WriteHeads"},
      {&cut_chunks, "CutChunks"},
  };
  for (const auto& [function, name] : all) {
    SOK_ASSIGN_OR_RETURN(*function, index.Function(name));
  }
  return Status();
}

Result<int> SortKernels::Sort(const BlockLauncher& launch, const uint32_t* keys,
                              const uint32_t* values, uint64_t n, uint32_t most,
                              const SortMemory& memory) const {
  SortArguments sort{};
  sort.keys = keys;
  sort.values = values;
  sort.n = n;
  sort.most = most;
  sort.counts = memory.counts;
  int sorted = 1;
  for (sort.shift = 0; sort.shift == 0 || (sort.shift < 32 && most >> sort.shift != 0);
       sort.shift += kDigitBits) {
    sorted = 1 - sorted;
    sort.sorted_keys = memory.keys[sorted];
    sort.sorted_values = memory.values[sorted];
    SOK_RETURN_IF_ERROR(launch(count_digits, TilesOf(n), &sort));
    SOK_RETURN_IF_ERROR(launch(scan_digits, kDigits, &sort));
    SOK_RETURN_IF_ERROR(launch(move_by_digit, TilesOf(n), &sort));
    sort.keys = sort.sorted_keys;
    sort.values = sort.sorted_values;
  }
  return sorted;
}

Status SortKernels::Segment(const BlockLauncher& launch, const SegmentArguments& arguments) const {
  const uint64_t tiles = TilesOf(arguments.n);
  SOK_RETURN_IF_ERROR(launch(count_heads, tiles, &arguments));
  const ScanArguments all{arguments.counts, tiles};
  SOK_RETURN_IF_ERROR(launch(scan, 1, &all));
  return launch(write_heads, tiles, &arguments);
}

}  // namespace sok::gpu
