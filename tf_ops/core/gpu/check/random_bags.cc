#include "core/gpu/check/random_bags.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/bags/forward.h"
#include "core/bags/gradient.h"
#include "core/base/status_macros.h"
#include "core/gpu/check/on_device.h"
#include "core/gpu/gpu_bags.h"

namespace sok::gpu {
namespace {

template <typename T>
struct ElementOf;
template <>
struct ElementOf<float> {
  static constexpr Element kValue = Element::kFloat32;
};
template <>
struct ElementOf<BFloat16> {
  static constexpr Element kValue = Element::kBFloat16;
};
template <>
struct ElementOf<Float16> {
  static constexpr Element kValue = Element::kFloat16;
};
template <>
struct ElementOf<double> {
  static constexpr Element kValue = Element::kFloat64;
};

template <typename T>
std::vector<typename SumOf<T>::type> Wide(const std::vector<T>& values) {
  std::vector<typename SumOf<T>::type> wide;
  for (const T& value : values) wide.push_back(Widen(value));
  return wide;
}

// The shape of a batch, which follows from a seed.
struct Shape {
  PositionMapOptions options;
  BagMode mode;
  bool is_scaled, is_padded, has_offsets, ends, wide_ids, wide_offsets;
  uint64_t most_entries;
};

template <typename T, typename Out>
class RandomBags {
 public:
  using Sum = typename SumOf<T>::type;

  RandomBags(std::shared_ptr<Device> device, const Shape& shape, std::mt19937_64* random)
      : device_(std::move(device)),
        shape_(shape),
        random_(*random),
        positions_(PositionMap::Make(shape.options).value()) {
    const uint64_t bags = Random(2) == 0 ? Random(8) : 1 + Random(shape.most_entries / 3 + 1);
    const uint64_t width = Random(7);
    std::vector<int64_t> splits{0};
    for (uint64_t bag = 0; bag < bags; ++bag) {
      // Rarely a bag is long.
      const uint64_t most = Random(50) == 0 ? shape.most_entries / 4 : 7;
      splits.push_back(splits.back() +
                       static_cast<int64_t>(shape.has_offsets ? Random(most + 1) : width));
    }
    splits_ = splits;
    width_ = width;
    const uint64_t ids = static_cast<uint64_t>(shape.options.num_embeddings);
    for (int64_t e = 0; e < splits.back(); ++e) {
      // Half of the ids come from a small range, so that positions get many values.
      ids_.push_back(
          static_cast<int64_t>(Random(Random(2) == 0 ? std::min<uint64_t>(ids, 5) : ids)));
    }
    // If no id could be padding, the batch has no padding.
    bags_ = {ids_.data(), splits_.data(), static_cast<int64_t>(bags),
             shape.is_padded && !ids_.empty() ? ids_[0] : -1};
    Fill(static_cast<uint64_t>(shape.options.size), &weight_);
    Fill(bags * static_cast<uint64_t>(shape.options.dim), &upstream_);
    if (shape.is_scaled) Fill(ids_.size(), &scales_);
    if (Random(4) == 0) weight_[Random(weight_.size())] = Narrow<T>(static_cast<Sum>(NAN));
  }

  Status Run() {
    SOK_ASSIGN_OR_RETURN(GpuBags* const bags, GpuBags::Of(device_->ordinal()));
    of_gpu_ = bags;
    SOK_RETURN_IF_ERROR(PutBatch());
    SOK_RETURN_IF_ERROR(Forward());
    // With NaNs a gradient has no bits to compare; the gradient does not depend on the weight.
    SOK_RETURN_IF_ERROR(Gradients());
    if (shape_.is_scaled) SOK_RETURN_IF_ERROR(Scales());
    return of_gpu_->Check(nullptr);
  }

 private:
  uint64_t Random(uint64_t below) { return random_() % below; }

  template <typename V>
  void Fill(uint64_t n, std::vector<V>* values) {
    for (uint64_t i = 0; i < n; ++i) {
      const double x = static_cast<double>(random_() >> 11) * 0x1p-52 - 1;
      values->push_back(Narrow<V>(static_cast<typename SumOf<V>::type>(x)));
    }
  }

  // Returns memory that lives as long as this object.
  template <typename V>
  Result<DeviceAddress> Put(const std::vector<V>& values) {
    held_.push_back(std::make_unique<OnDevice>(device_));
    return held_.back()->Put(values);
  }

