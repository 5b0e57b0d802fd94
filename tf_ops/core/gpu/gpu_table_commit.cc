// Sorts, sums and applies gradients.
#include <cstring>

#include "core/gpu/programs.h"
#include "core/gpu/table_parts.h"

namespace sok::gpu {
Status GpuTable::Sort(DeviceAddress values, uint64_t n, uint32_t most) {
  Scratch& s = *scratch_;
  SOK_RETURN_IF_ERROR(s.sort_counts.Reserve(device_, SortCounts(n) * sizeof(uint32_t)));
  SortMemory memory{};
  memory.counts = Pointer<uint32_t>(s.sort_counts.address());
  for (int i = 0; i < 2; ++i) {
    SOK_RETURN_IF_ERROR(s.sort_keys[i].Reserve(device_, n * sizeof(uint32_t)));
    SOK_RETURN_IF_ERROR(s.sort_values[i].Reserve(device_, n * sizeof(uint32_t)));
    memory.keys[i] = Pointer<uint32_t>(s.sort_keys[i].address());
    memory.values[i] = Pointer<uint32_t>(s.sort_values[i].address());
  }
  SOK_ASSIGN_OR_RETURN(s.sorted, kernels_->sort.Sort(Launcher(), Pointer<uint32_t>(values), nullptr,
                                                     n, most, memory));
  return Status();
}

Status GpuTable::Segment(DeviceAddress rows, uint64_t n) {
  // Rows have numbers below this bound, which is sorted in place of kNoRow.
  return Segment(rows, n, static_cast<uint32_t>(MostThereAre().end));
}

Status GpuTable::Segment(DeviceAddress values, uint64_t n, uint32_t missing) {
  SOK_RETURN_IF_ERROR(CheckCount(n));
  Scratch& s = *scratch_;
  SOK_RETURN_IF_ERROR(Sort(values, n, missing));
  SOK_RETURN_IF_ERROR(s.starts.Reserve(device_, (n + 1) * sizeof(uint32_t)));
  return kernels_->sort.Segment(Launcher(),
                                {Pointer<uint32_t>(s.sort_keys[s.sorted].address()), n, missing,
                                 Pointer<uint32_t>(s.sort_counts.address()),
                                 Pointer<uint32_t>(s.starts.address()), s.at(Scratch::kSegments)});
}

Result<SumArguments> GpuTable::SumLongSegments(DeviceAddress gradients, uint64_t n) {
  Scratch& s = *scratch_;
  const uint64_t most_chunks = n / kLong + n / kChunk + 1;
  SOK_RETURN_IF_ERROR(s.first_chunk.Reserve(device_, n * sizeof(uint32_t)));
  SOK_RETURN_IF_ERROR(s.chunks.Reserve(device_, most_chunks * sizeof(Chunk)));
  SOK_RETURN_IF_ERROR(s.chunk_sums.Reserve(device_, most_chunks * dim_ * sizeof(float)));
  SOK_RETURN_IF_ERROR(device_->Fill(reinterpret_cast<DeviceAddress>(s.at(Scratch::kChunkCount)), 0,
                                    sizeof(uint32_t), stream_));
  const ChunkArguments cut{Pointer<uint32_t>(s.starts.address()), s.at(Scratch::kSegments),
                           Pointer<uint32_t>(s.first_chunk.address()),
                           Pointer<Chunk>(s.chunks.address()), s.at(Scratch::kChunkCount)};
  SOK_RETURN_IF_ERROR(Launch(kernels_->sort.cut_chunks, n, &cut));
  const SumArguments sum{
      {Pointer<float>(gradients), Pointer<uint32_t>(s.sort_values[s.sorted].address()), cut.starts,
       cut.segments, cut.first_chunk, cut.chunks, cut.chunk_count,
       Pointer<float>(s.chunk_sums.address()), dim_},
      nullptr};
  SOK_RETURN_IF_ERROR(LaunchBlocks(kernels_->sum_chunks, most_chunks, &sum));
  return sum;
}

Status GpuTable::LoadRule(const BegunRule& rule) {
  if (kernels_->rule_type == rule.type) return Status();
  SOK_ASSIGN_OR_RETURN(kernels_->rule, LoadProgram(device_, "rule", {dim_, rule.type}));
  SOK_ASSIGN_OR_RETURN(kernels_->update_rows, kernels_->rule->Function("UpdateRows"));
  kernels_->rule_type = rule.type;
  return Status();
}

Status GpuTable::Commit(const std::vector<GpuGradients>& batches, const std::string& rule,
                        const RowOptimizer& optimizer, const CommitStep& step, Stream stream,
                        uint64_t* touched) {
  if (step.sequential || step.number < 1) {
    return InvalidArgument(
        "Expected a step of a table on a GPU to sum gradients and to count steps of the table. "
        "Received: one that is sequential, or in which each row counts its own.");
  }
  uint64_t n = 0;
  for (const GpuGradients& batch : batches) n += batch.n;
  SOK_RETURN_IF_ERROR(CheckCount(n));
  SOK_ENTER(stream);
  const BegunRule begun = optimizer.BeginStep(step.number);
  SOK_RETURN_IF_ERROR(LoadRule(begun));
  if (!rule.empty()) SOK_RETURN_IF_ERROR(SetRuleNow(rule, optimizer.slots(dim_)));
  if (touched != nullptr) *touched = 0;
  if (n == 0) {
    if (step.applied != nullptr) *step.applied = true;
    return Status();
  }
  Scratch& s = *scratch_;

  DeviceAddress keys = batches[0].keys, gradients = batches[0].gradients;
  if (batches.size() > 1 || batches[0].element != Element::kFloat32 || batches[0].factor != 1.0f ||
      batches[0].positions != 0) {
    SOK_RETURN_IF_ERROR(s.joined_keys.Reserve(device_, n * sizeof(uint64_t)));
    SOK_RETURN_IF_ERROR(s.joined_gradients.Reserve(device_, n * dim_ * sizeof(float)));
    keys = s.joined_keys.address();
    gradients = s.joined_gradients.address();
    uint64_t at = 0;
    for (const GpuGradients& batch : batches) {
      SOK_RETURN_IF_ERROR(device_->CopyWithin(keys + at * sizeof(uint64_t), batch.keys,
                                              batch.n * sizeof(uint64_t), stream_));
      const AppendArguments append{Pointer<void>(batch.gradients),
                                   Pointer<uint32_t>(batch.positions),
                                   dim_,
                                   batch.element,
                                   batch.factor,
                                   batch.n * dim_,
                                   Pointer<float>(gradients) + at * dim_};
      SOK_RETURN_IF_ERROR(Launch(kernels_->append, append.n, &append));
      at += batch.n;
    }
  }

  SOK_RETURN_IF_ERROR(s.numbers.Reserve(device_, n * sizeof(uint32_t)));
  SOK_RETURN_IF_ERROR(FindInto(keys, n, s.numbers.address()));
  uint32_t* numbers = Pointer<uint32_t>(s.numbers.address());
  for (const GpuGradients& batch : batches) {
    const RestArguments rest{Pointer<float>(batch.gradients), batch.n, dim_, numbers};
    if (batch.skips_marked) SOK_RETURN_IF_ERROR(Launch(kernels_->rest_rows, batch.n, &rest));
    numbers += batch.n;
  }
  SOK_RETURN_IF_ERROR(Segment(s.numbers.address(), n));
  SOK_ASSIGN_OR_RETURN(SumArguments sum, SumLongSegments(gradients, n));
  if (begun.by_row) {
    SOK_RETURN_IF_ERROR(s.sums.Reserve(device_, n * dim_ * sizeof(float)));
    sum.sums = Pointer<float>(s.sums.address());
    SOK_RETURN_IF_ERROR(Launch(kernels_->store_sums, n * dim_, &sum));
  }
  const UpdateArguments update{
      sum.gradients,      Pointer<uint32_t>(s.sort_keys[s.sorted].address()),
      RowsOfTable(),      Pointer<Meta>(arrays_->metas.address()),
      sum.sums,           step.scale,
      step.clip_value,    begun.learning_rate,
      begun.weight_decay, step.now};
  std::string arguments(reinterpret_cast<const char*>(&update), sizeof(update));
  arguments += begun.bytes;
  arguments.resize((arguments.size() + 7) / 8 * 8);  // as large as the struct on the GPU
  SOK_RETURN_IF_ERROR(Launch(kernels_->update_rows, begun.by_row ? n : n * dim_, arguments.data()));
  if (step.applied != nullptr) *step.applied = true;
  if (touched == nullptr) return Status();
  uint32_t segments = 0;
  SOK_RETURN_IF_ERROR(device_->CopyToHost(&segments,
                                          reinterpret_cast<DeviceAddress>(s.at(Scratch::kSegments)),
                                          sizeof(segments), stream_));
  SOK_RETURN_IF_ERROR(device_->Synchronize(stream_));
  *touched = segments;
  return Status();
}

Status GpuTable::Assign(DeviceAddress keys, DeviceAddress values, uint64_t n, uint32_t now,
                        Stream stream) {
  SOK_RETURN_IF_ERROR(CheckCount(n));
  SOK_ENTER(stream);
  if (n == 0) return Status();
  Scratch& s = *scratch_;
  SOK_ASSIGN_OR_RETURN(const DeviceAddress numbers, NumbersOf(keys, n, Absent::kMake, now));
  SOK_RETURN_IF_ERROR(Segment(numbers, n));
  const AssignArguments assign{RowsOfTable(),
                               Pointer<uint32_t>(s.sort_keys[s.sorted].address()),
                               Pointer<uint32_t>(s.sort_values[s.sorted].address()),
                               Pointer<uint32_t>(s.starts.address()),
                               s.at(Scratch::kSegments),
                               Pointer<float>(values)};
  return Launch(kernels_->assign, n * dim_, &assign);
}

}  // namespace sok::gpu
