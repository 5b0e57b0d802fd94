#include "core/gpu/check/random_pooling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <string>

#include "core/base/bfloat16.h"
#include "core/base/float16.h"
#include "core/base/status_macros.h"
#include "core/gpu/check/near.h"
#include "core/gpu/check/on_device.h"

namespace sok::gpu {
namespace {

// The bags of one feature, and their expected results.
struct Feature {
  uint64_t first = 0, offset = 0;  // of its ids among the keys, of its vectors in a row of them all
  std::vector<int64_t> splits{0};
  bool has_length = false;
  std::vector<float> weights;
  Combiner combiner = Combiner::kSum;

  uint64_t bags() const { return splits.size() - 1; }
  uint64_t ids() const { return static_cast<uint64_t>(splits.back()); }
  double weight(int64_t id) const { return weights.empty() ? 1.0 : weights[id]; }
  double DivisorOf(uint64_t bag) const {
    if (combiner == Combiner::kSum || combiner == Combiner::kMax) return 1.0;
    double sum = 0.0;
    for (int64_t id = splits[bag]; id < splits[bag + 1]; ++id) {
      sum += combiner == Combiner::kMean ? weight(id) : weight(id) * weight(id);
    }
    return combiner == Combiner::kMean ? sum : std::sqrt(sum);
  }
};

// A value, and the sum of the absolute values of its terms.
struct Expected {
  double value = 0.0, size = 0.0;
  void Add(double more) {
    value += more;
    size += std::fabs(more);
  }
};

class Pooling {
 public:
  Pooling(const std::shared_ptr<Device>& device, GpuTable* table, const PooledKeys& pooled,
          std::mt19937_64* random)
      : device_(device), table_(*table), pooled_(pooled), random_(*random), dim_(table->dim()) {}

  Status Run() {
    while (covered_ < pooled_.keys.size()) MakeFeature();
    element_ = static_cast<Element>(Random(3));
    // Vectors of all features of an example are adjacent, or each feature has its own array.
    is_joined_ = std::all_of(features_.begin(), features_.end(), [&](const Feature& each) {
      return each.bags() == features_[0].bags();
    });
    uint64_t elements = is_joined_ ? Random(2) : 0;  // before the first
    for (Feature& each : features_) {
      each.offset = elements;
      elements += is_joined_ ? dim_ : each.bags() * dim_;
    }
    stride_ = is_joined_ ? elements : dim_;
    vectors_.assign(is_joined_ ? stride_ * features_[0].bags() : elements, NAN);
    SOK_RETURN_IF_ERROR(Forward());
    SOK_RETURN_IF_ERROR(OfGivenRows());
    for (size_t i = 0; i < features_.size(); ++i) SOK_RETURN_IF_ERROR(Backward(i));
    return Status();
  }

 private:
  uint64_t Random(uint64_t below) { return random_() % below; }

  void MakeFeature() {
    const uint64_t left = pooled_.keys.size() - covered_;
    Feature made;
    made.first = covered_;
    made.combiner = static_cast<Combiner>(Random(4));
    made.has_length = Random(3) == 0;
    const uint64_t ids = Random(2) == 0 ? left : 1 + Random(left);
    const auto length = static_cast<int64_t>(1 + Random(5));
    while (made.splits.back() < static_cast<int64_t>(ids)) {
      const int64_t more = made.has_length ? length : static_cast<int64_t>(Random(6));
      if (made.has_length && made.splits.back() + more > static_cast<int64_t>(left)) break;
      made.splits.push_back(std::min<int64_t>(made.splits.back() + more,
                                              static_cast<int64_t>(made.has_length ? left : ids)));
    }
    if (made.bags() == 0) return;
    if (made.combiner != Combiner::kMax && Random(2) == 0) {
      for (uint64_t id = 0; id < made.ids(); ++id) {
        made.weights.push_back((static_cast<float>(Random(7)) - 2.0f) / 4.0f);
      }
    }
    covered_ += made.ids();
    features_.push_back(std::move(made));
  }

  // Puts values on the GPU, where they stay until the end of the check.
  template <typename T>
  Result<DeviceAddress> Put(const std::vector<T>& values) {
    held_.emplace_back(device_);
    return held_.back().Put(values);
  }