  template <typename V>
  Status Get(DeviceAddress from, std::vector<V>* values) {
    SOK_RETURN_IF_ERROR(
        device_->CopyToHost(values->data(), from, values->size() * sizeof(V), nullptr));
    return device_->Synchronize(nullptr);
  }

  TakeMemory Take() {
    return [this](uint64_t bytes) { return Put(std::vector<char>(bytes, '\x5a')); };
  }

  Status PutBatch() {
    batch_ = std::make_unique<GpuBatch>(
        GpuBatch{positions_, shape_.mode, static_cast<uint64_t>(shape_.options.num_embeddings),
                 bags_.padding, 0, shape_.wide_ids, ids_.size(), static_cast<uint64_t>(bags_.bags),
                 width_, 0, shape_.wide_offsets, shape_.ends, 0});
    const auto put = [this](const std::vector<int64_t>& values, bool is_wide) {
      if (is_wide) return Put(values);
      return Put(std::vector<int32_t>(values.begin(), values.end()));
    };
    SOK_ASSIGN_OR_RETURN(batch_->ids, put(ids_, shape_.wide_ids));
    if (shape_.has_offsets) {
      const std::vector<int64_t> offsets(splits_.begin(), splits_.end() - !shape_.ends);
      SOK_ASSIGN_OR_RETURN(batch_->offsets, put(offsets, shape_.wide_offsets));
    }
    if (shape_.is_scaled) {
      SOK_ASSIGN_OR_RETURN(batch_->scales, Put(scales_));
    }
    SOK_ASSIGN_OR_RETURN(weight_on_, Put(weight_));
    SOK_ASSIGN_OR_RETURN(upstream_on_, Put(upstream_));
    return Status();
  }

  template <typename V>
  Status SameBits(const char* what, const std::vector<V>& expected, const std::vector<V>& got) {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::memcmp(&expected[i], &got[i], sizeof(V)) == 0) continue;
      if constexpr (!std::is_integral_v<V>) {
        // Any NaN equals any other.
        if (Widen(expected[i]) != Widen(expected[i]) && Widen(got[i]) != Widen(got[i])) continue;
        return Differs(what, i, Widen(expected[i]), Widen(got[i]));
      } else {
        return Differs(what, i, expected[i], got[i]);
      }
    }
    return Status();
  }

  template <typename V>
  Status Differs(const char* what, size_t i, V expected, V got) {
    return Status(Code::kInternal, std::string(what) + " " + std::to_string(i) + ": expected " +
                                       std::to_string(expected) +
                                       ". Received: " + std::to_string(got) + ".");
  }

  Status Forward() {
    std::vector<Out> expected(upstream_.size());
    winners_.assign(shape_.mode == BagMode::kMax ? expected.size() : 0, 7);
    const std::vector<Sum> scales = Wide(scales_);
    HashedBagForward<T, Out>(positions_, bags_, shape_.mode, weight_.data(),
                             shape_.is_scaled ? scales.data() : nullptr, expected.data(),
                             winners_.data(), SerialFor);
    SOK_ASSIGN_OR_RETURN(const DeviceAddress out, Put(upstream_));
    SOK_ASSIGN_OR_RETURN(winners_on_, Put(winners_));
    SOK_RETURN_IF_ERROR(of_gpu_->Forward(*batch_, {weight_on_, ElementOf<T>::kValue},
                                         {out, ElementOf<Out>::kValue}, winners_on_, nullptr));
    std::vector<Out> got(expected.size());
    std::vector<int64_t> winners(winners_.size());
    SOK_RETURN_IF_ERROR(Get(out, &got));
    SOK_RETURN_IF_ERROR(Get(winners_on_, &winners));
    SOK_RETURN_IF_ERROR(SameBits("element of the vectors", expected, got));
    return SameBits("winner", winners_, winners);
  }

  struct Sparse {
    std::vector<int64_t> positions;
    std::vector<T> sums;
  };

