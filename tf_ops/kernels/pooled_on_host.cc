#include "kernels/pooled_on_host.h"

#include <utility>

#include "core/base/bfloat16.h"

namespace sok {

namespace tf = tensorflow;

namespace {

template <typename T>
void PoolInto(const PooledCall& call, const std::vector<tf::Tensor>& outputs,
              const ParallelFor& parallel_for) {
  std::vector<BagVectors<T>> out;
  for (const VectorPlace& place : call.places) {
    out.push_back({static_cast<T*>(outputs[place.output].data()) + place.offset, place.stride});
  }
  Pool(*call.request, call.poolings, call.rows.data(), {call.request->row_starts(), {}}, out,
       parallel_for);
}

template <typename T>
void GradientOf(const PooledCall& call, const std::vector<tf::Tensor>& upstream, float* rows,
                const std::vector<float*>& weights, const ParallelFor& parallel_for) {
  std::vector<BagVectors<const T>> vectors(call.places.size());
  for (size_t feature = 0; feature < vectors.size(); ++feature) {
    const VectorPlace& place = call.places[feature];
    const tf::Tensor& of_output = upstream[place.output];
    if (of_output.dtype() == tf::DT_INVALID) continue;
    vectors[feature] = {static_cast<const T*>(of_output.data()) + place.offset, place.stride};
  }
  const RowPlaces places{call.request->row_starts(), {}};
  PoolGradient(*call.request, call.poolings, call.rows.data(), places, vectors, rows, places,
               weights, parallel_for);
}

// Looks the keys of a table up. The call gets the keys of the deposit.
template <typename T>
absl::Status LookUp(size_t t, LookupKeys batch, bool makes, bool is_trained, T* out,
                    PooledCall* call, const ParallelFor& parallel_for) {
  const OpenTable& open = *call->trained.tables[t];
  if (makes) {
    batch.claim = open.table()->Claim(batch);
  } else {
    batch.counted = open.table()->CountOnce();
  }
  const Status status = open.table()->Lookup(batch.keys, batch.n, makes, out, parallel_for,
                                             /*exists=*/nullptr, batch.counts);
  call->keys.push_back(is_trained ? std::move(batch) : LookupKeys());
  return ToAbsl(status, open.name());
}

}  // namespace

absl::Status PoolOnHost(const std::vector<FeatureBags>& bags, bool make_rows,
                        const std::vector<bool>& trainable, const std::vector<tf::Tensor>& outputs,
                        PooledCall* call, const ParallelFor& parallel_for) {
  if (call->is_plain) {
    const bool makes = make_rows && trainable[0];
    LookupKeys batch = BatchOf(call->trained.tables[0]->table().get(), call->order, makes);
    batch.hold = bags[0].hold;
    batch.keys = bags[0].keys;
    batch.n = bags[0].n;
    const auto look_up = [&](auto* out) {
      return LookUp(0, std::move(batch), makes, trainable[0], out, call, parallel_for);
    };
    return call->dtype == tf::DT_FLOAT ? look_up(static_cast<float*>(outputs[0].data()))
                                       : look_up(static_cast<BFloat16*>(outputs[0].data()));
  }
  auto request = CollectionRequest::Make(call->plan, bags, parallel_for);
  TF_RETURN_IF_ERROR(ToAbsl(request.status()));
  call->request = std::move(request.value());
  const std::vector<size_t>& starts = call->request->row_starts();
  call->rows.resize(starts.back());
  for (size_t t = 0; t < trainable.size(); ++t) {
    const CollectionRequest::TablePart& part = call->request->tables()[t];
    const bool makes = make_rows && trainable[t];
    LookupKeys batch = BatchOf(call->trained.tables[t]->table().get(), call->order, makes);
    batch.hold = call->request;
    batch.keys = part.keys.data();
    batch.n = part.keys.size();
    batch.counts = part.counts.empty() ? nullptr : part.counts.data();
    batch.distinct = true;
    TF_RETURN_IF_ERROR(LookUp(t, std::move(batch), makes, trainable[t],
                              call->rows.data() + starts[t], call, parallel_for));
  }
  if (call->dtype == tf::DT_FLOAT) {
    PoolInto<float>(*call, outputs, parallel_for);
  } else {
    PoolInto<BFloat16>(*call, outputs, parallel_for);
  }
  return absl::OkStatus();
}

void PoolGradientOnHost(const PooledCall& call, const std::vector<tf::Tensor>& upstream,
                        float* rows, const std::vector<float*>& weights,
                        const ParallelFor& parallel_for) {
  if (call.dtype == tf::DT_FLOAT) {
    GradientOf<float>(call, upstream, rows, weights, parallel_for);
  } else {
    GradientOf<BFloat16>(call, upstream, rows, weights, parallel_for);
  }
}

}  // namespace sok
