#include "core/gpu/check/random_masked.h"

#include <cmath>
#include <deque>
#include <map>
#include <string>

#include "core/base/bfloat16.h"
#include "core/base/status_macros.h"
#include "core/gpu/check/near.h"
#include "core/gpu/check/on_device.h"

namespace sok::gpu {
namespace {

class Masked {
 public:
  Masked(const std::shared_ptr<Device>& device, GpuTable* table, const std::vector<Key>& keys,
         const MaskedModel& model, std::mt19937_64* random)
      : device_(device),
        table_(*table),
        keys_(keys),
        model_(model),
        random_(*random),
        dim_(table->dim()) {}

  Status Run() {
    count_ = 1 + Random(9);
    for (const Key key : keys_) buckets_.push_back(static_cast<int64_t>(key % count_));
    for (uint32_t i = 0; i < keys_.size(); ++i) {
      if (Random(2) == 0) positions_.push_back(i);
    }
    for (const uint32_t i : positions_) asking_.push_back(keys_[i]);
    statics_ = RandomValues(count_ * dim_);
    copies_slots_ = Random(2) == 0;
    makes_rows_ = Random(2) == 0;
    is_narrow_ = Random(3) == 0;
    SOK_RETURN_IF_ERROR(Expect());
    SOK_RETURN_IF_ERROR(Forward());
    return Backward();
  }

 private:
  uint64_t Random(uint64_t below) { return random_() % below; }

  // Sums of these values are exact in any order.
  std::vector<float> RandomValues(size_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = (static_cast<float>(Random(129)) - 64.0f) / 64.0f;
    return values;
  }

  // Puts values on the GPU, where they stay until the end of the check.
  template <typename T>
  Result<DeviceAddress> Put(const std::vector<T>& values) {
    held_.emplace_back(device_);
    return held_.back().Put(values);
  }

  static Status Same(const std::string& what, double expected, double got, double most) {
    if (AreNear(expected, got, most)) return Status();
    return Status(Code::kInternal, what + ": expected " + std::to_string(expected) +
                                       ". Received: " + std::to_string(got) + ".");
  }

  // Makes rows in the model, and computes the expected result of the lookup.
  Status Expect() {
    for (const Slot& slot : model_.slots) {
      slots_.push_back(RandomValues(count_ * slot.width));
      for (float& value : slots_.back()) value = 0.25f + std::fabs(value);
    }
    const auto write = [&](size_t i, RowRef row, bool is_new) {
      if (!is_new) return;
      const auto bucket = static_cast<size_t>(buckets_[positions_[i]]);
      float* to = std::copy_n(statics_.data() + bucket * dim_, dim_, row.embedding);
      for (size_t s = 0; copies_slots_ && s < slots_.size(); ++s) {
        const auto width = static_cast<size_t>(model_.slots[s].width);
        to = std::copy_n(slots_[s].data() + bucket * width, width, to);
      }
    };
    if (makes_rows_) {
      SOK_RETURN_IF_ERROR(
          model_.rows->Upsert(asking_.data(), asking_.size(), 0, model_.now, write, SerialFor));
    }
    expected_.resize(keys_.size() * dim_);
    for (size_t i = 0; i < keys_.size(); ++i) {
      std::copy_n(statics_.data() + static_cast<size_t>(buckets_[i]) * dim_, dim_,
                  expected_.data() + i * dim_);
    }
    own_.assign(keys_.size(), 0);
    for (const uint32_t i : positions_) own_[i] = 1;
    std::vector<uint32_t> missing;
    GatherOptions options;
    options.places = positions_.data();
    SOK_RETURN_IF_ERROR(model_.rows->Gather(asking_.data(), asking_.size(), expected_.data(),
                                            options, nullptr, &missing, SerialFor));
    for (const uint32_t i : missing) own_[positions_[i]] = 0;
    return Status();
  }

