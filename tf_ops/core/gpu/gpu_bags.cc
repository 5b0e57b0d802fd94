#include "core/gpu/gpu_bags.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "core/gpu/programs.h"

namespace sok::gpu {
namespace {

// The most values in a round of a dense gradient. Each takes 25 bytes.
constexpr uint64_t kRoundValues = uint64_t{1} << 23;

uint64_t BytesOf(Element element) {
  return element == Element::kFloat64 ? 8 : element == Element::kFloat32 ? 4 : 2;
}

std::string TextOf(const BagFault& fault) {
  const std::string value = std::to_string(fault.value), limit = std::to_string(fault.limit),
                    place = std::to_string(fault.place);
  switch (fault.kind) {
    case BagFaultKind::kId:
      return "expected ids in [0, " + limit + "), got " + value + " at position " + place;
    case BagFaultKind::kFirstOffset:
      return "expected the first offset to be 0, got " + value;
    case BagFaultKind::kOffset:
      return "expected offsets that do not decrease and are at most the number of ids, got " +
             value + " after " + limit + " at position " + place;
    case BagFaultKind::kLastOffset:
      return "expected the last offset to be " + limit + ", the number of ids, got " + value;
    default:
      return "expected winners of the forward pass, got " + value + " at position " + place;
  }
}

}  // namespace

// Memory for the values of a round.
struct GpuBags::Sorting {
  SortMemory memory{};
  uint32_t *starts, *segments, *first_chunk, *chunk_count;
  Chunk* chunks;
  uint64_t most_chunks;
  void* chunk_sums;
  double* wide = nullptr;  // (n) values of float64

