// SokEmbed>LookupPooled pools the rows of bags of many features, in the memory of the GPU that has
// the rows of their tables. SokEmbed>CollectionOutput takes the vectors of one feature. If the rows
// lie elsewhere, as they may in a saved model, the host pools them, and keys and vectors are
// copied.
#include <algorithm>
#include <string>
#include <utility>

#include "kernels/gpu_copies.h"
#include "kernels/gpu_rows_elsewhere.h"
#include "kernels/pooled_inputs.h"
#include "kernels/pooled_on_gpu.h"
#include "kernels/pooled_on_host.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

// checked_keys and host_splits are keys and splits once more, in the host's memory, where they are
// checked: the keys of tables whose keys have a limit, and all splits. The anchor is not read.
REGISTER_OP("SokEmbed>LookupPooled")
    .Input("token: variant")
    .Input("keys: num_features * int64")
    .Input("splits: num_splits * int64")
    .Input("host_splits: num_splits * int64")
    .Input("checked_keys: num_checked * int64")
    .Input("anchor: float")
    .Input("weights: num_weights * float")
    .Output("vectors: variant")
    .Output("receipt: variant")
    .Attr("num_features: int >= 1")
    .Attr("num_splits: int >= 0")
    .Attr("num_checked: int >= 0")
    .Attr("num_weights: int >= 0")
    .Attr("feature_names: list(string)")
    .Attr("feature_tables: list(int)")  // (features) like the next three
    .Attr("bags: list(int)")            // as in CollectionRequest
    .Attr("combiners: list(int)")
    .Attr("max_lengths: list(int)")
    .Attr("dims: list(int)")  // (tables) like the next two
    .Attr("key_limits: list(int)")
    .Attr("trainable: list(bool)")
    .Attr("weighted: list(int)")  // features that have weights, and features that are checked
    .Attr("checked: list(int)")
    .Attr("make_rows: bool")
    .Attr("trains: bool")  // the anchor has a gradient
    .Attr("concat: bool")
    .Attr("dtype: {float, bfloat16}")
    .Attr("number: int = 0")  // DepositOrder's call
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    });

