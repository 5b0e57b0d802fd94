#include "core/gpu/gpu_table.h"

#include <atomic>
#include <unordered_set>
#include <utility>

#include "core/gpu/programs.h"
#include "core/gpu/table_parts.h"

namespace sok::gpu {
namespace {

// Up to this average load, few keys pass a full bucket.
constexpr double kMostLoad = 0.7;
constexpr uint64_t kLeastBuckets = 1024;
// A place of the index has 31 bits.
constexpr uint64_t kMostBuckets = (uint64_t{1} << 31) / kBucketKeys - 1;

uint64_t BucketsFor(uint64_t rows) {
  return std::max(kLeastBuckets,
                  static_cast<uint64_t>(static_cast<double>(rows) / (kMostLoad * kBucketKeys)) + 1);
}

uint64_t RowsFor(uint64_t buckets) {
  return static_cast<uint64_t>(static_cast<double>(buckets * kBucketKeys) * kMostLoad);
}

}  // namespace

GpuTable::GpuTable(std::shared_ptr<Device> device, const GpuTableConfig& config)
    : device_(std::move(device)),
      dim_(config.dim),
      initializer_(config.initializer),
      max_rows_(config.max_rows),
      max_bytes_(config.max_bytes),
      kernels_(std::make_unique<Kernels>()),
      layout_(std::make_shared<RowLayout>(config.dim, std::vector<Slot>())),
      scratch_(std::make_unique<Scratch>()) {}

Result<std::unique_ptr<GpuTable>> GpuTable::Make(std::shared_ptr<Device> device,
                                                 const GpuTableConfig& config) {
  if (config.dim < 1) {
    return InvalidArgument(
        "Expected dim to be at least 1. Received: " + std::to_string(config.dim) + ".");
  }
  std::unique_ptr<GpuTable> table(new GpuTable(std::move(device), config));
  SOK_RETURN_IF_ERROR(table->Open());
  return table;
}

GpuTable::~GpuTable() {
  const Driver& driver = device_->driver();
  if (was_called_) {
    (void)device_->Call("cuEventSynchronize", [&] { return driver.EventSynchronize(done_); });
  }
  if (done_ != nullptr) {
    (void)device_->Call("cuEventDestroy", [&] { return driver.EventDestroy(done_); });
  }
  if (mirror_ != nullptr) {
    (void)device_->Call("cuMemFreeHost",
                        [&] { return driver.MemFreeHost(const_cast<Counters*>(mirror_)); });
  }
}

Status GpuTable::Open() {
  const Driver& driver = device_->driver();
  SOK_ASSIGN_OR_RETURN(kernels_->index, LoadProgram(device_, "index", {}));
  SOK_ASSIGN_OR_RETURN(kernels_->rows, LoadProgram(device_, "rows", {dim_, ""}));
  struct Named {
    void** function;
    const char* name;
    const std::shared_ptr<Module>& module;
  };
  Kernels& k = *kernels_;
  const Named all[] = {
      {&k.find, "Find", k.index},
      {&k.count_absent, "CountAbsent", k.index},
      {&k.claim, "Claim", k.index},
      {&k.make, "Make", k.index},
      {&k.settle, "Settle", k.index},
      {&k.link, "Link", k.index},
      {&k.rehash, "Rehash", k.index},
      {&k.erase, "Erase", k.index},
      {&k.list, "List", k.index},
      {&k.rank, "Rank", k.index},
      {&k.pick, "Pick", k.index},
      {&k.start, "Start", k.rows},
      {&k.gather, "Gather", k.rows},
      {&k.pool, "Pool", k.rows},
      {&k.read_rows, "ReadRows", k.rows},
      {&k.write_rows, "WriteRows", k.rows},
      {&k.relayout, "Relayout", k.rows},
      {&k.append, "Append", k.rows},
      {&k.assign, "Assign", k.rows},
      {&k.sum_chunks, "SumChunks", k.rows},
      {&k.store_sums, "StoreSums", k.rows},
      {&k.pool_gradient, "PoolGradient", k.rows},
      {&k.weight_gradient, "WeightGradient", k.rows},
      {&k.start_sums, "StartSums", k.rows},
      {&k.place_sums, "PlaceSums", k.rows},
      {&k.rest_rows, "RestRows", k.rows},
      {&k.pick_keys, "PickKeys", k.rows},
      {&k.start_as_static, "StartAsStatic", k.rows},
      {&k.place_numbers, "PlaceNumbers", k.rows},
      {&k.mask_gather, "MaskGather", k.rows},
      {&k.static_keys, "StaticKeys", k.rows},
      {&k.segment_keys, "SegmentKeys", k.rows},
  };
  for (const Named& each : all) {
    SOK_ASSIGN_OR_RETURN(*each.function, each.module->Function(each.name));
  }
  SOK_RETURN_IF_ERROR(k.sort.Load(*k.index));
  void* mirror = nullptr;
  SOK_RETURN_IF_ERROR(device_->Call(
      "cuMemAllocHost", [&] { return driver.MemAllocHost(&mirror, sizeof(Counters)); }));
  mirror_ = new (mirror) Counters{0, 0, 0, 0};
  constexpr unsigned kWithoutTiming = 2;
  SOK_RETURN_IF_ERROR(
      device_->Call("cuEventCreate", [&] { return driver.EventCreate(&done_, kWithoutTiming); }));
  SOK_RETURN_IF_ERROR(counters_.Reserve(device_, sizeof(Counters)));
  SOK_RETURN_IF_ERROR(scratch_->small.Reserve(device_, Scratch::kSmall * sizeof(uint32_t)));
  SOK_ENTER(nullptr);
  SOK_RETURN_IF_ERROR(device_->Fill(counters_.address(), 0, sizeof(Counters), stream_));
  SOK_RETURN_IF_ERROR(SetRuleNow("", {}));
  return GrowIndex(1);
}

Status GpuTable::Enter(Stream stream) {
  SOK_RETURN_IF_ERROR(broken_);
  const Driver& driver = device_->driver();
  // A new stream may have the address of a destroyed one.
  if (was_called_) {
    SOK_RETURN_IF_ERROR(device_->Call("cuStreamWaitEvent",
                                      [&] { return driver.StreamWaitEvent(stream, done_, 0); }));
  }
  stream_ = stream;
  return Status();
}

void GpuTable::Leave() {
  const Driver& driver = device_->driver();
  (void)device_->Call("cuEventRecord", [&] { return driver.EventRecord(done_, stream_); });
  was_called_ = true;
}

Status GpuTable::Launch(void* kernel, uint64_t items, const void* argument) {
  return LaunchBlocks(kernel, (items + 255) / 256, argument);
}

Status GpuTable::LaunchBlocks(void* kernel, uint64_t blocks, const void* argument) {
  return NoteBroken(device_->LaunchBlocks(kernel, blocks, argument, stream_));
}

BlockLauncher GpuTable::Launcher() {
  return [this](void* kernel, uint64_t blocks, const void* argument) {
    return LaunchBlocks(kernel, blocks, argument);
  };
}

Status GpuTable::NoteBroken(Status status) {
  if (status.ok()) return status;
  broken_ = status.Within(
      "A table on GPU " + std::to_string(device_->ordinal()) + " cannot be used any more: ",
      " Restart the process and restore a checkpoint.");
  return broken_;
}

Rows GpuTable::RowsOfTable() const {
  return {Pointer<float>(arrays_->rows.address()), static_cast<uint32_t>(layout_->stride()), dim_};
}

Index GpuTable::IndexOfTable() const { return {Pointer<Bucket>(index_.address()), buckets_}; }

uint64_t GpuTable::bytes() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return index_.bytes() + arrays_->rows.bytes() + arrays_->keys.bytes() + arrays_->metas.bytes() +
         arrays_->free.bytes();
}

