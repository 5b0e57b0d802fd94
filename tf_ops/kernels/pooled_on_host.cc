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

}  // namespace

absl::Status PoolOnHost(const std::vector<FeatureBags>& bags, bool make_rows,
                        const std::vector<bool>& trainable, const std::vector<tf::Tensor>& outputs,
                        PooledCall* call, const ParallelFor& parallel_for) {
  auto request = CollectionRequest::Make(call->plan, bags, parallel_for);
  TF_RETURN_IF_ERROR(ToAbsl(request.status()));
  call->request = std::move(request.value());
  const std::vector<size_t>& starts = call->request->row_starts();
  call->rows.resize(starts.back());
  for (size_t t = 0; t < trainable.size(); ++t) {
    Table& table = *call->trained.tables[t]->table();
    const CollectionRequest::TablePart& part = call->request->tables()[t];
    const bool makes = make_rows && trainable[t];
    LookupKeys batch = BatchOf(&table, call->order, makes);
    batch.hold = call->request;
    batch.keys = part.keys.data();
    batch.n = part.keys.size();
    batch.counts = part.counts.empty() ? nullptr : part.counts.data();
    batch.distinct = true;
    if (makes) {
      batch.claim = table.Claim(batch);
    } else {
      batch.counted = table.CountOnce();
    }
    const Status status =
        table.Lookup(batch.keys, batch.n, makes, call->rows.data() + starts[t], parallel_for,
                     /*exists=*/nullptr, batch.counts);
    TF_RETURN_IF_ERROR(ToAbsl(status, call->trained.tables[t]->name()));
    call->keys.push_back(trainable[t] ? std::move(batch) : LookupKeys());
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
