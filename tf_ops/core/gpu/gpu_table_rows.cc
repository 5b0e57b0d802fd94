// Reads, writes and erases rows as a whole.
#include <numeric>
#include <unordered_set>

#include "core/gpu/table_parts.h"

namespace sok::gpu {
namespace {

constexpr uint64_t kRowsOfPart = uint64_t{1} << 18;

}  // namespace

Status GpuTable::SetRule(const std::string& rule, const std::vector<Slot>& slots, Stream stream) {
  SOK_ENTER(stream);
  return SetRuleNow(rule, slots);
}

Status GpuTable::SetRuleNow(const std::string& rule, const std::vector<Slot>& slots) {
  const auto layout = std::make_shared<RowLayout>(dim_, slots);
  if (arrays_ != nullptr && rule == rule_ && layout->slot_start() == layout_->slot_start()) {
    return Status();
  }
  const auto start = [&]() -> Status {
    std::vector<float> floats = layout->slot_start();
    floats.resize(layout->stride() - dim_, 0.0f);
    const size_t bytes = floats.size() * sizeof(float);
    SOK_RETURN_IF_ERROR(scratch_->slot_start.Reserve(device_, std::max<size_t>(bytes, 4)));
    SOK_RETURN_IF_ERROR(
        device_->CopyToDevice(scratch_->slot_start.address(), floats.data(), bytes, stream_));
    return device_->Synchronize(stream_);
  };
  // Addresses cost nothing, so this reserves as many as the GPU's whole memory could need.
  SOK_ASSIGN_OR_RETURN(const uint64_t most, device_->TotalBytes());
  const uint64_t row_bytes = layout->stride() * sizeof(float);
  const uint64_t most_rows = most / row_bytes + 1;
  if (arrays_ == nullptr) {
    SOK_ASSIGN_OR_RETURN(auto rows, GrowingMemory::Make(device_, most));
    SOK_ASSIGN_OR_RETURN(auto keys, GrowingMemory::Make(device_, most_rows * sizeof(uint64_t)));
    SOK_ASSIGN_OR_RETURN(auto metas, GrowingMemory::Make(device_, most_rows * sizeof(Meta)));
    SOK_ASSIGN_OR_RETURN(auto free, GrowingMemory::Make(device_, most_rows * sizeof(uint32_t)));
    arrays_ = std::unique_ptr<Arrays>(
        new Arrays{std::move(rows), std::move(keys), std::move(metas), std::move(free)});
  } else if (!layout->SameShape(*layout_) || layout->stride() != layout_->stride()) {
    SOK_ASSIGN_OR_RETURN(const Counters counters, ReadCounters());
    const uint64_t more = row_bytes - layout_->stride() * sizeof(float);
    if (row_bytes > layout_->stride() * sizeof(float) && max_bytes_ != 0 &&
        capacity_ * (BytesOfRow() + more) + buckets_ * sizeof(Bucket) > max_bytes_) {
      return TooManyBytes(capacity_);
    }
    SOK_ASSIGN_OR_RETURN(auto rows, GrowingMemory::Make(device_, most));
    SOK_RETURN_IF_ERROR(rows.Reserve(capacity_ * row_bytes));
    SOK_RETURN_IF_ERROR(start());
    const RelayoutArguments relayout{
        RowsOfTable(),
        {Pointer<float>(rows.address()), static_cast<uint32_t>(layout->stride()), dim_},
        counters.end,
        Pointer<float>(scratch_->slot_start.address())};
    SOK_RETURN_IF_ERROR(
        Launch(kernels_->relayout, counters.end * uint64_t{relayout.to.stride}, &relayout));
    SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
    arrays_->rows = std::move(rows);
    layout_ = layout;
    rule_ = rule;
    return Status();
  }
  SOK_RETURN_IF_ERROR(start());
  layout_ = layout;
  rule_ = rule;
  return Status();
}

Result<uint64_t> GpuTable::EraseKeys(DeviceAddress keys, uint64_t n) {
  if (n == 0) return uint64_t{0};
  const auto erased = reinterpret_cast<DeviceAddress>(scratch_->at(Scratch::kErased));
  SOK_RETURN_IF_ERROR(device_->Fill(erased, 0, sizeof(uint32_t), stream_));
  const EraseArguments arguments{IndexOfTable(),
                                 Pointer<uint64_t>(keys),
                                 n,
                                 Pointer<uint32_t>(arrays_->free.address()),
                                 Pointer<Counters>(counters_.address()),
                                 scratch_->at(Scratch::kErased)};
  SOK_RETURN_IF_ERROR(Launch(kernels_->erase, n, &arguments));
  uint32_t count = 0;
  SOK_RETURN_IF_ERROR(device_->CopyToHost(&count, erased, sizeof(count), stream_));
  SOK_ASSIGN_OR_RETURN(const Counters counters, ReadCounters());
  erased_ += count;
  // A worn index is made anew. If there is no memory for a new one, it stays as it is.
  const Status grown = GrowIndex(counters.end - counters.free);
  if (!grown.ok() && grown.code() != Code::kResourceExhausted) return grown;
  return static_cast<uint64_t>(count);
}

Result<uint64_t> GpuTable::Erase(DeviceAddress keys, uint64_t n, Stream stream) {
  SOK_ENTER(stream);
  return EraseKeys(keys, n);
}

Result<uint64_t> GpuTable::ListInto(uint64_t begin, uint64_t end, DeviceAddress keys,
                                    DeviceAddress rows) {
  const auto listed = reinterpret_cast<DeviceAddress>(scratch_->at(Scratch::kListed));
  SOK_RETURN_IF_ERROR(device_->Fill(listed, 0, sizeof(uint32_t), stream_));
  const ListArguments arguments{IndexOfTable(),
                                begin,
                                end,
                                Pointer<uint64_t>(keys),
                                Pointer<uint32_t>(rows),
                                scratch_->at(Scratch::kListed)};
  SOK_RETURN_IF_ERROR(Launch(kernels_->list, (end - begin) * kBucketKeys, &arguments));
  uint32_t count = 0;
  SOK_RETURN_IF_ERROR(device_->CopyToHost(&count, listed, sizeof(count), stream_));
  SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
  return static_cast<uint64_t>(count);
}

Result<uint64_t> GpuTable::Evict(uint64_t n, bool by_time, Stream stream) {
  SOK_ENTER(stream);
  SOK_ASSIGN_OR_RETURN(const Counters counters, ReadCounters());
  const uint64_t rows = counters.end - counters.free;
  n = std::min(n, rows);
  if (n == 0) return uint64_t{0};
  Scratch& s = *scratch_;
  SOK_RETURN_IF_ERROR(s.listed_keys.Reserve(device_, rows * sizeof(uint64_t)));
  SOK_RETURN_IF_ERROR(s.listed_rows.Reserve(device_, rows * sizeof(uint32_t)));
  SOK_RETURN_IF_ERROR(s.ranks.Reserve(device_, rows * sizeof(uint32_t)));
  SOK_ASSIGN_OR_RETURN(const uint64_t listed,
                       ListInto(0, buckets_, s.listed_keys.address(), s.listed_rows.address()));
  const RankArguments rank{Pointer<Meta>(arrays_->metas.address()),
                           Pointer<uint32_t>(s.listed_rows.address()), listed, by_time,
                           Pointer<uint32_t>(s.ranks.address())};
  SOK_RETURN_IF_ERROR(Launch(kernels_->rank, listed, &rank));
  SOK_RETURN_IF_ERROR(Sort(s.ranks.address(), listed, UINT32_MAX));
  const PickArguments pick{Pointer<uint64_t>(arrays_->keys.address()), rank.numbers,
                           Pointer<uint32_t>(s.sort_values[s.sorted].address()), n,
                           Pointer<uint64_t>(s.listed_keys.address())};
  SOK_RETURN_IF_ERROR(Launch(kernels_->pick, n, &pick));
  return EraseKeys(s.listed_keys.address(), n);
}

Status GpuTable::ReadRows(DeviceAddress keys, uint64_t n, uint32_t floats, DeviceAddress out,
                          DeviceAddress metas, DeviceAddress rows, Stream stream) {
  SOK_ENTER(stream);
  SOK_RETURN_IF_ERROR(FindInto(keys, n, rows));
  const CopyRowsArguments read{RowsOfTable(),
                               Pointer<uint32_t>(rows),
                               n,
                               floats,
                               Pointer<float>(out),
                               Pointer<Meta>(arrays_->metas.address()),
                               Pointer<Meta>(metas)};
  return Launch(kernels_->read_rows, n * floats, &read);
}

Result<std::vector<Key>> GpuTable::ListKeys(uint64_t first, uint64_t last, Stream stream) {
  SOK_ENTER(stream);
  Scratch& s = *scratch_;
  const auto home = [this](uint64_t hash) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(hash) * buckets_ >> 64);
  };
  std::vector<Key> keys, listed;
  const auto keep = [&](Key key) {
    const uint64_t hash = Mix64(key);
    if (first <= hash && hash <= last) keys.push_back(key);
  };
  const uint64_t begin = home(first), end = home(last) + 1;
  const uint64_t each = kRowsOfPart / kBucketKeys;
  const uint64_t most = std::min(each, end - begin) * kBucketKeys;
  SOK_RETURN_IF_ERROR(s.listed_keys.Reserve(device_, most * sizeof(uint64_t)));
  SOK_RETURN_IF_ERROR(s.listed_rows.Reserve(device_, most * sizeof(uint32_t)));
  for (uint64_t at = begin; at < end; at += each) {
    SOK_ASSIGN_OR_RETURN(
        const uint64_t n,
        ListInto(at, std::min(at + each, end), s.listed_keys.address(), s.listed_rows.address()));
    listed.resize(n);
    SOK_RETURN_IF_ERROR(
        device_->CopyToHost(listed.data(), s.listed_keys.address(), n * sizeof(Key), stream_));
    SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
    std::for_each(listed.begin(), listed.end(), keep);
  }
  // Keys whose bucket was full are in the next buckets, up to the first that no key has passed.
  constexpr uint64_t kNext = 16;
  std::vector<Bucket> next;
  uint64_t at = end - 1;
  for (uint64_t looked = end - begin - 1; looked < buckets_;) {
    next.resize(std::min({kNext, buckets_ - at, buckets_ - looked}));
    SOK_RETURN_IF_ERROR(device_->CopyToHost(next.data(), index_.address() + at * sizeof(Bucket),
                                            next.size() * sizeof(Bucket), stream_));
    SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
    for (const Bucket& bucket : next) {
      for (int i = 0; i < kBucketKeys && looked >= end - begin; ++i) {
        if ((bucket.state >> i & 1u) != 0) keep(bucket.keys[i]);
      }
      ++looked;
      if ((bucket.state & kPassed) == 0) return keys;
    }
    at = (at + next.size()) % buckets_;
  }
  return keys;
}

