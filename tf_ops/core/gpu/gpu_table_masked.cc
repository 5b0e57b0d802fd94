// Reads own rows and static rows, and sums the gradients of static rows.
#include "core/gpu/table_parts.h"

namespace sok::gpu {

Status GpuTable::LookupMasked(const MaskedKeys& keys, bool make_rows, uint32_t now,
                              DeviceAddress asking, DeviceAddress out, Element element,
                              DeviceAddress own, Stream stream) {
  SOK_RETURN_IF_ERROR(CheckCount(keys.n));
  SOK_ENTER(stream);
  if (keys.n == 0) return Status();
  Scratch& s = *scratch_;
  const auto* const positions = Pointer<uint32_t>(keys.positions);
  const auto* const buckets = Pointer<int64_t>(keys.buckets);
  SOK_RETURN_IF_ERROR(s.placed.Reserve(device_, keys.n * sizeof(uint32_t)));
  SOK_RETURN_IF_ERROR(device_->Fill(s.placed.address(), 0xff, keys.n * sizeof(uint32_t), stream_));
  if (keys.asking > 0) {
    const PickKeysArguments pick{Pointer<uint64_t>(keys.keys), positions, keys.asking,
                                 Pointer<uint64_t>(asking)};
    SOK_RETURN_IF_ERROR(Launch(kernels_->pick_keys, pick.n, &pick));
    SOK_RETURN_IF_ERROR(s.numbers.Reserve(device_, keys.asking * sizeof(uint32_t)));
    const auto start = [&](const uint32_t* made, const uint32_t* makers) -> Status {
      StaticRows statics = keys.statics;
      uint64_t slot_floats = 0;
      for (int i = 0; i < statics.slot_count; ++i) slot_floats += statics.slot_widths[i];
      // Slots of another rule are not copied.
      if (slot_floats != static_cast<uint64_t>(layout_->slot_floats())) statics.slot_count = 0;
      const StartAsStaticArguments start_rows{
          RowsOfTable(), made,    makers,  Pointer<Counters>(counters_.address()),
          positions,     buckets, statics, Pointer<float>(s.slot_start.address())};
      return Launch(kernels_->start_as_static, keys.asking * layout_->stride(), &start_rows);
    };
    SOK_RETURN_IF_ERROR(make_rows ? MakeInto(asking, keys.asking, now, s.numbers.address(), start)
                                  : FindInto(asking, keys.asking, s.numbers.address()));
    const PlaceNumbersArguments place{Pointer<uint32_t>(s.numbers.address()), positions,
                                      keys.asking, Pointer<uint32_t>(s.placed.address())};
    SOK_RETURN_IF_ERROR(Launch(kernels_->place_numbers, place.n, &place));
  }
  const MaskGatherArguments gather{RowsOfTable(), Pointer<uint32_t>(s.placed.address()),
                                   buckets,       keys.statics,
                                   keys.n,        Pointer<void>(out),
                                   element,       Pointer<bool>(own)};
  return Launch(kernels_->mask_gather, keys.n * dim_, &gather);
}

Status GpuTable::StaticGradient(DeviceAddress own, DeviceAddress buckets, DeviceAddress gradients,
                                Element element, uint64_t n, uint64_t count, const MakeSums& make,
                                Stream stream) {
  DeviceAddress indices = 0, sums = 0;
  if (n == 0) return make(0, &indices, &sums);
  SOK_RETURN_IF_ERROR(CheckCount(n));
  SOK_RETURN_IF_ERROR(CheckCount(count));
  SOK_ENTER(stream);
  Scratch& s = *scratch_;
  SOK_RETURN_IF_ERROR(s.numbers.Reserve(device_, n * sizeof(uint32_t)));
  const StaticKeysArguments keys{Pointer<bool>(own), Pointer<int64_t>(buckets), n,
                                 static_cast<uint32_t>(count),
                                 Pointer<uint32_t>(s.numbers.address())};
  SOK_RETURN_IF_ERROR(Launch(kernels_->static_keys, n, &keys));
  SOK_RETURN_IF_ERROR(Segment(s.numbers.address(), n, keys.count));
  if (element != Element::kFloat32) {
    SOK_RETURN_IF_ERROR(s.joined_gradients.Reserve(device_, n * dim_ * sizeof(float)));
    const AppendArguments widen{Pointer<void>(gradients),
                                nullptr,
                                dim_,
                                element,
                                1.0f,
                                n * dim_,
                                Pointer<float>(s.joined_gradients.address())};
    SOK_RETURN_IF_ERROR(Launch(kernels_->append, widen.n, &widen));
    gradients = s.joined_gradients.address();
  }
  SOK_ASSIGN_OR_RETURN(SumArguments sum, SumLongSegments(gradients, n));
  uint32_t distinct = 0;
  const auto segments = reinterpret_cast<DeviceAddress>(s.at(Scratch::kSegments));
  SOK_RETURN_IF_ERROR(device_->CopyToHost(&distinct, segments, sizeof(distinct), stream_));
  SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
  SOK_RETURN_IF_ERROR(make(distinct, &indices, &sums));
  if (distinct == 0) return Status();
  sum.sums = Pointer<float>(sums);
  SOK_RETURN_IF_ERROR(Launch(kernels_->store_sums, uint64_t{distinct} * dim_, &sum));
  const SegmentKeysArguments list{Pointer<uint32_t>(s.sort_keys[s.sorted].address()),
                                  sum.gradients.starts, sum.gradients.segments,
                                  Pointer<int64_t>(indices)};
  return Launch(kernels_->segment_keys, distinct, &list);
}

}  // namespace sok::gpu