uint64_t GpuTable::index_bytes() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return index_.bytes();
}

// A copy after each call that makes rows writes the mirror, at any time. The number of the call is
// read first, so the values read after it belong to that call or to a later one.
Counters GpuTable::Mirrored() const {
  Counters counters{};
  counters.calls = mirror_->calls;
  std::atomic_thread_fence(std::memory_order_acquire);
  counters.end = mirror_->end;
  counters.free = mirror_->free;
  return counters;
}

GpuTable::Most GpuTable::MostThereAre() const {
  const Counters known = Mirrored();
  Most most{known.end, known.end - known.free};
  for (const Pending& each : pending_) {
    if (static_cast<int32_t>(each.call - known.calls) > 0) most.rows += each.n;
  }
  // New rows take free numbers first.
  most.end = std::max(most.end, most.rows);
  return most;
}

Status GpuTable::MirrorCounters(uint64_t n) {
  const uint32_t known = mirror_->calls;
  while (!pending_.empty() && static_cast<int32_t>(pending_.front().call - known) <= 0) {
    pending_.pop_front();
  }
  if (n > 0) pending_.push_back({++calls_, n});
  return NoteBroken(device_->CopyToHost(const_cast<Counters*>(mirror_), counters_.address(),
                                        sizeof(Counters), stream_));
}