  Result<DeviceAddress> PutFloats(const std::vector<float>& values) {
    if (element_ == Element::kFloat32) return Put(values);
    std::vector<uint16_t> narrow;
    for (const float value : values) {
      narrow.push_back(element_ == Element::kBFloat16 ? FromFloat<BFloat16>(value).bits
                                                      : FromFloat<Float16>(value).bits);
    }
    return Put(narrow);
  }

  Status GetFloats(OnDevice* from, std::vector<float>* values) {
    if (element_ == Element::kFloat32) return from->Get(values);
    std::vector<uint16_t> narrow(values->size());
    SOK_RETURN_IF_ERROR(from->Get(&narrow));
    for (size_t i = 0; i < narrow.size(); ++i) {
      (*values)[i] = element_ == Element::kBFloat16 ? ToFloat(BFloat16{narrow[i]})
                                                    : ToFloat(Float16{narrow[i]});
    }
    return Status();
  }

  uint64_t AddressOf(DeviceAddress vectors, const Feature& feature) const {
    return vectors + feature.offset * (element_ == Element::kFloat32 ? 4 : 2);
  }

  Status Same(const std::string& what, const Expected& expected, float got, double relative) const {
    const double most = relative * std::max(1e-2, expected.size);
    if (AreNear(expected.value, got, most)) return Status();
    return Status(Code::kInternal, what + ": expected " + std::to_string(expected.value) +
                                       ". Received: " + std::to_string(got) + ".");
  }
  double Rounding() const {
    return element_ == Element::kFloat32 ? 1e-5 : element_ == Element::kBFloat16 ? 4e-3 : 1e-3;
  }

  double Row(const Feature& feature, int64_t id, int j) const {
    return pooled_.rows[(feature.first + static_cast<uint64_t>(id)) * dim_ + j];
  }

  // Returns the first id of a bag whose row has the largest element j.
  int64_t WinnerOf(const Feature& feature, uint64_t bag, int j) const {
    int64_t winner = feature.splits[bag];
    for (int64_t id = winner; id < feature.splits[bag + 1]; ++id) {
      if (Row(feature, id, j) > Row(feature, winner, j)) winner = id;
    }
    return winner;
  }

  Expected VectorOf(const Feature& feature, uint64_t bag, int j) const {
    Expected vector;
    if (feature.splits[bag] == feature.splits[bag + 1]) return vector;
    if (feature.combiner == Combiner::kMax) {
      vector.Add(Row(feature, WinnerOf(feature, bag, j), j));
      return vector;
    }
    const double divisor = feature.DivisorOf(bag);
    for (int64_t id = feature.splits[bag]; id < feature.splits[bag + 1] && divisor != 0.0; ++id) {
      vector.Add(feature.weight(id) * Row(feature, id, j) / divisor);
    }
    return vector;
  }

  Status Forward() {
    SOK_ASSIGN_OR_RETURN(const DeviceAddress keys, Put(pooled_.keys));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress out, PutFloats(vectors_));
    OnDevice& out_on = held_.back();
    for (const Feature& feature : features_) {
      RowBags bags;
      bags.first = feature.first;
      bags.ids = feature.ids();
      bags.bags = feature.bags();
      bags.combiner = feature.combiner;
      bags.vectors = AddressOf(out, feature);
      bags.stride = stride_;
      bags.element = element_;
      if (feature.has_length) {
        bags.length = static_cast<uint64_t>(feature.splits[1]);
      } else {
        SOK_ASSIGN_OR_RETURN(bags.splits, Put(feature.splits));
      }
      if (!feature.weights.empty()) {
        SOK_ASSIGN_OR_RETURN(bags.weights, Put(feature.weights));
      }
      SOK_ASSIGN_OR_RETURN(bags.rows, Put(std::vector<float>(feature.ids() * dim_, NAN)));
      bags_.push_back(bags);
    }
    SOK_RETURN_IF_ERROR(table_.LookupPooled(keys, pooled_.keys.size(), bags_, pooled_.absent,
                                            pooled_.now, nullptr));
    SOK_RETURN_IF_ERROR(GetFloats(&out_on, &vectors_));
    return SameVectors(vectors_);
  }

