// SokEmbed>CollectionPoolOnGpu makes vectors of the rows that workers have sent, in the memory of a
// GPU, as SokEmbed>CollectionPool does on the host; SokEmbed>PooledGradients sums the gradients of
// each row there. Both take the kernels of this worker's part of the tables.
// SokEmbed>CollectionRowNumbers returns the number of each key's row.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/collection/row_messages.h"
#include "core/gpu/device_rows.h"
#include "kernels/gpu_copies.h"
#include "kernels/message_on_gpu.h"
#include "kernels/pooled_on_gpu.h"
#include "kernels/pooled_upstream.h"
#include "kernels/register_kernel.h"
#include "kernels/row_splits.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

REGISTER_OP("SokEmbed>CollectionRowNumbers")
    .Input("asked: variant")
    .Output("numbers: num_tables * uint32")  // TensorFlow would keep int32 in the host's memory
    .Attr("num_tables: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

class CollectionRowNumbersOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const AskedVariant* asked = nullptr;
    OP_REQUIRES_OK(ctx, GetVariant(ctx, 0, "asked", &asked));
    // After an error of its request a worker receives it with the message of the keys.
    const CollectionRequest* const request = asked->request.get();
    OP_REQUIRES(
        ctx,
        request == nullptr || request->tables().size() == static_cast<size_t>(ctx->num_outputs()),
        absl::InvalidArgumentError("expected the request of " + std::to_string(ctx->num_outputs()) +
                                   " tables, got one of " +
                                   std::to_string(request->tables().size())));
    for (int table = 0; table < ctx->num_outputs(); ++table) {
      const std::vector<uint32_t> none;
      const auto& numbers =
          request == nullptr ? none : request->tables()[static_cast<size_t>(table)].row_of;
      tf::Tensor* to = nullptr;
      const auto n = static_cast<int64_t>(numbers.size());
      OP_REQUIRES_OK(ctx, ctx->allocate_output(table, {n}, &to));
      std::copy(numbers.begin(), numbers.end(), to->flat<uint32_t>().data());
    }
  }
};

SOK_REGISTER_KERNEL("CollectionRowNumbers", CollectionRowNumbersOp);