Status GpuTable::Export(const std::function<Status(const RowsPart& part)>& fn, Stream stream) {
  SOK_ENTER(stream);
  Scratch& s = *scratch_;
  const uint64_t each = kRowsOfPart / kBucketKeys;
  const auto floats = static_cast<uint32_t>(dim_ + layout_->slot_floats());
  SOK_RETURN_IF_ERROR(s.listed_keys.Reserve(device_, kRowsOfPart * sizeof(uint64_t)));
  SOK_RETURN_IF_ERROR(s.listed_rows.Reserve(device_, kRowsOfPart * sizeof(uint32_t)));
  for (uint64_t begin = 0; begin < buckets_; begin += each) {
    SOK_ASSIGN_OR_RETURN(const uint64_t n,
                         ListInto(begin, std::min(begin + each, buckets_), s.listed_keys.address(),
                                  s.listed_rows.address()));
    if (n == 0) continue;
    RowsPart part{std::vector<Key>(n), std::vector<float>(n * floats), std::vector<RowMeta>(n)};
    SOK_RETURN_IF_ERROR(s.staged.Reserve(device_, n * floats * sizeof(float)));
    SOK_RETURN_IF_ERROR(s.staged_metas.Reserve(device_, n * sizeof(Meta)));
    const CopyRowsArguments read{RowsOfTable(),
                                 Pointer<uint32_t>(s.listed_rows.address()),
                                 n,
                                 floats,
                                 Pointer<float>(s.staged.address()),
                                 Pointer<Meta>(arrays_->metas.address()),
                                 Pointer<Meta>(s.staged_metas.address())};
    SOK_RETURN_IF_ERROR(Launch(kernels_->read_rows, n * floats, &read));
    SOK_RETURN_IF_ERROR(
        device_->CopyToHost(part.keys.data(), s.listed_keys.address(), n * sizeof(Key), stream_));
    SOK_RETURN_IF_ERROR(device_->CopyToHost(part.floats.data(), s.staged.address(),
                                            n * floats * sizeof(float), stream_));
    SOK_RETURN_IF_ERROR(device_->CopyToHost(part.metas.data(), s.staged_metas.address(),
                                            n * sizeof(Meta), stream_));
    SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
    SOK_RETURN_IF_ERROR(fn(part));
  }
  return Status();
}