Result<Counters> GpuTable::ReadCounters() {
  SOK_RETURN_IF_ERROR(device_->CopyToHost(const_cast<Counters*>(mirror_), counters_.address(),
                                          sizeof(Counters), stream_));
  SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
  pending_.clear();
  return Mirrored();
}

Result<uint64_t> GpuTable::Size(Stream stream) {
  SOK_ENTER(stream);
  SOK_ASSIGN_OR_RETURN(const Counters counters, ReadCounters());
  return static_cast<uint64_t>(counters.end - counters.free);
}

Result<uint64_t> GpuTable::CountAbsent(DeviceAddress keys, uint64_t n) {
  Scratch& s = *scratch_;
  SOK_RETURN_IF_ERROR(s.numbers.Reserve(device_, n * sizeof(uint32_t)));
  SOK_RETURN_IF_ERROR(FindInto(keys, n, s.numbers.address()));
  const auto absent = reinterpret_cast<DeviceAddress>(s.at(Scratch::kAbsent));
  SOK_RETURN_IF_ERROR(device_->Fill(absent, 0, sizeof(uint32_t), stream_));
  const CountArguments arguments{Pointer<uint32_t>(s.numbers.address()), n, s.at(Scratch::kAbsent)};
  SOK_RETURN_IF_ERROR(Launch(kernels_->count_absent, n, &arguments));
  uint32_t count = 0;
  SOK_RETURN_IF_ERROR(device_->CopyToHost(&count, absent, sizeof(count), stream_));
  SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
  return static_cast<uint64_t>(count);
}

Result<uint64_t> GpuTable::CountNew(DeviceAddress keys, uint64_t n) {
  std::vector<Key> host_keys(n);
  std::vector<uint32_t> rows(n);
  SOK_RETURN_IF_ERROR(device_->CopyToHost(host_keys.data(), keys, n * sizeof(Key), stream_));
  SOK_RETURN_IF_ERROR(
      device_->CopyToHost(rows.data(), scratch_->numbers.address(), n * sizeof(uint32_t), stream_));
  SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
  std::unordered_set<Key> added;
  for (uint64_t i = 0; i < n; ++i) {
    if (rows[i] == kNoRow) added.insert(host_keys[i]);
  }
  return static_cast<uint64_t>(added.size());
}

Status GpuTable::MakeRoom(DeviceAddress keys, uint64_t n) {
  // Numbers of rows that were erased are used again before the end moves.
  const auto is_room = [&](uint64_t more) {
    const Most most = MostThereAre();
    return std::max(most.end, most.rows + more) <= capacity_ &&
           most.rows + more <= RowsFor(buckets_) &&
           (max_rows_ == 0 || most.rows + more <= max_rows_);
  };
  const auto grow = [&](uint64_t rows) -> Status {
    SOK_RETURN_IF_ERROR(GrowRows(rows));
    return GrowIndex(rows);
  };
  if (is_room(n)) return Status();
  SOK_ASSIGN_OR_RETURN(const Counters counters, ReadCounters());
  if (is_room(n)) return Status();
  const uint64_t rows = counters.end - counters.free;
  // With room for the keys of two calls, the next calls need not wait for the GPU.
  if (max_rows_ == 0 || rows + n <= max_rows_) {
    const uint64_t kept = max_rows_ == 0 ? 2 * n : std::min(2 * n, max_rows_ - rows);
    const Status grown = grow(rows + kept);
    if (grown.ok() || grown.code() != Code::kResourceExhausted) return grown;
  }
  // Without that much room the keys are counted, since most have a row or come twice.
  SOK_ASSIGN_OR_RETURN(const uint64_t absent, CountAbsent(keys, n));
  if (is_room(absent)) return Status();
  SOK_ASSIGN_OR_RETURN(const uint64_t added, CountNew(keys, n));
  if (max_rows_ != 0 && rows + added > max_rows_) return TableFull(rows, max_rows_, added);
  return grow(rows + added);
}

