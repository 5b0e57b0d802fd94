// The keys whose rows an owner may read from the disk before a step asks for them:
// SokEmbed>CollectionOwnKeys has those of a request that this worker owns,
// SokEmbed>CollectionToCome those that other workers will ask it for.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/collection/key_messages.h"
#include "kernels/collection_resource.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

namespace {

using Pieces = std::vector<std::pair<const Key*, size_t>>;

absl::Status VectorsOf(tf::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

// Sets the output of each table to the keys of its pieces.
absl::Status PutAll(tf::OpKernelContext* ctx, const std::vector<Pieces>& of_tables) {
  for (size_t table = 0; table < of_tables.size(); ++table) {
    int64_t n = 0;
    for (const auto& [keys, count] : of_tables[table]) n += static_cast<int64_t>(count);
    tf::Tensor* all = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(static_cast<int>(table), {n}, &all));
    Key* to = reinterpret_cast<Key*>(all->flat<int64_t>().data());
    for (const auto& [keys, count] : of_tables[table]) to = std::copy_n(keys, count, to);
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("SokEmbed>CollectionOwnKeys")
    .Input("asked: variant")
    .Output("keys: num_tables * int64")  // distinct, or of bags that this worker pools
    .Attr("num_tables: int >= 1")
    .SetShapeFn(VectorsOf);

absl::Status CollectionOwnKeys(tf::OpKernelContext* ctx) {
  const AskedVariant* asked = nullptr;
  TF_RETURN_IF_ERROR(GetVariant(ctx, 0, "asked", &asked));
  std::vector<Pieces> pieces(static_cast<size_t>(ctx->num_outputs()));
  if (asked->request == nullptr) return PutAll(ctx, pieces);
  const CollectionPlan& plan = asked->request->plan();
  if (plan.tables.size() != pieces.size()) {
    return absl::InvalidArgumentError("expected the request of " + std::to_string(pieces.size()) +
                                      " tables, got one of " + std::to_string(plan.tables.size()));
  }
  for (size_t table = 0; table < pieces.size(); ++table) {
    ForKeysOf(*asked->request, table, plan.rank,
              [&](const Key* keys, size_t n) { pieces[table].emplace_back(keys, n); });
  }
  return PutAll(ctx, pieces);
}

SOK_REGISTER_KERNEL("CollectionOwnKeys", FunctionKernel<CollectionOwnKeys>);

REGISTER_OP("SokEmbed>CollectionToCome")
    .Input("message: int64")
    .Input("message_splits: int32")
    .Output("keys: num_tables * int64")
    .Attr("num_tables: int >= 1")
    .SetShapeFn(VectorsOf);

absl::Status CollectionToCome(tf::OpKernelContext* ctx) {
  const tf::Tensor &message = ctx->input(0), &splits = ctx->input(1);
  std::vector<Pieces> pieces(static_cast<size_t>(ctx->num_outputs()));
  // The op that answers the message raises if it tells of a failure.
  ForKeysToCome(
      pieces.size(), message.flat<int64_t>().data(), static_cast<size_t>(message.NumElements()),
      splits.flat<int32_t>().data(), static_cast<size_t>(splits.NumElements()),
      [&](size_t table, const Key* keys, size_t n) { pieces[table].emplace_back(keys, n); });
  return PutAll(ctx, pieces);
}

SOK_REGISTER_KERNEL("CollectionToCome", FunctionKernel<CollectionToCome>);

}  // namespace sok
