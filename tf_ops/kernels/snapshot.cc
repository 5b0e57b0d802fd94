#include "kernels/snapshot.h"

#include <algorithm>

namespace sok {

namespace tf = tensorflow;

namespace {

absl::Status Expected(const std::string& table, const std::string& what, const tf::Tensor& tensor) {
  return absl::InvalidArgumentError("table '" + table + "': expected " + what + ", got shape " +
                                    tensor.shape().DebugString());
}

}  // namespace

void SetSnapshotShapes(tf::shape_inference::InferenceContext* c, int first, int64_t dim) {
  c->set_output(first, c->Vector(c->UnknownDim()));
  c->set_output(first + 1, c->Matrix(c->UnknownDim(), dim));
  c->set_output(first + 2, c->Matrix(c->UnknownDim(), c->UnknownDim()));
  c->set_output(first + 3, c->Vector(c->UnknownDim()));
  c->set_output(first + 4, c->Vector(c->UnknownDim()));
  c->set_output(first + 5, c->Scalar());
  c->set_output(first + 6, c->Scalar());
}

absl::Status PutSnapshot(tf::OpKernelContext* ctx, int first, const std::string& table,
                         const Table::Snapshot& snapshot, int dim, bool with_slots) {
  const auto n = static_cast<int64_t>(snapshot.size());
  const int64_t extra = with_slots ? n : 0;
  const int64_t width = with_slots ? snapshot.slot_floats() : 0;
  tf::Tensor *keys, *embeddings, *slots, *update_nums, *slot_start, *rule, *steps;
  TF_RETURN_IF_ERROR(ctx->allocate_output(first, {n}, &keys));
  TF_RETURN_IF_ERROR(ctx->allocate_output(first + 1, {n, dim}, &embeddings));
  TF_RETURN_IF_ERROR(ctx->allocate_output(first + 2, {extra, width}, &slots));
  TF_RETURN_IF_ERROR(ctx->allocate_output(first + 3, {extra}, &update_nums));
  TF_RETURN_IF_ERROR(ctx->allocate_output(first + 4, {width}, &slot_start));
  TF_RETURN_IF_ERROR(ctx->allocate_output(first + 5, {}, &rule));
  TF_RETURN_IF_ERROR(ctx->allocate_output(first + 6, {}, &steps));
  std::copy_n(snapshot.slot_start().begin(), width, slot_start->flat<float>().data());
  TF_RETURN_IF_ERROR(ToAbsl(
      snapshot.Write(static_cast<Key*>(keys->data()), static_cast<float*>(embeddings->data()),
                     with_slots ? static_cast<float*>(slots->data()) : nullptr,
                     with_slots ? static_cast<int64_t*>(update_nums->data()) : nullptr),
      table));
  rule->scalar<tf::tstring>()() = snapshot.state().rule;
  steps->scalar<int64_t>()() = snapshot.state().steps;
  return absl::OkStatus();
}

absl::Status ReadSnapshot(tf::OpKernelContext* ctx, int first, const std::string& table, int dim,
                          AdaptiveTable::Rows* rows) {
  const tf::Tensor &keys = ctx->input(first), &embeddings = ctx->input(first + 1),
                   &slots = ctx->input(first + 2), &update_nums = ctx->input(first + 3),
                   &slot_start = ctx->input(first + 4);
  const int64_t n = keys.NumElements();
  if (keys.dims() != 1 || n >= int64_t{UINT32_MAX}) {
    return Expected(table, "keys of one dimension and fewer than 2^32", keys);
  }
  const std::string count = std::to_string(n);
  if (embeddings.dims() != 2 || embeddings.dim_size(0) != n || embeddings.dim_size(1) != dim) {
    return Expected(
        table, "embeddings of shape [" + count + ", " + std::to_string(dim) + "], one row a key",
        embeddings);
  }
  if (slots.dims() != 2 || slots.dim_size(0) != n) {
    return Expected(table, "slots of shape [" + count + ", any], one row a key", slots);
  }
  if (update_nums.dims() != 1 || update_nums.NumElements() != n) {
    return Expected(table, count + " update counts, one a key", update_nums);
  }
  if (slot_start.NumElements() != slots.dim_size(1)) {
    return Expected(table,
                    "slot_start to have " + std::to_string(slots.dim_size(1)) +
                        " values, one a column of slots",
                    slot_start);
  }
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(first + 5), "rule"));
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(first + 6), "steps"));
  rows->rule = ctx->input(first + 5).scalar<tf::tstring>()();
  rows->steps = ctx->input(first + 6).scalar<int64_t>()();
  rows->keys = static_cast<const Key*>(keys.data());
  rows->n = static_cast<size_t>(n);
  rows->embeddings = static_cast<const float*>(embeddings.data());
  rows->slots = static_cast<const float*>(slots.data());
  rows->slot_floats = static_cast<int>(slots.dim_size(1));
  rows->update_nums = static_cast<const int64_t*>(update_nums.data());
  rows->slot_start = static_cast<const float*>(slot_start.data());
  return absl::OkStatus();
}

}  // namespace sok