  Result<Sparse> SparseOfGpu() {
    Sparse got;
    DeviceAddress positions = 0, sums = 0;
    const auto make = [&](uint64_t n, DeviceAddress* positions_to, GpuFloats* sums_to) -> Status {
      got.positions.resize(n);
      got.sums.resize(n);
      SOK_ASSIGN_OR_RETURN(positions, Put(got.positions));
      SOK_ASSIGN_OR_RETURN(sums, Put(got.sums));
      *positions_to = positions;
      *sums_to = {sums, ElementOf<T>::kValue};
      return Status();
    };
    SOK_RETURN_IF_ERROR(of_gpu_->SparseGradient(*batch_, {upstream_on_, ElementOf<Out>::kValue},
                                                winners_on_, make, Take(), nullptr));
    SOK_RETURN_IF_ERROR(Get(positions, &got.positions));
    SOK_RETURN_IF_ERROR(Get(sums, &got.sums));
    return got;
  }

  Result<std::vector<T>> DenseOfGpu() {
    std::vector<T> got(weight_.size());
    SOK_ASSIGN_OR_RETURN(const DeviceAddress to, Put(got));
    SOK_RETURN_IF_ERROR(of_gpu_->DenseGradient(*batch_, {upstream_on_, ElementOf<Out>::kValue},
                                               winners_on_, {to, ElementOf<T>::kValue}, Take(),
                                               nullptr));
    SOK_RETURN_IF_ERROR(Get(to, &got));
    return got;
  }

  // Returns the number of values of each position, and the sum of their absolute values.
  std::map<int64_t, std::pair<int64_t, double>> Values() const {
    std::map<int64_t, std::pair<int64_t, double>> values;
    const int dim = positions_.dim();
    for (int64_t bag = 0; bag < bags_.bags; ++bag) {
      for (int64_t e = splits_[bag]; e < splits_[bag + 1]; ++e) {
        if (bags_.padded(e)) continue;
        for (int d = 0; d < dim; ++d) {
          if (shape_.mode == BagMode::kMax && winners_[bag * dim + d] != e) continue;
          const double factor = shape_.is_scaled ? static_cast<double>(Widen(scales_[e])) : 1.0;
          auto& [count, size] =
              values[static_cast<int64_t>(positions_.Position(static_cast<uint64_t>(ids_[e]), d))];
          ++count;
          size += std::fabs(static_cast<double>(Widen(upstream_[bag * dim + d])) * factor);
        }
      }
    }
    return values;
  }

  Status Gradients() {
    const std::vector<Sum> upstream = Wide(upstream_), scales = Wide(scales_);
    const BagGradient<Sum> gradient{positions_,
                                    bags_,
                                    shape_.mode,
                                    upstream.data(),
                                    shape_.is_scaled ? scales.data() : nullptr,
                                    winners_.data()};
    const SparseWeightGradient<Sum> sparse(gradient, SerialFor);
    Sparse expected{std::vector<int64_t>(sparse.size()), std::vector<T>(sparse.size())};
    sparse.Write(expected.positions.data(), expected.sums.data(), SerialFor);
    std::vector<Sum> dense(weight_.size());
    DenseWeightGradient(gradient, dense.data(), SerialFor);

    SOK_ASSIGN_OR_RETURN(const Sparse got, SparseOfGpu());
    if (got.positions.size() != expected.positions.size()) {
      return Differs("positions, number", 0, expected.positions.size(), got.positions.size());
    }
    SOK_RETURN_IF_ERROR(SameBits("position", expected.positions, got.positions));
    SOK_ASSIGN_OR_RETURN(const std::vector<T> got_dense, DenseOfGpu());
    const auto values = Values();
    // The last bit of the output, plus the rounding of sums in another order.
    const double last = static_cast<double>(std::is_same_v<T, BFloat16>  ? 0x1p-7
                                            : std::is_same_v<T, Float16> ? 0x1p-10
                                                                         : 0.0);
    const double unit = std::is_same_v<Sum, double> ? 0x1p-52 : 0x1p-23;
    size_t place = 0;
    for (size_t i = 0; i < dense.size(); ++i) {
      const auto found = values.find(static_cast<int64_t>(i));
      const double wanted = static_cast<double>(dense[i]);
      const double is = static_cast<double>(Widen(got_dense[i]));
      if (found == values.end()) {
        if (is != 0.0) return Differs("dense gradient of an untouched position", i, 0.0, is);
        continue;
      }
      const auto& [count, size] = found->second;
      const double limit = 4 * unit * size * std::sqrt(static_cast<double>(count)) +
                           last * std::fabs(wanted) + 1e-7 * (last > 0);
      if (!(std::fabs(is - wanted) <= limit)) return Differs("dense gradient", i, wanted, is);
      const size_t at = place++;
      if (count <= kLong) {
        SOK_RETURN_IF_ERROR(SameBits<T>("sparse gradient", {expected.sums[at]}, {got.sums[at]}));
      }
      const double sum = static_cast<double>(Widen(got.sums[at]));
      if (!(std::fabs(sum - wanted) <= limit)) return Differs("sparse sum", i, wanted, sum);
    }
    SOK_ASSIGN_OR_RETURN(const Sparse again, SparseOfGpu());
    SOK_RETURN_IF_ERROR(SameBits("sparse gradient, again,", got.sums, again.sums));
    SOK_ASSIGN_OR_RETURN(const std::vector<T> dense_again, DenseOfGpu());
    return SameBits("dense gradient, again,", got_dense, dense_again);
  }