Status GpuTable::GrowRows(uint64_t rows) {
  if (rows <= capacity_) return Status();
  if (rows >= kNoRow) {
    return Status(Code::kResourceExhausted, "a table on a GPU cannot hold 2^32 rows or more");
  }
  const uint64_t row_bytes = layout_->stride() * sizeof(float);
  // A quarter more, so that growing is rare, unless there is not enough memory for that.
  for (const uint64_t wanted : {rows + rows / 4 + 1024, rows}) {
    if (IsBeyondMost(wanted, std::max(buckets_, BucketsFor(wanted)))) continue;
    Status status = arrays_->rows.Reserve(wanted * row_bytes);
    if (status.ok()) status = arrays_->keys.Reserve(wanted * sizeof(uint64_t));
    if (status.ok()) status = arrays_->metas.Reserve(wanted * sizeof(Meta));
    if (status.ok()) status = arrays_->free.Reserve(wanted * sizeof(uint32_t));
    if (status.ok()) {
      capacity_ = wanted;
      return Status();
    }
    if (wanted == rows) {
      return status.Within("The table on GPU " + std::to_string(device_->ordinal()) +
                               " cannot grow to " + std::to_string(rows) + " rows: ",
                           " Limit its rows, or leave more of the GPU's memory to it.");
    }
  }
  return TooManyBytes(rows);
}

uint64_t GpuTable::BytesOfRow() const {
  return layout_->stride() * sizeof(float) + sizeof(uint64_t) + sizeof(Meta) + sizeof(uint32_t);
}

bool GpuTable::IsBeyondMost(uint64_t rows, uint64_t buckets) const {
  return max_bytes_ != 0 && rows * BytesOfRow() + buckets * sizeof(Bucket) > max_bytes_;
}

Status GpuTable::Reserve(uint64_t rows, Stream stream) {
  SOK_ENTER(stream);
  SOK_RETURN_IF_ERROR(GrowRows(rows));
  return GrowIndex(rows);
}

Status GpuTable::CheckFits(uint64_t rows) const {
  return IsBeyondMost(rows, BucketsFor(rows)) ? TooManyBytes(rows) : Status();
}

Status GpuTable::TooManyBytes(uint64_t rows) const {
  return Status(Code::kResourceExhausted,
                "Expected a table of at most " + std::to_string(max_bytes_) +
                    " bytes (max_bytes) on the GPU. Received: keys that make it " +
                    std::to_string(rows) + " rows of " + std::to_string(BytesOfRow()) +
                    " bytes, and an index. Raise max_bytes, or set max_rows and an eviction.");
}

Status GpuTable::GrowIndex(uint64_t rows) {
  const uint64_t places = buckets_ * kBucketKeys;
  // Erased keys leave marks, which make searches longer.
  const bool is_worn = erased_ > places / 2;
  if (buckets_ != 0 && rows <= RowsFor(buckets_) && !is_worn) return Status();
  uint64_t wanted = std::max(BucketsFor(rows),
                             rows <= RowsFor(buckets_) ? buckets_ : buckets_ + buckets_ * 3 / 5);
  if (wanted > kMostBuckets) {
    return Status(Code::kResourceExhausted, "a table on a GPU cannot hold more than " +
                                                std::to_string(RowsFor(kMostBuckets)) + " rows");
  }
  if (IsBeyondMost(capacity_, wanted)) {
    wanted = BucketsFor(rows);
    if (IsBeyondMost(capacity_, wanted)) return TooManyBytes(rows);
  }
  Buffer bigger;
  SOK_RETURN_IF_ERROR(bigger.Reserve(device_, wanted * sizeof(Bucket)));
  SOK_RETURN_IF_ERROR(device_->Fill(bigger.address(), 0, wanted * sizeof(Bucket), stream_));
  if (buckets_ != 0) {
    const RehashArguments arguments{IndexOfTable(), {Pointer<Bucket>(bigger.address()), wanted}};
    SOK_RETURN_IF_ERROR(Launch(kernels_->rehash, places, &arguments));
    SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
  }
  index_ = std::move(bigger);
  buckets_ = wanted;
  erased_ = 0;
  return Status();
}

Status GpuTable::FindInto(DeviceAddress keys, uint64_t n, DeviceAddress rows) {
  const FindArguments arguments{IndexOfTable(), Pointer<uint64_t>(keys), n,
                                Pointer<uint32_t>(rows)};
  return Launch(kernels_->find, n, &arguments);
}