  Status Forward() {
    MaskedKeys keys;
    keys.n = keys_.size();
    keys.asking = positions_.size();
    SOK_ASSIGN_OR_RETURN(keys.keys, Put(keys_));
    SOK_ASSIGN_OR_RETURN(buckets_at_, Put(buckets_));
    keys.buckets = buckets_at_;
    SOK_ASSIGN_OR_RETURN(keys.positions, Put(positions_));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress statics, Put(statics_));
    keys.statics.rows = reinterpret_cast<const float*>(statics);
    keys.statics.count = count_;
    for (size_t s = 0; copies_slots_ && s < slots_.size(); ++s) {
      SOK_ASSIGN_OR_RETURN(const DeviceAddress slot, Put(slots_[s]));
      keys.statics.slots[s] = reinterpret_cast<const float*>(slot);
      keys.statics.slot_widths[s] = static_cast<uint32_t>(model_.slots[s].width);
      keys.statics.slot_count = static_cast<int>(s + 1);
    }
    SOK_ASSIGN_OR_RETURN(const DeviceAddress asking, Put(std::vector<Key>(asking_.size())));
    OnDevice& asking_on = held_.back();
    SOK_ASSIGN_OR_RETURN(const DeviceAddress own, Put(std::vector<uint8_t>(keys_.size(), 2)));
    OnDevice& own_on = held_.back();
    own_at_ = own;
    SOK_ASSIGN_OR_RETURN(const DeviceAddress out, Put(std::vector<float>(expected_.size(), NAN)));
    OnDevice& out_on = held_.back();
    SOK_RETURN_IF_ERROR(table_.LookupMasked(keys, makes_rows_, model_.now, asking, out,
                                            is_narrow_ ? Element::kBFloat16 : Element::kFloat32,
                                            own, nullptr));
    std::vector<Key> asked(asking_.size());
    SOK_RETURN_IF_ERROR(asking_on.Get(&asked));
    std::vector<uint8_t> got_own(keys_.size());
    SOK_RETURN_IF_ERROR(own_on.Get(&got_own));
    if (asked != asking_ || got_own != own_) {
      return Status(Code::kInternal, "a masked lookup has other keys or own rows than the model");
    }
    std::vector<float> got(expected_.size());
    if (is_narrow_) {
      std::vector<uint16_t> narrow(expected_.size());
      SOK_RETURN_IF_ERROR(out_on.Get(&narrow));
      for (size_t i = 0; i < narrow.size(); ++i) got[i] = ToFloat(BFloat16{narrow[i]});
    } else {
      SOK_RETURN_IF_ERROR(out_on.Get(&got));
    }
    for (size_t i = 0; i < got.size(); ++i) {
      const double size = std::max(1.0, std::fabs(double{expected_[i]}));
      SOK_RETURN_IF_ERROR(Same("a masked lookup of key " + std::to_string(keys_[i / dim_]),
                               expected_[i], got[i], (is_narrow_ ? 1e-2 : 1e-3) * size));
    }
    return Status();
  }

  Status Backward() {
    const std::vector<float> upstream = RandomValues(expected_.size());
    std::map<int64_t, std::vector<double>> expected;
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (own_[i] != 0) continue;
      std::vector<double>& sum = expected[buckets_[i]];
      sum.resize(dim_, 0.0);
      for (int j = 0; j < dim_; ++j) sum[j] += double{upstream[i * dim_ + j]};
    }
    DeviceAddress gradients = 0;
    if (is_narrow_) {
      std::vector<uint16_t> narrow;
      for (const float value : upstream) narrow.push_back(FromFloat<BFloat16>(value).bits);
      SOK_ASSIGN_OR_RETURN(gradients, Put(narrow));
    } else {
      SOK_ASSIGN_OR_RETURN(gradients, Put(upstream));
    }
    uint64_t distinct = 0;
    OnDevice *indices_on = nullptr, *sums_on = nullptr;
    const auto make = [&](uint64_t n, DeviceAddress* indices, DeviceAddress* sums) -> Status {
      distinct = n;
      SOK_ASSIGN_OR_RETURN(*indices, Put(std::vector<int64_t>(n, -1)));
      indices_on = &held_.back();
      SOK_ASSIGN_OR_RETURN(*sums, Put(std::vector<float>(n * dim_, NAN)));
      sums_on = &held_.back();
      return Status();
    };
    SOK_RETURN_IF_ERROR(table_.StaticGradient(own_at_, buckets_at_, gradients,
                                              is_narrow_ ? Element::kBFloat16 : Element::kFloat32,
                                              keys_.size(), count_, make, nullptr));
    SOK_RETURN_IF_ERROR(Same("static rows with gradients", static_cast<double>(expected.size()),
                             static_cast<double>(distinct), 0.0));
    if (distinct == 0) return Status();
    std::vector<int64_t> indices(distinct);
    std::vector<float> sums(distinct * dim_);
    SOK_RETURN_IF_ERROR(indices_on->Get(&indices));
    SOK_RETURN_IF_ERROR(sums_on->Get(&sums));
    size_t u = 0;
    for (const auto& [bucket, sum] : expected) {
      SOK_RETURN_IF_ERROR(Same("a static row with a gradient", static_cast<double>(bucket),
                               static_cast<double>(indices[u]), 0.0));
      for (int j = 0; j < dim_; ++j) {
        SOK_RETURN_IF_ERROR(Same("the gradient of a static row", sum[j], sums[u * dim_ + j], 0.0));
      }
      ++u;
    }
    return Status();
  }

  const std::shared_ptr<Device>& device_;
  GpuTable& table_;
  const std::vector<Key>& keys_;
  const MaskedModel& model_;
  std::mt19937_64& random_;
  const int dim_;
  uint64_t count_ = 0;  // of static rows
  bool copies_slots_ = false, makes_rows_ = false, is_narrow_ = false;
  std::vector<int64_t> buckets_;     // (keys)
  std::vector<uint32_t> positions_;  // (asking)
  std::vector<Key> asking_;
  std::vector<float> statics_;  // (count, dim)
  std::vector<std::vector<float>> slots_;
  std::vector<float> expected_;  // (keys, dim)
  std::vector<uint8_t> own_;     // (keys)
  DeviceAddress buckets_at_ = 0, own_at_ = 0;
  std::deque<OnDevice> held_;
};

}  // namespace

Status CheckMasked(const std::shared_ptr<Device>& device, GpuTable* table,
                   const std::vector<Key>& keys, const MaskedModel& model,
                   std::mt19937_64* random) {
  return Masked(device, table, keys, model, random).Run();
}

}  // namespace sok::gpu
