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
  const bool fills_start = absent == Absent::kStart;
  for (const RowBags& each : bags) {
    const auto* const of_ids = Pointer<uint32_t>(numbers) + each.first;
    const auto* const keys_of_ids = Pointer<uint64_t>(keys) + each.first;
    const PoolArguments pool{RowsOfTable(),
                             of_ids,
                             keys_of_ids,
                             BagsOf(each),
                             FloatsOf(each),
                             fills_start,
                             initializer_.start_vector()};
    SOK_RETURN_IF_ERROR(Launch(kernels_->pool, each.bags * dim_, &pool));
    if (each.rows == 0) continue;
    const GatherArguments gather{RowsOfTable(),
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
  const PoolGradientArguments arguments{BagsOf(bags), dim_, FloatsOf(bags),
                                        Pointer<float>(bags.rows), Pointer<float>(gradients)};
  return Launch(kernels_->pool_gradient, bags.bags * dim_, &arguments);
}

Status GpuTable::WeightGradient(const RowBags& bags, DeviceAddress gradients, Stream stream) {
  SOK_ENTER(stream);
  const WeightGradientArguments arguments{BagsOf(bags), dim_, FloatsOf(bags),
                                          Pointer<float>(bags.rows), Pointer<float>(gradients)};
  return Launch(kernels_->weight_gradient, bags.bags, &arguments);
}

}  // namespace sok::gpu
