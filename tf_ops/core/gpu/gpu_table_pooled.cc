// Pools rows.
#include "core/gpu/table_parts.h"

namespace sok::gpu {
namespace {

BagsOfIds BagsOf(const RowBags& bags) {
  return {Pointer<int64_t>(bags.splits), bags.length, Pointer<float>(bags.weights), bags.bags,
          bags.combiner};
}

BagFloats FloatsOf(const RowBags& bags) {
  // Pieces of rows have one float or four.
  constexpr uint64_t kLargestPiece = 4;
  const uint64_t bytes = bags.element == Element::kFloat32 ? sizeof(float) : sizeof(uint16_t);
  const bool is_aligned =
      bags.stride % kLargestPiece == 0 && bags.vectors % (kLargestPiece * bytes) == 0;
  return {Pointer<void>(bags.vectors), bags.stride, bags.element, is_aligned};
}

}  // namespace

Status GpuTable::LookupPooled(DeviceAddress keys, uint64_t n, const std::vector<RowBags>& bags,
                              Absent absent, uint32_t now, Stream stream) {
  SOK_ENTER(stream);
  SOK_RETURN_IF_ERROR(CheckCount(n));
  SOK_ASSIGN_OR_RETURN(const DeviceAddress numbers, NumbersOf(keys, n, absent, now));
  return PoolEach(RowsOfTable(), numbers, keys, bags, absent == Absent::kStart);
}

Status GpuTable::PoolRows(DeviceAddress rows, DeviceAddress numbers,
                          const std::vector<RowBags>& bags, Stream stream) {
  SOK_ENTER(stream);
  const Rows all{Pointer<float>(rows), static_cast<uint32_t>(dim_), dim_};
  return PoolEach(all, numbers, /*keys=*/0, bags, /*fills_start=*/false);
}

Status GpuTable::PoolEach(const Rows& rows, DeviceAddress numbers, DeviceAddress keys,
                          const std::vector<RowBags>& bags, bool fills_start) {
  for (const RowBags& each : bags) {
    const auto* const of_ids = Pointer<uint32_t>(numbers) + each.first;
    const auto* const keys_of_ids = keys == 0 ? nullptr : Pointer<uint64_t>(keys) + each.first;
    const PoolArguments pool{rows,
                             of_ids,
                             keys_of_ids,
                             BagsOf(each),
                             FloatsOf(each),
                             fills_start,
                             initializer_.start_vector()};
    SOK_RETURN_IF_ERROR(Launch(kernels_->pool, each.bags * dim_, &pool));
    if (each.rows == 0) continue;
    const GatherArguments gather{rows,
                                 of_ids,
                                 keys_of_ids,
                                 each.ids,
                                 Pointer<void>(each.rows),
                                 Element::kFloat32,
                                 fills_start,
                                 initializer_.start_vector()};
    SOK_RETURN_IF_ERROR(Launch(kernels_->gather, each.ids * dim_, &gather));
  }
  return Status();
}

Status GpuTable::PoolGradient(const RowBags& bags, DeviceAddress gradients, Stream stream) {
  SOK_ENTER(stream);
  const PoolGradientArguments arguments{
      BagsOf(bags),     dim_, FloatsOf(bags), Pointer<float>(bags.rows), Pointer<float>(gradients),
      bags.skips_marked};
  return Launch(kernels_->pool_gradient, bags.bags * dim_, &arguments);
}

Status GpuTable::WeightGradient(const RowBags& bags, DeviceAddress gradients, Stream stream) {
  SOK_ENTER(stream);
  const WeightGradientArguments arguments{BagsOf(bags), dim_, FloatsOf(bags),
                                          Pointer<float>(bags.rows), Pointer<float>(gradients)};
  return Launch(kernels_->weight_gradient, bags.bags, &arguments);
}

Status GpuTable::SumByNumber(DeviceAddress gradients, DeviceAddress numbers, uint64_t n,
                             uint64_t count, bool marks_unused, DeviceAddress sums, Stream stream) {
  SOK_RETURN_IF_ERROR(CheckCount(n));
  SOK_RETURN_IF_ERROR(CheckCount(count));
  SOK_ENTER(stream);
  const StartSumsArguments start{Pointer<float>(sums), count, dim_, marks_unused};
  SOK_RETURN_IF_ERROR(Launch(kernels_->start_sums, count * dim_, &start));
  if (n == 0) return Status();
  SOK_RETURN_IF_ERROR(Segment(numbers, n, static_cast<uint32_t>(count)));
  SOK_ASSIGN_OR_RETURN(const SumArguments sum, SumLongSegments(gradients, n));
  const PlaceSumsArguments place{sum.gradients,
                                 Pointer<uint32_t>(scratch_->sort_keys[scratch_->sorted].address()),
                                 Pointer<float>(sums)};
  return Launch(kernels_->place_sums, std::min(n, count) * dim_, &place);
}

}  // namespace sok::gpu