REGISTER_OP("SokEmbed>CollectionPoolOnGpu")
    .Input("token: variant")
    .Input("rows: float")
    .Input("row_splits: int32")
    .Input("asked: variant")
    .Input("numbers: num_tables * uint32")
    .Input("splits: num_splits * int64")
    .Input("weights: num_weights * float")
    .Output("vectors: variant")
    .Output("receipt: variant")
    .Attr("num_tables: int >= 1")
    .Attr("num_splits: int >= 0")
    .Attr("num_weights: int >= 0")
    .Attr("bags: list(int)")  // (features) as in CollectionRequest, like the next
    .Attr("combiners: list(int)")
    .Attr("weighted: list(int)")  // the features that have weights
    .Attr("concat: bool")
    .Attr("dtype: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    });

class CollectionPoolOnGpuOp : public tf::OpKernel {
 public:
  explicit CollectionPoolOnGpuOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<int64_t> combiners;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("bags", &kinds_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("combiners", &combiners));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("concat", &concat_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    const auto below = [](const std::vector<int64_t>& numbers, size_t limit) {
      return std::all_of(numbers.begin(), numbers.end(), [limit](int64_t number) {
        return number >= 0 && static_cast<size_t>(number) < limit;
      });
    };
    OP_REQUIRES(ctx,
                !kinds_.empty() && combiners.size() == kinds_.size() && below(combiners, 4) &&
                    below(weighted_, kinds_.size()),
                UnfitAttributes(ctx->def(), "one value a feature"));
    for (int64_t combiner : combiners) combiners_.push_back(static_cast<Combiner>(combiner));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    auto call = std::make_shared<PooledCall>();
    const AskedVariant* asked = nullptr;
    OP_REQUIRES_OK(ctx, GetVariant(ctx, 3, "asked", &asked));
    call->request = asked->request;
    OP_REQUIRES_OK(ctx, ExpectFeatures(call->request.get(), kinds_.size()));
    const RowSegments segments = SegmentsOf(*call->request);
    OP_REQUIRES_OK(ctx, CheckRows(ctx, segments));
    OP_REQUIRES_OK(ctx, Read(ctx, call.get()));
    OP_REQUIRES_OK(ctx, Place(ctx, call.get()));
    VectorsVariant vectors;
    vectors.on_gpu = true;
    for (const tf::TensorShape& shape : call->outputs) {
      vectors.outputs.emplace_back();
      OP_REQUIRES_OK(ctx, ctx->allocate_temp(dtype_, shape, &vectors.outputs.back()));
    }
    OP_REQUIRES_OK(ctx, PoolAll(ctx, segments, vectors, call.get()));
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 0, std::move(vectors)));
    PooledReceipt receipt;
    receipt.call = std::move(call);
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 1, std::move(receipt)));
  }

 private:
  absl::Status Read(tf::OpKernelContext* ctx, PooledCall* call) const {
    const TrainedToken* token = nullptr;
    TF_RETURN_IF_ERROR(GetVariant(ctx, 0, "token", &token));
    TF_RETURN_IF_ERROR(token->failure);
    if (call->request->plan().tables.size() != token->tables.size()) {
      return absl::InvalidArgumentError(
          "expected the request of " + std::to_string(token->tables.size()) +
          " tables, got one of " + std::to_string(call->request->plan().tables.size()));
    }
    call->trained = *token;
    call->plan = {call->request, &call->request->plan()};
    call->dtype = dtype_;
    call->on_gpu = true;
    call->stream = StreamOf(ctx);
    tf::OpInputList numbers;
    TF_RETURN_IF_ERROR(ctx->input_list("numbers", &numbers));
    for (size_t t = 0; t < token->tables.size(); ++t) {
      const Table& table = *token->tables[t]->table();
      const CollectionRequest::TablePart& part = call->request->tables()[t];
      const tf::Tensor& of_table = numbers[static_cast<int>(t)];
      if (static_cast<size_t>(of_table.NumElements()) != part.row_of.size()) {
        return absl::InvalidArgumentError("expected a row of each of " +
                                          std::to_string(part.row_of.size()) + " keys, got " +
                                          std::to_string(of_table.NumElements()));
      }
      const bool is_there = table.device_rows(call->stream) != nullptr;
      if (part.rows > 0 && (!is_there || table.dim() != call->plan->tables[t].dim)) {
        return absl::FailedPreconditionError(
            "table '" + token->tables[t]->name() + "': expected rows of dim " +
            std::to_string(call->plan->tables[t].dim) +
            " in the memory of the GPU that pools them, got rows of dim " +
            std::to_string(table.dim()) + (is_there ? " there" : " elsewhere"));
      }
      call->held.push_back(of_table);
      call->numbers.push_back(AddressOf(of_table));
    }
    return absl::OkStatus();
  }

  // Sets the places of vectors, and how they are pooled.
  absl::Status Place(tf::OpKernelContext* ctx, PooledCall* call) const {
    tf::OpInputList splits, weights;
    TF_RETURN_IF_ERROR(ctx->input_list("splits", &splits));
    TF_RETURN_IF_ERROR(ctx->input_list("weights", &weights));
    if (static_cast<size_t>(weights.size()) != weighted_.size() ||
        splits.size() != std::count(kinds_.begin(), kinds_.end(), 2)) {
      return absl::InvalidArgumentError("expected splits and weights of features that have them");
    }
    const CollectionRequest& request = *call->request;
    std::vector<FeatureBags> all;
    for (size_t feature = 0; feature < kinds_.size(); ++feature) {
      all.push_back(request.feature(feature));
    }
    TF_RETURN_IF_ERROR(PlaceVectors(all, concat_, call));
    int next_splits = 0;
    call->weight_shapes.resize(kinds_.size());
    for (size_t feature = 0; feature < kinds_.size(); ++feature) {
      const FeatureBags& given = all[feature];
      const auto& part = request.tables()[call->plan->feature_tables[feature]];
      gpu::RowBags bags = RowBagsOf(given, combiners_[feature], *call, feature);
      bags.first = static_cast<uint64_t>(request.rows_of(feature) - part.row_of.data());
      if (kinds_[feature] == 2) {
        const tf::Tensor& of_feature = splits[next_splits++];
        // If the holder of a table pools, it has sent a vector of each bag.
        if (given.splits != nullptr) {
          if (static_cast<size_t>(of_feature.NumElements()) != given.bags + 1) {
            return absl::InvalidArgumentError("expected the " + std::to_string(given.bags + 1) +
                                              " splits of the request, got " +
                                              std::to_string(of_feature.NumElements()));
          }
          call->held.push_back(of_feature);
          bags.splits = AddressOf(of_feature);
        }
      }
      call->bags.push_back(bags);
    }
    for (size_t i = 0; i < weighted_.size(); ++i) {
      const auto feature = static_cast<size_t>(weighted_[i]);
      const tf::Tensor& of_feature = weights[static_cast<int>(i)];
      if (static_cast<size_t>(of_feature.NumElements()) != call->bags[feature].ids) {
        return absl::InvalidArgumentError("feature '" + call->plan->features[feature] +
                                          "': expected one weight a key, of which there are " +
                                          std::to_string(call->bags[feature].ids) + ", got shape " +
                                          of_feature.shape().DebugString());
      }
      call->weight_shapes[feature] = of_feature.shape();
      call->held.push_back(of_feature);
      call->bags[feature].weights = AddressOf(of_feature);
    }
    for (size_t feature = 0; feature < kinds_.size(); ++feature) {
      gpu::RowBags& bags = call->bags[feature];
      // The vector of a bag of one key is its row, whatever the combiner.
      if (bags.weights == 0 && request.feature(feature).is_key_a_bag()) {
        bags.combiner = gpu::Combiner::kSum;
      }
      // Gradients of weights and of maxima need the rows that were pooled.
      if (bags.weights == 0 && bags.combiner != gpu::Combiner::kMax) continue;
      call->held.emplace_back();
      TF_RETURN_IF_ERROR(ctx->allocate_temp(tf::DT_FLOAT,
                                            {static_cast<int64_t>(bags.ids), call->dim_of(feature)},
                                            &call->held.back()));
      bags.rows = AddressOf(call->held.back());
    }
    return absl::OkStatus();
  }

  // Checks a message of rows, and raises the error of a worker that has failed.
  static absl::Status CheckRows(tf::OpKernelContext* ctx, const RowSegments& segments) {
    const tf::Tensor &rows = ctx->input(1), &arrived = ctx->input(2);
    const auto splits = segments.Splits();
    TF_RETURN_IF_ERROR(ToAbsl(splits.status()));
    const auto of_workers = arrived.flat<int32_t>();
    TF_RETURN_IF_ERROR(CheckRowSplits(rows, arrived, splits.value().size()));
    if (std::equal(splits.value().begin(), splits.value().end(), of_workers.data())) {
      return absl::OkStatus();
    }
    tf::Tensor on_host;
    TF_RETURN_IF_ERROR(CopyFromGpu(ctx, rows, &on_host));
    return ToAbsl(CheckArrived(splits.value(), of_workers.data(), on_host.flat<float>().data()));
  }

  absl::Status PoolAll(tf::OpKernelContext* ctx, const RowSegments& segments,
                       const VectorsVariant& vectors, PooledCall* call) const {
    RowsByTable by_table(segments, ctx->input(1));
    TF_RETURN_IF_ERROR(by_table.Allocate(ctx));
    bool is_copied = false;
    for (size_t t = 0; t < call->plan->tables.size(); ++t) {
      std::vector<gpu::RowBags> all;
      for (uint32_t feature : call->request->tables()[t].features) {
        gpu::RowBags bags = call->bags[feature];
        const VectorPlace& place = call->places[feature];
        bags.vectors = AddressOf(vectors.outputs[place.output]) +
                       place.offset * static_cast<size_t>(tf::DataTypeSize(dtype_));
        if (bags.bags > 0) all.push_back(bags);
      }
      if (all.empty()) continue;
      const gpu::DeviceRows& rows = call->rows_of(t);
      if (!is_copied) TF_RETURN_IF_ERROR(ToAbsl(by_table.FromMessage(rows.device(), call->stream)));
      is_copied = true;
      const auto pool = [&](gpu::GpuTable& table) {
        return table.PoolRows(by_table.address(t), call->numbers[t], all, call->stream);
      };
      TF_RETURN_IF_ERROR(ToAbsl(rows.Compute(pool), call->trained.tables[t]->name()));
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> kinds_, weighted_;
  std::vector<Combiner> combiners_;
  bool concat_;
  tf::DataType dtype_;
};

SOK_REGISTER_GPU_KERNEL("CollectionPoolOnGpu", CollectionPoolOnGpuOp, "token", "row_splits",
                        "asked", "vectors", "receipt");

namespace {

// Sums the gradients of each row of a table over its features that were used.
absl::Status OfTable(tf::OpKernelContext* ctx, const PooledCall& call, size_t t,
                     const std::vector<tf::Tensor>& upstream, gpu::DeviceAddress sums) {
  const CollectionRequest::TablePart& part = call.request->tables()[t];
  const gpu::DeviceRows& rows = call.rows_of(t);
  const int64_t dim = call.plan->tables[t].dim;
  std::vector<uint32_t> used;
  size_t n = 0;
  for (uint32_t feature : part.features) {
    if (upstream[call.places[feature].output].dtype() == tf::DT_INVALID) continue;
    used.push_back(feature);
    n += call.bags[feature].ids;
  }
  tf::Tensor gradients, joined;
  TF_RETURN_IF_ERROR(ctx->allocate_temp(tf::DT_FLOAT, {static_cast<int64_t>(n), dim}, &gradients));
  gpu::DeviceAddress numbers = call.numbers[t];
  if (n < part.row_of.size()) {
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tf::DT_UINT32, {static_cast<int64_t>(n)}, &joined));
    numbers = AddressOf(joined);
  }
  size_t at = 0;
  for (uint32_t feature : used) {
    const gpu::RowBags bags = WithUpstream(call, feature, upstream[call.places[feature].output]);
    const gpu::DeviceAddress to = AddressOf(gradients) + at * dim * sizeof(float);
    if (bags.ids == 0) continue;
    const auto pool = [&](gpu::GpuTable& table) {
      return table.PoolGradient(bags, to, call.stream);
    };
    TF_RETURN_IF_ERROR(ToAbsl(rows.Compute(pool)));
    if (numbers != call.numbers[t]) {
      TF_RETURN_IF_ERROR(ToAbsl(rows.device().CopyWithin(
          numbers + at * sizeof(uint32_t), call.numbers[t] + bags.first * sizeof(uint32_t),
          bags.ids * sizeof(uint32_t), call.stream)));
    }
    at += bags.ids;
  }
  const auto sum = [&](gpu::GpuTable& table) {
    return table.SumByNumber(AddressOf(gradients), numbers, n, part.rows, call.plan->marks_unused,
                             sums, call.stream);
  };
  return ToAbsl(rows.Compute(sum), call.trained.tables[t]->name());
}

}  // namespace

absl::Status RowGradients(tf::OpKernelContext* ctx, const PooledCall& call,
                          const std::vector<tf::Tensor>& upstream) {
  if (!call.on_gpu || call.numbers.empty()) {
    return absl::InvalidArgumentError("expected the receipt of rows that workers have sent");
  }
  const RowSegments segments = GradientSegmentsOf(*call.request);
  tf::Tensor* rows = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {static_cast<int64_t>(segments.floats())}, &rows));
  RowsByTable by_table(segments, *rows);
  TF_RETURN_IF_ERROR(by_table.Allocate(ctx));
  const gpu::Device* device = nullptr;
  for (size_t t = 0; t < call.plan->tables.size(); ++t) {
    if (segments.rows(t) == 0) continue;
    device = &call.rows_of(t).device();
    TF_RETURN_IF_ERROR(OfTable(ctx, call, t, upstream, by_table.address(t)));
  }
  return device == nullptr ? absl::OkStatus() : ToAbsl(by_table.ToMessage(*device, call.stream));
}

}  // namespace sok
