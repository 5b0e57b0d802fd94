// Hashed bags on the stand-in for a GPU: the kernels' sources on the host.
#include "core/gpu/gpu_bags.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/gpu/check/random_bags.h"
#include "core/gpu/test_standin.h"

namespace sok::gpu {
namespace {

// The memory of the stand-in is the host's.
template <typename T>
DeviceAddress At(const std::vector<T>& values) {
  return reinterpret_cast<DeviceAddress>(values.data());
}

// Memory for one test.
class Memory {
 public:
  TakeMemory Take() {
    return [this](uint64_t bytes) -> Result<DeviceAddress> {
      held_.emplace_back(bytes, '\x5a');
      return At(held_.back());
    };
  }

 private:
  std::vector<std::vector<char>> held_;
};

PositionMap MapOf(int64_t size, int dim, PositionHash hash = PositionHash::kMixed) {
  PositionMapOptions options;
  options.hash = hash;
  options.size = size;
  options.num_embeddings = 100;
  options.dim = dim;
  return Value(PositionMap::Make(options));
}

// Bags of one id each, out of 100 ids.
GpuBatch BatchOf(const PositionMap& map, const std::vector<int64_t>& ids) {
  return {map, BagMode::kSum, 100, -1, At(ids), true, ids.size(), ids.size(), 1, 0, true, false, 0};
}

TEST_CASE("random batches of hashed bags on a GPU equal those of the host") {
  for (uint64_t seed = 1; seed <= (LongTests() ? 400 : 120); ++seed) {
    const Status status = RunRandomBags(StandIn(), seed, seed % 20 == 0 ? 6000 : 300);
    INFO("seed ", seed, ": ", status.message());
    REQUIRE(status.ok());
  }
}

TEST_CASE("an id that cannot be makes its bag NaN, and is told at a later call") {
  StandIn();
  GpuBags& bags = *Value(GpuBags::Of(0));
  const PositionMap map = MapOf(50, 3);
  const std::vector<float> weight(50, 1.0f);
  for (const int64_t wrong : {int64_t{100}, int64_t{-1}, INT64_MIN}) {
    const std::vector<int64_t> ids{3, wrong, 4};
    std::vector<float> out(9);
    const GpuFloats to{At(out), Element::kFloat32};
    REQUIRE(bags.Forward(BatchOf(map, ids), {At(weight), Element::kFloat32}, to, 0, nullptr).ok());
    for (int i = 0; i < 9; ++i) CHECK(std::isnan(out[i]) == (i / 3 == 1));
    const Status told = bags.Check(nullptr);
    CHECK(told.code() == Code::kInvalidArgument);
    CHECK(Contains(told,
                   "expected ids in [0, 100), got " + std::to_string(wrong) + " at position 1"));
    CHECK(bags.Check(nullptr).ok());
    // A gradient skips the invalid id.
    Memory memory;
    const std::vector<float> upstream(9, 2.0f);
    std::vector<float> gradient(50);
    REQUIRE(bags.DenseGradient(BatchOf(map, ids), {At(upstream), Element::kFloat32}, 0,
                               {At(gradient), Element::kFloat32}, memory.Take(), nullptr)
                .ok());
    float sum = 0.0f;
    for (const float each : gradient) sum += each;
    CHECK(sum == 12.0f);
    CHECK(Contains(bags.Forward(BatchOf(map, ids), {At(weight), Element::kFloat32}, to, 0, nullptr),
                   "earlier call on GPU 0"));
    CHECK(bags.Check(nullptr).ok());
  }
}

TEST_CASE("offsets that cannot be make their bags NaN, and are told at a later call") {
  StandIn();
  GpuBags& bags = *Value(GpuBags::Of(0));
  const PositionMap map = MapOf(50, 3);
  const std::vector<float> weight(50, 1.0f);
  const std::vector<int64_t> ids{3, 1, 4, 1, 5};
  struct Case {
    std::vector<int64_t> offsets;
    bool ends;
    size_t wrong;  // bag
    const char* text;
  };
  const Case cases[] = {
      {{1, 2, 4}, false, 0, "expected the first offset to be 0, got 1"},
      {{0, 3, 2, 4}, false, 1, "got 2 after 3 at position 2"},
      {{0, 3, 6}, false, 1, "got 6 after 3 at position 2"},
      {{0, 3, 4}, true, 1, "expected the last offset to be 5, the number of ids, got 4"},
  };
  for (const Case& each : cases) {
    GpuBatch batch = BatchOf(map, ids);
    batch.bags = each.offsets.size() - each.ends;
    batch.offsets = At(each.offsets);
    batch.ends = each.ends;
    std::vector<float> out(batch.bags * 3);
    REQUIRE(bags.Forward(batch, {At(weight), Element::kFloat32}, {At(out), Element::kFloat32}, 0,
                         nullptr)
                .ok());
    CHECK(std::isnan(out[each.wrong * 3]));
    const Status told = bags.Check(nullptr);
    CHECK_MESSAGE(Contains(told, each.text), told.message());
    // Nothing outside of the batch is read or written.
    Memory memory;
    const std::vector<float> upstream(out.size(), 1.0f);
    std::vector<float> gradient(50);
    batch.mode = BagMode::kMean;
    REQUIRE(bags.DenseGradient(batch, {At(upstream), Element::kFloat32}, 0,
                               {At(gradient), Element::kFloat32}, memory.Take(), nullptr)
                .ok());
    (void)bags.Check(nullptr);
  }
}

TEST_CASE("a winner outside of the batch adds nothing and is told") {
  StandIn();
  GpuBags& bags = *Value(GpuBags::Of(0));
  const PositionMap map = MapOf(50, 1);
  const std::vector<int64_t> ids{3, 4}, winners{0, 7};
  const std::vector<float> upstream{1.0f, 2.0f};
  GpuBatch batch = BatchOf(map, ids);
  batch.mode = BagMode::kMax;
  Memory memory;
  std::vector<float> gradient(50);
  REQUIRE(bags.DenseGradient(batch, {At(upstream), Element::kFloat32}, At(winners),
                             {At(gradient), Element::kFloat32}, memory.Take(), nullptr)
              .ok());
  CHECK(gradient[map.Position(3, 0)] == 1.0f);
  CHECK(Contains(bags.Check(nullptr), "expected winners of the forward pass, got 7 at position 1"));
}

TEST_CASE("positions beyond 2^32 are told apart on a GPU") {
  StandIn();
  GpuBags& bags = *Value(GpuBags::Of(0));
  const int64_t size = (int64_t{1} << 36) + 3;
  const PositionMap map = MapOf(size, 8);
  const std::vector<int64_t> ids{1, 2, 1};
  std::vector<float> upstream(24);
  for (int i = 0; i < 24; ++i) upstream[i] = static_cast<float>(i);
  Memory memory;
  std::vector<int64_t> positions;
  std::vector<float> sums;
  REQUIRE(bags.SparseGradient(
                  BatchOf(map, ids), {At(upstream), Element::kFloat32}, 0,
                  [&](uint64_t n, DeviceAddress* positions_to, GpuFloats* sums_to) {
                    positions.resize(n);
                    sums.resize(n);
                    *positions_to = At(positions);
                    *sums_to = {At(sums), Element::kFloat32};
                    return Status();
                  },
                  memory.Take(), nullptr)
              .ok());
  REQUIRE(positions.size() == 16);
  for (int64_t id : {1, 2}) {
    for (int d = 0; d < 8; ++d) {
      const auto position = static_cast<int64_t>(map.Position(static_cast<uint64_t>(id), d));
      const auto at = std::find(positions.begin(), positions.end(), position);
      REQUIRE(at != positions.end());
      const int i = static_cast<int>(at - positions.begin());
      CHECK(sums[i] == (id == 1 ? upstream[d] + upstream[16 + d] : upstream[8 + d]));
    }
  }
  CHECK(std::is_sorted(positions.begin(), positions.end()));
}

TEST_CASE("a batch of several rounds is summed whole, and the same in every run") {
  StandIn();
  GpuBags& bags = *Value(GpuBags::Of(0));
  // A round has 2^23 / 4096 entries.
  const int dim = 4096;
  const PositionMap map = MapOf(7, dim);
  std::vector<int64_t> ids(2100);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i % 100);
  std::vector<double> upstream(ids.size() * dim);
  for (size_t i = 0; i < upstream.size(); ++i) upstream[i] = static_cast<double>(i % 13) - 6.0;
  std::vector<double> expected(7, 0.0);  // sums of small integers are exact
  for (size_t i = 0; i < upstream.size(); ++i) {
    expected[map.Position(static_cast<uint64_t>(ids[i / dim]), static_cast<int>(i % dim))] +=
        upstream[i];
  }
  Memory memory;
  std::vector<double> gradient(7, 99.0);
  REQUIRE(bags.DenseGradient(BatchOf(map, ids), {At(upstream), Element::kFloat64}, 0,
                             {At(gradient), Element::kFloat64}, memory.Take(), nullptr)
              .ok());
  CHECK(gradient == expected);
}

TEST_CASE("a sparse gradient of too many elements is refused") {
  StandIn();
  GpuBags& bags = *Value(GpuBags::Of(0));
  const PositionMap map = MapOf(50, 1 << 20);
  GpuBatch batch = BatchOf(map, {});
  batch.entries = batch.bags = 1 << 11;
  Memory memory;
  const Status refused =
      bags.SparseGradient(batch, {0, Element::kFloat32}, 0, nullptr, memory.Take(), nullptr);
  CHECK(Contains(refused, "fewer than 2^31 elements"));
  CHECK(Contains(refused, "dense gradient"));
}

}  // namespace
}  // namespace sok::gpu