Status GpuTable::MakeInto(DeviceAddress keys, uint64_t n, uint32_t now, DeviceAddress rows,
                          const StartRows& start_rows) {
  if (n == 0) return Status();
  SOK_RETURN_IF_ERROR(CheckCount(n));
  SOK_RETURN_IF_ERROR(MakeRoom(keys, n));
  SOK_RETURN_IF_ERROR(scratch_->places.Reserve(device_, n * sizeof(uint32_t)));
  SOK_RETURN_IF_ERROR(scratch_->made.Reserve(device_, n * sizeof(uint32_t)));
  const uint64_t makers_bytes = start_rows == nullptr ? 0 : n * sizeof(uint32_t);
  SOK_RETURN_IF_ERROR(scratch_->makers.Reserve(device_, makers_bytes));
  SOK_RETURN_IF_ERROR(FindInto(keys, n, rows));
  uint32_t* const makers =
      start_rows == nullptr ? nullptr : Pointer<uint32_t>(scratch_->makers.address());
  uint32_t* const places = Pointer<uint32_t>(scratch_->places.address());
  uint32_t* const made = Pointer<uint32_t>(scratch_->made.address());
  uint32_t* const numbers = Pointer<uint32_t>(rows);
  Counters* const counters = Pointer<Counters>(counters_.address());
  uint64_t* const row_keys = Pointer<uint64_t>(arrays_->keys.address());
  const ClaimArguments claim{IndexOfTable(), Pointer<uint64_t>(keys), n, numbers, places};
  SOK_RETURN_IF_ERROR(Launch(kernels_->claim, n, &claim));
  const MakeArguments make{IndexOfTable(),
                           Pointer<uint64_t>(keys),
                           n,
                           numbers,
                           places,
                           counters,
                           Pointer<uint32_t>(arrays_->free.address()),
                           row_keys,
                           Pointer<Meta>(arrays_->metas.address()),
                           now,
                           made,
                           makers};
  SOK_RETURN_IF_ERROR(Launch(kernels_->make, n, &make));
  if (start_rows != nullptr) {
    SOK_RETURN_IF_ERROR(start_rows(made, makers));
  } else {
    const StartArguments start{RowsOfTable(),
                               made,
                               counters,
                               row_keys,
                               initializer_.start_vector(),
                               Pointer<float>(scratch_->slot_start.address())};
    SOK_RETURN_IF_ERROR(Launch(kernels_->start, n * layout_->stride(), &start));
  }
  const SettleArguments settle{counters};
  SOK_RETURN_IF_ERROR(Launch(kernels_->settle, 1, &settle));
  const LinkArguments link{IndexOfTable(), n, places, numbers};
  SOK_RETURN_IF_ERROR(Launch(kernels_->link, n, &link));
  return MirrorCounters(n);
}

Status GpuTable::Find(DeviceAddress keys, uint64_t n, DeviceAddress rows, Stream stream) {
  SOK_ENTER(stream);
  return FindInto(keys, n, rows);
}

Status GpuTable::FindOrMake(DeviceAddress keys, uint64_t n, uint32_t now, DeviceAddress rows,
                            Stream stream) {
  SOK_ENTER(stream);
  return MakeInto(keys, n, now, rows);
}

Result<DeviceAddress> GpuTable::NumbersOf(DeviceAddress keys, uint64_t n, Absent absent,
                                          uint32_t now, DeviceAddress rows) {
  if (rows == 0) SOK_RETURN_IF_ERROR(scratch_->numbers.Reserve(device_, n * sizeof(uint32_t)));
  const DeviceAddress numbers = rows == 0 ? scratch_->numbers.address() : rows;
  SOK_RETURN_IF_ERROR(absent == Absent::kMake ? MakeInto(keys, n, now, numbers)
                                              : FindInto(keys, n, numbers));
  return numbers;
}

Status GpuTable::Lookup(DeviceAddress keys, uint64_t n, Absent absent, uint32_t now,
                        DeviceAddress out, Element element, Stream stream, DeviceAddress rows) {
  if (n == 0) return Status();
  SOK_ENTER(stream);
  SOK_ASSIGN_OR_RETURN(const DeviceAddress numbers, NumbersOf(keys, n, absent, now, rows));
  const GatherArguments arguments{
      RowsOfTable(), Pointer<uint32_t>(numbers), Pointer<uint64_t>(keys),    n, Pointer<void>(out),
      element,       absent == Absent::kStart,   initializer_.start_vector()};
  return Launch(kernels_->gather, n * dim_, &arguments);
}

}  // namespace sok::gpu