  static Result<Sorting> Make(uint64_t n, bool is_wide, const TakeMemory& take) {
    Sorting s{};
    s.most_chunks = n / kLong + n / kChunk + 1;
    const auto get = [&take](auto** pointer, uint64_t bytes) -> Status {
      SOK_ASSIGN_OR_RETURN(const DeviceAddress address, take(std::max<uint64_t>(bytes, 1)));
      *pointer =
          Pointer<std::remove_pointer_t<std::remove_reference_t<decltype(*pointer)>>>(address);
      return Status();
    };
    for (int i = 0; i < 2; ++i) {
      SOK_RETURN_IF_ERROR(get(&s.memory.keys[i], n * sizeof(uint32_t)));
      SOK_RETURN_IF_ERROR(get(&s.memory.values[i], n * sizeof(uint32_t)));
    }
    SOK_RETURN_IF_ERROR(get(&s.memory.counts, SortCounts(n) * sizeof(uint32_t)));
    SOK_RETURN_IF_ERROR(get(&s.starts, (n + 1) * sizeof(uint32_t)));
    SOK_RETURN_IF_ERROR(get(&s.first_chunk, n * sizeof(uint32_t)));
    SOK_RETURN_IF_ERROR(get(&s.segments, 2 * sizeof(uint32_t)));
    s.chunk_count = s.segments + 1;
    SOK_RETURN_IF_ERROR(get(&s.chunks, s.most_chunks * sizeof(Chunk)));
    SOK_RETURN_IF_ERROR(get(&s.chunk_sums, s.most_chunks * sizeof(double)));
    if (is_wide) SOK_RETURN_IF_ERROR(get(&s.wide, n * sizeof(double)));
    return s;
  }
};

Result<GpuBags*> GpuBags::Of(int ordinal) {
  // They are not deleted when the process ends, since the driver may have ended before.
  static std::map<int, GpuBags*>& made = *new std::map<int, GpuBags*>();
  static std::mutex mu;
  const std::lock_guard<std::mutex> lock(mu);
  GpuBags*& of_gpu = made[ordinal];
  if (of_gpu != nullptr) return of_gpu;
  SOK_ASSIGN_OR_RETURN(auto device, Device::Open(ordinal));
  std::unique_ptr<GpuBags> bags(new GpuBags(std::move(device)));
  SOK_RETURN_IF_ERROR(bags->Open());
  return of_gpu = bags.release();
}

Status GpuBags::Open() {
  SOK_ASSIGN_OR_RETURN(index_, LoadProgram(device_, "index", {}));
  SOK_ASSIGN_OR_RETURN(bags_, LoadProgram(device_, "bags", {0, "", /*fuses=*/false}));
  SOK_RETURN_IF_ERROR(sort_.Load(*index_));
  const std::pair<void**, const char*> all[] = {
      {&forward_, "BagForward"}, {&counts_, "BagCounts"}, {&values_, "BagValues"},
      {&chunks_, "BagChunks"},   {&sums_, "BagSums"},     {&narrow_, "BagNarrow"},
      {&scales_, "BagScales"},
  };
  for (const auto& [function, name] : all) {
    SOK_ASSIGN_OR_RETURN(*function, bags_->Function(name));
  }
  SOK_RETURN_IF_ERROR(fault_is_taken_.Reserve(device_, sizeof(uint32_t)));
  SOK_RETURN_IF_ERROR(device_->Fill(fault_is_taken_.address(), 0, sizeof(uint32_t), nullptr));
  SOK_RETURN_IF_ERROR(device_->Synchronize(nullptr));
  // The GPU writes to memory of the host that the driver has allocated.
  void* memory = nullptr;
  const Driver& driver = device_->driver();
  SOK_RETURN_IF_ERROR(device_->Call(
      "cuMemAllocHost", [&] { return driver.MemAllocHost(&memory, sizeof(BagFault)); }));
  fault_ = new (memory) BagFault{BagFaultKind::kNone, 0, 0, 0};
  return Status();
}

Status GpuBags::TakeFault(Stream stream) {
  auto* const kind = reinterpret_cast<uint32_t*>(&fault_->kind);
  if (__atomic_load_n(kind, __ATOMIC_ACQUIRE) == 0) return Status();
  static std::mutex mu;
  const std::lock_guard<std::mutex> lock(mu);
  if (__atomic_load_n(kind, __ATOMIC_ACQUIRE) == 0) return Status();
  const BagFault found = *fault_;
  __atomic_store_n(kind, 0, __ATOMIC_RELEASE);
  SOK_RETURN_IF_ERROR(device_->Fill(fault_is_taken_.address(), 0, sizeof(uint32_t), stream));
  return InvalidArgument(TextOf(found) + ". It was in this or an earlier call on GPU " +
                         std::to_string(device_->ordinal()) +
                         ", which is told later since nothing waits for a GPU; the vectors of such "
                         "bags are NaN");
}

Status GpuBags::Check(Stream stream) {
  SOK_RETURN_IF_ERROR(device_->Synchronize(stream));
  return TakeFault(stream);
}

BagInputs GpuBags::InputsOf(const GpuBatch& batch) const {
  BagInputs in{};
  in.positions = batch.positions.arithmetic();
  in.ids = Pointer<void>(batch.ids);
  in.offsets = Pointer<void>(batch.offsets);
  in.entries = batch.entries;
  in.bags = batch.bags;
  in.width = batch.width;
  in.num_embeddings = batch.num_embeddings;
  in.padding = batch.padding;
  in.wide_ids = batch.wide_ids;
  in.wide_offsets = batch.wide_offsets;
  in.ends = batch.ends;
  in.is_mean = batch.mode == BagMode::kMean;
  in.is_max = batch.mode == BagMode::kMax;
  in.fault_is_taken = Pointer<uint32_t>(fault_is_taken_.address());
  in.fault = fault_;
  return in;
}

Status GpuBags::Launch(void* kernel, uint64_t items, const void* argument, Stream stream) const {
  return device_->LaunchBlocks(kernel, (items + 255) / 256, argument, stream);
}

Status GpuBags::Forward(const GpuBatch& batch, const GpuFloats& weight, const GpuFloats& out,
                        DeviceAddress winners, Stream stream) {
  SOK_RETURN_IF_ERROR(TakeFault(stream));
  BagForwardArguments a{};
  a.bags = InputsOf(batch);
  a.weight = Pointer<void>(weight.address);
  a.scales = Pointer<void>(batch.scales);
  a.out = Pointer<void>(out.address);
  a.winners = batch.mode == BagMode::kMax ? Pointer<int64_t>(winners) : nullptr;
  a.weight_element = weight.element;
  a.out_element = out.element;
  const uint64_t pieces = (static_cast<uint64_t>(batch.positions.dim()) + 3) / 4;
  return Launch(forward_, batch.bags * pieces, &a, stream);
}

Status GpuBags::BeginGradient(const GpuBatch& batch, const GpuFloats& upstream,
                              DeviceAddress winners, const TakeMemory& take, Stream stream,
                              BagValueArguments* values) {
  SOK_RETURN_IF_ERROR(TakeFault(stream));
  values->bags = InputsOf(batch);
  values->upstream = Pointer<void>(upstream.address);
  values->scales = Pointer<void>(batch.scales);
  values->winners = Pointer<int64_t>(winners);
  values->element = upstream.element;
  if (batch.mode == BagMode::kMean && batch.padding >= 0 && batch.bags > 0) {
    SOK_ASSIGN_OR_RETURN(const DeviceAddress counts, take(batch.bags * sizeof(int64_t)));
    const BagCountArguments count{values->bags, Pointer<int64_t>(counts)};
    SOK_RETURN_IF_ERROR(Launch(counts_, batch.bags, &count, stream));
    values->counts = count.counts;
  }
  return Status();
}

Status GpuBags::SortValues(const Sorting& sorting, BagValueArguments values, SortedValues* sorted,
                           Stream stream) const {
  const auto dim = static_cast<uint64_t>(values.bags.positions.dim);
  const uint64_t n = values.units * dim;
  // The first pass of the sort reads its input from the second half of the memory.
  values.keys = sorting.memory.keys[1];
  values.values = sorting.memory.values[1];
  values.wide = sorting.wide;
  SOK_RETURN_IF_ERROR(Launch(values_, values.units * ((dim + 3) / 4), &values, stream));
  const BlockLauncher launch = [&](void* kernel, uint64_t blocks, const void* argument) {
    return device_->LaunchBlocks(kernel, blocks, argument, stream);
  };
  SOK_ASSIGN_OR_RETURN(const int half, sort_.Sort(launch, values.keys,
                                                  sorting.wide == nullptr ? values.values : nullptr,
                                                  n, values.positions, sorting.memory));
  SOK_RETURN_IF_ERROR(
      sort_.Segment(launch, {sorting.memory.keys[half], n, values.positions, sorting.memory.counts,
                             sorting.starts, sorting.segments}));
  SOK_RETURN_IF_ERROR(device_->Fill(reinterpret_cast<DeviceAddress>(sorting.chunk_count), 0,
                                    sizeof(uint32_t), stream));
  const ChunkArguments cut{sorting.starts, sorting.segments, sorting.first_chunk, sorting.chunks,
                           sorting.chunk_count};
  SOK_RETURN_IF_ERROR(Launch(sort_.cut_chunks, n, &cut, stream));
  *sorted = {
      sorting.memory.keys[half], sorting.memory.values[half], sorting.wide,   sorting.starts,
      sorting.segments,          sorting.first_chunk,         sorting.chunks, sorting.chunk_count,
      sorting.chunk_sums};
  return device_->LaunchBlocks(chunks_, sorting.most_chunks, sorted, stream);
}

namespace {

uint64_t UnitsOf(const GpuBatch& batch) {
  return batch.mode == BagMode::kMax ? batch.bags : batch.entries;
}

// Calls fn(first, n) for ranges of positions.
template <typename Fn>
Status ForRanges(uint64_t size, const Fn& fn) {
  for (uint64_t first = 0; first < size; first += kMostPositions) {
    SOK_RETURN_IF_ERROR(fn(first, static_cast<uint32_t>(std::min(size - first, kMostPositions))));
  }
  return Status();
}

}  // namespace

Status GpuBags::DenseGradient(const GpuBatch& batch, const GpuFloats& upstream,
                              DeviceAddress winners, const GpuFloats& gradient,
                              const TakeMemory& take, Stream stream) {
  const auto size = static_cast<uint64_t>(batch.positions.size());
  const auto dim = static_cast<uint64_t>(batch.positions.dim());
  const bool is_wide = gradient.element == Element::kFloat64;
  const bool is_narrow = BytesOf(gradient.element) == 2;
  GpuFloats sums = gradient;
  if (is_narrow) {
    sums.element = Element::kFloat32;
    SOK_ASSIGN_OR_RETURN(sums.address, take(size * sizeof(float)));
  }
  BagValueArguments values{};
  SOK_RETURN_IF_ERROR(BeginGradient(batch, upstream, winners, take, stream, &values));
  SOK_RETURN_IF_ERROR(device_->Fill(sums.address, 0, size * BytesOf(sums.element), stream));
  const uint64_t units = UnitsOf(batch);
  const uint64_t round = std::min(units, std::max<uint64_t>(kRoundValues / dim, 1));
  if (round > 0) {
    SOK_ASSIGN_OR_RETURN(const Sorting sorting, Sorting::Make(round * dim, is_wide, take));
    SOK_RETURN_IF_ERROR(ForRanges(size, [&](uint64_t first, uint32_t n) -> Status {
      values.first_position = first;
      values.positions = n;
      for (uint64_t unit = 0; unit < units; unit += round) {
        values.first_unit = unit;
        values.units = std::min(round, units - unit);
        BagSumArguments sum{};
        sum.first_position = first;
        sum.sums = Pointer<void>(sums.address);
        SOK_RETURN_IF_ERROR(SortValues(sorting, values, &sum.sorted, stream));
        SOK_RETURN_IF_ERROR(Launch(sums_, values.units * dim, &sum, stream));
      }
      return Status();
    }));
  }
  if (!is_narrow) return Status();
  const BagNarrowArguments narrow{Pointer<float>(sums.address), size,
                                  Pointer<void>(gradient.address), gradient.element};
  return Launch(narrow_, size, &narrow, stream);
}

Status GpuBags::SparseGradient(const GpuBatch& batch, const GpuFloats& upstream,
                               DeviceAddress winners, const MakeOutputs& make,
                               const TakeMemory& take, Stream stream) {
  const auto size = static_cast<uint64_t>(batch.positions.size());
  const uint64_t units = UnitsOf(batch);
  const uint64_t n = units * static_cast<uint64_t>(batch.positions.dim());
  if (units >= uint64_t{1} << 31 || n >= uint64_t{1} << 31) {
    return InvalidArgument("expected fewer than 2^31 elements of a sparse gradient on a GPU, got " +
                           std::to_string(units) + " times " +
                           std::to_string(batch.positions.dim()) +
                           ". Take a dense gradient, or smaller batches");
  }
  DeviceAddress positions = 0;
  GpuFloats sums{};
  if (n == 0) {
    SOK_RETURN_IF_ERROR(TakeFault(stream));
    return make(0, &positions, &sums);
  }
  BagValueArguments values{};
  SOK_RETURN_IF_ERROR(BeginGradient(batch, upstream, winners, take, stream, &values));
  values.units = units;
  const bool is_wide = upstream.element == Element::kFloat64;
  SOK_ASSIGN_OR_RETURN(const Sorting sorting, Sorting::Make(n, is_wide, take));
  // Counts the positions of each range first, and writes them once the outputs are allocated.
  SortedValues sorted{};
  std::map<uint64_t, uint32_t> counts;
  uint64_t all = 0;
  SOK_RETURN_IF_ERROR(ForRanges(size, [&](uint64_t first, uint32_t in_range) -> Status {
    values.first_position = first;
    values.positions = in_range;
    SOK_RETURN_IF_ERROR(SortValues(sorting, values, &sorted, stream));
    uint32_t count = 0;
    SOK_RETURN_IF_ERROR(device_->CopyToHost(
        &count, reinterpret_cast<DeviceAddress>(sorting.segments), sizeof(count), stream));
    SOK_RETURN_IF_ERROR(device_->Synchronize(stream));
    if (count > 0) counts[first] = count;
    all += count;
    return Status();
  }));
  SOK_RETURN_IF_ERROR(TakeFault(stream));
  SOK_RETURN_IF_ERROR(make(all, &positions, &sums));
  const bool is_one_range = size <= kMostPositions;
  uint64_t written = 0;
  for (const auto& [first, count] : counts) {
    if (!is_one_range) {
      values.first_position = first;
      values.positions = static_cast<uint32_t>(std::min(size - first, kMostPositions));
      SOK_RETURN_IF_ERROR(SortValues(sorting, values, &sorted, stream));
    }
    BagSumArguments sum{};
    sum.sorted = sorted;
    sum.first_position = first;
    sum.positions = Pointer<int64_t>(positions) + written;
    sum.sums = Pointer<void>(sums.address + written * BytesOf(sums.element));
    sum.element = sums.element;
    SOK_RETURN_IF_ERROR(Launch(sums_, count, &sum, stream));
    written += count;
  }
  return Status();
}

Status GpuBags::ScaleGradient(const GpuBatch& batch, const GpuFloats& weight,
                              const GpuFloats& upstream, DeviceAddress factors, Stream stream) {
  SOK_RETURN_IF_ERROR(TakeFault(stream));
  const BagScaleArguments a{InputsOf(batch),
                            Pointer<void>(weight.address),
                            Pointer<void>(upstream.address),
                            Pointer<void>(factors),
                            weight.element,
                            upstream.element};
  return Launch(scales_, batch.entries, &a, stream);
}

}  // namespace sok::gpu