// On a GPU keys and weights are in its memory.
class LookupPooledOp : public tf::OpKernel {
 public:
  explicit LookupPooledOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<int64_t> feature_tables, combiners, max_lengths, dims, key_limits;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("feature_names", &plan_.features));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("feature_tables", &feature_tables));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("bags", &kinds_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("combiners", &combiners));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_lengths", &max_lengths));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("key_limits", &key_limits));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("trainable", &trainable_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("checked", &checked_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("make_rows", &make_rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("concat", &concat_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
    const size_t features = plan_.features.size(), tables = dims.size();
    const auto below = [](const std::vector<int64_t>& numbers, size_t limit) {
      return std::all_of(numbers.begin(), numbers.end(), [limit](int64_t number) {
        return number >= 0 && static_cast<size_t>(number) < limit;
      });
    };
    OP_REQUIRES(ctx,
                features > 0 && feature_tables.size() == features && kinds_.size() == features &&
                    combiners.size() == features && max_lengths.size() == features &&
                    key_limits.size() == tables && trainable_.size() == tables &&
                    below(feature_tables, tables) && below(kinds_, 3) && below(combiners, 4) &&
                    below(weighted_, features) && below(checked_, features) &&
                    below(max_lengths, INT64_MAX) && below(key_limits, INT64_MAX),
                UnfitAttributes(ctx->def(), "one value a table and a feature"));
    for (size_t table = 0; table < tables; ++table) {
      plan_.tables.push_back(
          {"", static_cast<int>(dims[table]), 0, static_cast<uint64_t>(key_limits[table])});
    }
    plan_.feature_tables.assign(feature_tables.begin(), feature_tables.end());
    plan_.max_lengths.assign(max_lengths.begin(), max_lengths.end());
    for (int64_t combiner : combiners) plan_.combiners.push_back(static_cast<Combiner>(combiner));
    for (int64_t feature : weighted_) {
      OP_REQUIRES(
          ctx, plan_.combiners[feature] != Combiner::kMax,
          absl::InvalidArgumentError("expected no weights of feature '" + plan_.features[feature] +
                                     "', which is pooled by max"));
    }
  }

  void Compute(tf::OpKernelContext* ctx) override {
    auto call = std::make_shared<PooledCall>();
    PooledInputs inputs;
    OP_REQUIRES_OK(ctx, ReadToken(ctx, call.get()));
    OP_REQUIRES_OK(ctx, inputs.Read(ctx, *call->plan, kinds_, checked_, weighted_));
    OP_REQUIRES_OK(ctx, PlaceVectors(inputs.bags, concat_, call.get()));
    for (const tf::Tensor* weight : inputs.weight) {
      call->weight_shapes.push_back(weight == nullptr ? tf::TensorShape() : weight->shape());
    }
    FindRows(ctx, call.get());
    VectorsVariant vectors;
    vectors.on_gpu = call->on_gpu;
    for (const tf::TensorShape& shape : call->outputs) {
      vectors.outputs.emplace_back();
      tf::Tensor* const output = &vectors.outputs.back();
      OP_REQUIRES_OK(ctx, call->on_gpu ? ctx->allocate_temp(dtype_, shape, output)
                                       : AllocatePinned(ctx, dtype_, shape, output));
    }
    if (call->on_gpu) {
      OP_REQUIRES_OK(ctx, LookUpOnGpu(ctx, inputs, vectors, call.get()));
    } else {
      OP_REQUIRES_OK(ctx, LookUpOnHost(ctx, &inputs, vectors, call.get()));
    }
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 0, std::move(vectors)));
    PooledReceipt receipt;
    receipt.call = std::move(call);
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 1, std::move(receipt)));
  }

 private:
  // Decides where rows are pooled.
  void FindRows(tf::OpKernelContext* ctx, PooledCall* call) const {
    if (!RunsOnGpu(ctx)) return;
    call->stream = StreamOf(ctx);
    call->on_gpu = true;
    for (uint32_t table : plan_.feature_tables) {
      OpenTable* const open = call->trained.tables[table].get();
      if (open->table()->device_rows(call->stream) != nullptr) continue;
      call->on_gpu = false;
      LogCopies(*ctx->device(), open);
    }
  }

  absl::Status ReadToken(tf::OpKernelContext* ctx, PooledCall* call) const {
    const TrainedToken* token = nullptr;
    TF_RETURN_IF_ERROR(GetVariant(ctx, 0, "token", &token));
    if (token->tables.size() != plan_.tables.size()) {
      return absl::InvalidArgumentError("expected the token of " +
                                        std::to_string(plan_.tables.size()) + " tables, got " +
                                        std::to_string(token->tables.size()));
    }
    auto plan = std::make_shared<CollectionPlan>(plan_);
    for (size_t table = 0; table < plan->tables.size(); ++table) {
      const OpenTable& open = *token->tables[table];
      CollectedTable& planned = plan->tables[table];
      if (open.table()->dim() != planned.dim) {
        return absl::InvalidArgumentError(
            "table '" + open.name() + "' has dim " + std::to_string(open.table()->dim()) +
            "; expected a lookup of that dim, got dim " + std::to_string(planned.dim));
      }
      planned.name = open.name();
      planned.counts = open.table()->counts_keys();
    }
    // Without a collection no other table takes part in the deposit.
    plan->marks_unused = token->collection != nullptr;
    call->trained = *token;
    call->plan = std::move(plan);
    call->is_plain =
        token->collection == nullptr && kinds_.size() == 1 && kinds_[0] == 0 && weighted_.empty();
    call->dtype = dtype_;
    return absl::OkStatus();
  }

  absl::Status LookUpOnGpu(tf::OpKernelContext* ctx, const PooledInputs& inputs,
                           const VectorsVariant& vectors, PooledCall* call) const {
    call->order = NextOrder(call->trained, number_);
    const size_t features = inputs.bags.size();
    call->bags.resize(features);
    call->keys.resize(plan_.tables.size());
    for (size_t t = 0; t < plan_.tables.size(); ++t) {
      std::vector<size_t> of_table;
      size_t n = 0;
      for (size_t feature = 0; feature < features; ++feature) {
        if (plan_.feature_tables[feature] != t) continue;
        of_table.push_back(feature);
        call->bags[feature].first = n;
        n += inputs.bags[feature].n;
      }
      if (of_table.empty()) continue;
      Table& table = *call->trained.tables[t]->table();
      gpu::DeviceRows& rows = call->rows_of(t);
      tf::Tensor joined;
      TF_RETURN_IF_ERROR(JoinKeys(ctx, inputs, of_table, n, *call, rows.device(), &joined));
      std::vector<gpu::RowBags> all;
      for (size_t feature : of_table) {
        TF_RETURN_IF_ERROR(DescribeBags(ctx, inputs, feature, call));
        gpu::RowBags bags = call->bags[feature];
        const VectorPlace& place = call->places[feature];
        const size_t bytes = tf::DataTypeSize(dtype_);
        bags.vectors = AddressOf(vectors.outputs[place.output]) + place.offset * bytes;
        all.push_back(bags);
      }
      const bool makes = make_rows_ && trainable_[t];
      LookupKeys batch = BatchOf(&table, call->order, make_rows_);
      const auto look_up = [&](gpu::GpuTable& found, gpu::Absent absent) {
        return call->is_plain ? found.Lookup(AddressOf(joined), n, absent, table.now(),
                                             all[0].vectors, all[0].element, call->stream)
                              : found.LookupPooled(AddressOf(joined), n, all, absent, table.now(),
                                                   call->stream);
      };
      TF_RETURN_IF_ERROR(
          ToAbsl(rows.LookUp(makes && n > 0, look_up), call->trained.tables[t]->name()));
      if (!trainable_[t]) continue;
      batch.hold = Hold(joined);
      batch.keys = static_cast<const Key*>(joined.data());
      batch.n = n;
      batch.device = DeviceBatch{&rows.device(), call->stream};
      call->keys[t] = std::move(batch);
    }
    return absl::OkStatus();
  }

  // Puts the keys of the features of a table one after the other.
  absl::Status JoinKeys(tf::OpKernelContext* ctx, const PooledInputs& inputs,
                        const std::vector<size_t>& of_table, size_t n, const PooledCall& call,
                        const gpu::Device& device, tf::Tensor* joined) const {
    if (n >= size_t{INT32_MAX}) {
      return absl::InvalidArgumentError("expected fewer than 2^31 keys of one table, got " +
                                        std::to_string(n));
    }
    if (of_table.size() == 1) {
      *joined = inputs.keys[static_cast<int>(of_table[0])];
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tf::DT_INT64, {static_cast<int64_t>(n)}, joined));
    for (size_t feature : of_table) {
      const size_t to = call.bags[feature].first * sizeof(Key);
      const tf::Tensor& keys = inputs.keys[static_cast<int>(feature)];
      TF_RETURN_IF_ERROR(
          ToAbsl(device.CopyWithin(AddressOf(*joined) + to, AddressOf(keys),
                                   inputs.bags[feature].n * sizeof(Key), call.stream)));
    }
    return absl::OkStatus();
  }

  absl::Status DescribeBags(tf::OpKernelContext* ctx, const PooledInputs& inputs, size_t feature,
                            PooledCall* call) const {
    gpu::RowBags& bags = call->bags[feature];
    const FeatureBags& given = inputs.bags[feature];
    const uint64_t first = bags.first;
    bags = RowBagsOf(given, plan_.combiners[feature], *call, feature);
    bags.first = first;
    if (inputs.split[feature] != nullptr) {
      call->held.push_back(*inputs.split[feature]);
      bags.splits = AddressOf(call->held.back());
    }
    const bool has_weights = inputs.weight[feature] != nullptr;
    if (has_weights) {
      call->held.push_back(*inputs.weight[feature]);
      bags.weights = AddressOf(call->held.back());
    }
    // Gradients of weights and of maxima need the rows that were pooled.
    if (!has_weights && (call->is_plain || plan_.combiners[feature] != Combiner::kMax)) {
      return absl::OkStatus();
    }
    call->held.emplace_back();
    TF_RETURN_IF_ERROR(ctx->allocate_temp(
        tf::DT_FLOAT, {static_cast<int64_t>(given.n), call->dim_of(feature)}, &call->held.back()));
    bags.rows = AddressOf(call->held.back());
    return absl::OkStatus();
  }

  // Makes `host` a copy of a tensor, or the tensor itself if it lies on the host.
  static absl::Status ToHost(tf::OpKernelContext* ctx, const tf::Tensor& tensor, tf::Tensor* host) {
    if (RunsOnGpu(ctx)) return CopyFromGpu(ctx, tensor, host);
    *host = tensor;
    return absl::OkStatus();
  }

  absl::Status LookUpOnHost(tf::OpKernelContext* ctx, PooledInputs* inputs,
                            const VectorsVariant& vectors, PooledCall* call) const {
    for (size_t feature = 0; feature < inputs->bags.size(); ++feature) {
      tf::Tensor keys, weights;
      TF_RETURN_IF_ERROR(ToHost(ctx, inputs->keys[static_cast<int>(feature)], &keys));
      FeatureBags& bags = inputs->bags[feature];
      bags.keys = static_cast<const Key*>(keys.data());
      bags.hold = std::make_shared<std::pair<std::shared_ptr<const void>, tf::Tensor>>(
          std::move(bags.hold), keys);
      call->poolings.push_back({plan_.combiners[feature], nullptr});
      if (inputs->weight[feature] == nullptr) continue;
      TF_RETURN_IF_ERROR(ToHost(ctx, *inputs->weight[feature], &weights));
      call->held.push_back(weights);
      call->poolings.back().weights = weights.flat<float>().data();
    }
    call->order = NextOrder(call->trained, number_);
    return PoolOnHost(inputs->bags, make_rows_, trainable_, vectors.outputs, call,
                      IntraOpPool(ctx));
  }

  CollectionPlan plan_;  // without the names of tables
  std::vector<int64_t> kinds_, weighted_, checked_;
  std::vector<bool> trainable_;
  bool make_rows_, concat_;
  tf::DataType dtype_;
  int64_t number_;
};

SOK_REGISTER_CPU_KERNEL("LookupPooled", LookupPooledOp);
SOK_REGISTER_GPU_KERNEL("LookupPooled", LookupPooledOp, "token", "host_splits", "checked_keys",
                        "vectors", "receipt");

}  // namespace sok