  Status Scales() {
    const std::vector<Sum> upstream = Wide(upstream_);
    std::vector<Sum> wide(ids_.size());
    ScaleGradient<T>({positions_, bags_, shape_.mode, upstream.data(), nullptr, nullptr},
                     weight_.data(), wide.data(), SerialFor);
    std::vector<Out> expected, got(ids_.size());
    for (const Sum sum : wide) expected.push_back(Narrow<Out>(sum));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress factors, Put(got));
    SOK_RETURN_IF_ERROR(of_gpu_->ScaleGradient(*batch_, {weight_on_, ElementOf<T>::kValue},
                                               {upstream_on_, ElementOf<Out>::kValue}, factors,
                                               nullptr));
    SOK_RETURN_IF_ERROR(Get(factors, &got));
    return SameBits("gradient of a factor", expected, got);
  }

  const std::shared_ptr<Device> device_;
  const Shape shape_;
  std::mt19937_64& random_;
  const PositionMap positions_;
  std::vector<int64_t> ids_, splits_, winners_;
  std::vector<T> weight_;
  std::vector<Out> upstream_, scales_;
  uint64_t width_;
  Bags bags_;
  GpuBags* of_gpu_ = nullptr;
  std::unique_ptr<GpuBatch> batch_;
  DeviceAddress weight_on_ = 0, upstream_on_ = 0, winners_on_ = 0;
  std::vector<std::unique_ptr<OnDevice>> held_;
};

template <typename T>
Status RunWithWeight(const std::shared_ptr<Device>& device, const Shape& shape,
                     std::mt19937_64* random) {
  switch ((*random)() % 3) {
    case 0:
      return RandomBags<T, float>(device, shape, random).Run();
    case 1:
      return RandomBags<T, BFloat16>(device, shape, random).Run();
    default:
      return RandomBags<T, Float16>(device, shape, random).Run();
  }
}

}  // namespace

Status RunRandomBags(const std::shared_ptr<Device>& device, uint64_t seed, uint64_t most_entries) {
  std::mt19937_64 random(seed);
  const auto pick = [&](const std::vector<int64_t>& values) {
    return values[random() % values.size()];
  };
  Shape shape{};
  shape.options.hash = static_cast<PositionHash>(random() % 3);
  shape.options.seed = random();
  shape.options.size = pick({1, 3, 40, 3000, 70001});
  shape.options.num_embeddings = pick({1, 6, 500, 1000000});
  shape.options.dim = pick({1, 3, 4, 16, 37, 70});
  shape.options.block_size = pick({1, 1, 5, 8, 16});
  shape.options.sign = random() % 2 == 0;
  shape.mode = static_cast<BagMode>(random() % 3);
  shape.is_scaled = shape.mode == BagMode::kSum && random() % 2 == 0;
  shape.is_padded = random() % 2 == 0;
  shape.has_offsets = random() % 2 == 0;
  shape.ends = random() % 2 == 0;
  shape.wide_ids = random() % 2 == 0;
  shape.wide_offsets = random() % 2 == 0;
  shape.most_entries = most_entries;
  switch (random() % 6) {
    case 0:
      return RandomBags<double, double>(device, shape, &random).Run();
    case 1:
      return RunWithWeight<BFloat16>(device, shape, &random);
    case 2:
      return RunWithWeight<Float16>(device, shape, &random);
    default:
      return RunWithWeight<float>(device, shape, &random);
  }
}

}  // namespace sok::gpu