  Status SameVectors(const std::vector<float>& vectors) const {
    for (const Feature& feature : features_) {
      for (uint64_t bag = 0; bag < feature.bags(); ++bag) {
        for (int j = 0; j < dim_; ++j) {
          const float got = vectors[feature.offset + bag * stride_ + j];
          SOK_RETURN_IF_ERROR(Same("a pooled vector", VectorOf(feature, bag, j), got, Rounding()));
        }
      }
    }
    return Status();
  }

  // Pools rows that are not in the table, one for each key, and sums their gradients.
  Status OfGivenRows() {
    std::mt19937_64 random = random_;  // so that programs of a seed stay as they are
    std::vector<Key> distinct = pooled_.keys;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::shuffle(distinct.begin(), distinct.end(), random);
    std::map<Key, uint32_t> number_of;
    for (const Key key : distinct) number_of.emplace(key, static_cast<uint32_t>(number_of.size()));
    const size_t n = pooled_.keys.size(), count = distinct.size() + 1;  // the last has no key
    std::vector<float> rows(count * dim_, NAN), gradients(n * dim_), sums(count * dim_, NAN);
    std::vector<Expected> expected(count * dim_);
    std::vector<uint32_t> numbers;
    for (float& each : gradients) each = (static_cast<float>(random() % 129) - 64.0f) / 64.0f;
    for (size_t i = 0; i < n; ++i) {
      numbers.push_back(number_of[pooled_.keys[i]]);
      for (int j = 0; j < dim_; ++j) {
        rows[numbers[i] * dim_ + j] = pooled_.rows[i * dim_ + j];
        expected[numbers[i] * dim_ + j].Add(gradients[i * dim_ + j]);
      }
    }
    SOK_ASSIGN_OR_RETURN(const DeviceAddress numbers_at, Put(numbers));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress rows_at, Put(rows));
    std::vector<float> got(vectors_.size(), NAN);
    SOK_ASSIGN_OR_RETURN(const DeviceAddress out, PutFloats(got));
    OnDevice& out_on = held_.back();
    std::vector<RowBags> bags = bags_;
    for (size_t i = 0; i < bags.size(); ++i) bags[i].vectors = AddressOf(out, features_[i]);
    SOK_RETURN_IF_ERROR(table_.PoolRows(rows_at, numbers_at, bags, nullptr));
    SOK_RETURN_IF_ERROR(GetFloats(&out_on, &got));
    SOK_RETURN_IF_ERROR(SameVectors(got));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress gradients_at, Put(gradients));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress sums_at, Put(sums));
    OnDevice& sums_on = held_.back();
    const bool marks = random() % 2 == 0;
    SOK_RETURN_IF_ERROR(
        table_.SumByNumber(gradients_at, numbers_at, n, count, marks, sums_at, nullptr));
    SOK_RETURN_IF_ERROR(sums_on.Get(&sums));
    for (size_t i = 0; i + dim_ < sums.size(); ++i) {
      SOK_RETURN_IF_ERROR(Same("a sum by number", expected[i], sums[i], 1e-5));
    }
    return SameMark(sums.data() + (count - 1) * dim_, marks);
  }

  // Returns an error unless a row of gradients has, or lacks, the mark of no gradient as expected.
  Status SameMark(const float* row, bool is_marked) const {
    std::vector<float> expected(dim_, 0.0f);
    if (is_marked) std::memcpy(expected.data(), &kUnusedBits, sizeof(kUnusedBits));
    if (std::memcmp(row, expected.data(), dim_ * sizeof(float)) == 0) return Status();
    return Status(Code::kInternal, "expected no gradient to be marked, or zeros");
  }

  Status Backward(size_t number) {
    const Feature& feature = features_[number];
    RowBags bags = bags_[number];
    std::vector<float> upstream(vectors_.size());
    for (float& value : upstream) value = (static_cast<float>(Random(129)) - 64.0f) / 64.0f;
    // The vector of one bag may not have been used.
    bags.skips_marked = element_ == Element::kFloat32 && feature.weights.empty() && number % 2 == 0;
    const uint64_t resting = bags.skips_marked ? feature.bags() / 2 : feature.bags();
    if (bags.skips_marked) {
      std::memcpy(&upstream[feature.offset + resting * stride_], &kUnusedBits, sizeof(kUnusedBits));
    }
    SOK_ASSIGN_OR_RETURN(const DeviceAddress upstream_at, PutFloats(upstream));
    bags.vectors = AddressOf(upstream_at, feature);
    std::vector<float> got(feature.ids() * dim_, NAN);
    SOK_ASSIGN_OR_RETURN(const DeviceAddress gradients, Put(got));
    OnDevice& gradients_on = held_.back();
    SOK_RETURN_IF_ERROR(table_.PoolGradient(bags, gradients, nullptr));
    SOK_RETURN_IF_ERROR(gradients_on.Get(&got));
    std::vector<float> of_weights(feature.ids(), NAN);
    if (!feature.weights.empty()) {
      SOK_ASSIGN_OR_RETURN(const DeviceAddress weights, Put(of_weights));
      OnDevice& weights_on = held_.back();
      SOK_RETURN_IF_ERROR(table_.WeightGradient(bags, weights, nullptr));
      SOK_RETURN_IF_ERROR(weights_on.Get(&of_weights));
    }
    for (uint64_t bag = 0; bag < feature.bags(); ++bag) {
      const float* const of_bag = upstream.data() + feature.offset + bag * stride_;
      for (int64_t id = feature.splits[bag]; bag == resting && id < feature.splits[bag + 1]; ++id) {
        SOK_RETURN_IF_ERROR(SameMark(got.data() + id * dim_, true));
      }
      if (bag == resting) continue;
      const double divisor = feature.DivisorOf(bag);
      const double scale = divisor == 0.0 ? 0.0 : 1.0 / divisor;
      Expected of_vector;
      for (int64_t id = feature.splits[bag]; id < feature.splits[bag + 1]; ++id) {
        for (int j = 0; j < dim_; ++j) {
          of_vector.Add(scale * feature.weight(id) * of_bag[j] * Row(feature, id, j));
        }
      }
      for (int64_t id = feature.splits[bag]; id < feature.splits[bag + 1]; ++id) {
        Expected of_weight;
        for (int j = 0; j < dim_; ++j) {
          Expected of_row;
          const bool is_max = feature.combiner == Combiner::kMax;
          const bool wins = is_max && WinnerOf(feature, bag, j) == id;
          of_row.Add(is_max ? (wins ? of_bag[j] : 0.0) : scale * feature.weight(id) * of_bag[j]);
          SOK_RETURN_IF_ERROR(Same("a gradient of a row", of_row, got[id * dim_ + j], 1e-5));
          of_weight.Add(scale * of_bag[j] * Row(feature, id, j));
        }
        if (feature.weights.empty()) continue;
        if (feature.combiner == Combiner::kMean || feature.combiner == Combiner::kSqrtN) {
          const bool is_mean = feature.combiner == Combiner::kMean;
          const double share = scale * (is_mean ? 1.0 : scale * feature.weight(id));
          of_weight.value -= share * of_vector.value;
          of_weight.size += std::fabs(share) * of_vector.size;
        }
        SOK_RETURN_IF_ERROR(Same("a gradient of a weight", of_weight, of_weights[id], 1e-5));
      }
    }
    return Status();
  }

  const std::shared_ptr<Device>& device_;
  GpuTable& table_;
  const PooledKeys& pooled_;
  std::mt19937_64& random_;
  const int dim_;
  uint64_t covered_ = 0, stride_ = 0;
  bool is_joined_ = false;
  Element element_ = Element::kFloat32;
  std::vector<Feature> features_;
  std::vector<RowBags> bags_;
  std::vector<float> vectors_;
  std::deque<OnDevice> held_;
};

}  // namespace

Status CheckPooling(const std::shared_ptr<Device>& device, GpuTable* table,
                    const PooledKeys& pooled, std::mt19937_64* random) {
  return Pooling(device, table, pooled, random).Run();
}

}  // namespace sok::gpu