Status GpuTable::Import(const RowsPart& part, Stream stream) {
  SOK_ENTER(stream);
  const uint64_t n = part.keys.size();
  const auto floats = static_cast<uint32_t>(dim_ + layout_->slot_floats());
  if (part.floats.size() != n * floats || part.metas.size() != n) {
    return InvalidArgument(
        "Expected " + std::to_string(n) + " rows of " + std::to_string(floats) +
        " floats, and as many counters. Received: " + std::to_string(part.floats.size()) +
        " floats and " + std::to_string(part.metas.size()) + " counters.");
  }
  const std::unordered_set<Key> distinct(part.keys.begin(), part.keys.end());
  if (distinct.size() != n) {
    return InvalidArgument("Expected each key once. Received: " + std::to_string(n) +
                           " keys, of which " + std::to_string(distinct.size()) + " differ.");
  }
  if (n == 0) return Status();
  Scratch& s = *scratch_;
  SOK_RETURN_IF_ERROR(s.listed_keys.Reserve(device_, n * sizeof(uint64_t)));
  SOK_RETURN_IF_ERROR(s.staged.Reserve(device_, n * floats * sizeof(float)));
  SOK_RETURN_IF_ERROR(s.staged_metas.Reserve(device_, n * sizeof(Meta)));
  SOK_RETURN_IF_ERROR(
      device_->CopyToDevice(s.listed_keys.address(), part.keys.data(), n * sizeof(Key), stream_));
  SOK_RETURN_IF_ERROR(device_->CopyToDevice(s.staged.address(), part.floats.data(),
                                            n * floats * sizeof(float), stream_));
  SOK_RETURN_IF_ERROR(device_->CopyToDevice(s.staged_metas.address(), part.metas.data(),
                                            n * sizeof(Meta), stream_));
  SOK_ASSIGN_OR_RETURN(const DeviceAddress numbers,
                       NumbersOf(s.listed_keys.address(), n, Absent::kMake, 0));
  const CopyRowsArguments write{RowsOfTable(),
                                Pointer<uint32_t>(numbers),
                                n,
                                floats,
                                Pointer<float>(s.staged.address()),
                                Pointer<Meta>(arrays_->metas.address()),
                                Pointer<Meta>(s.staged_metas.address())};
  SOK_RETURN_IF_ERROR(Launch(kernels_->write_rows, n * floats, &write));
  return device_->Synchronize(stream_);  // after this, the caller may change its memory
}

}  // namespace sok::gpu
