#include "kernels/hashed_bag_kernel.h"

#include <algorithm>

#include "kernels/host_memory.h"

namespace sok {

namespace tf = tensorflow;

HashedBagKernel::HashedBagKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
  std::string mode, hash;
  int64_t seed;
  OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &weight_type_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("Tout", &out_type_));
  OP_REQUIRES(ctx, (weight_type_ == tf::DT_DOUBLE) == (out_type_ == tf::DT_DOUBLE),
              absl::InvalidArgumentError(
                  "expected float64 of both weight and output or of none, got " +
                  tf::DataTypeString(weight_type_) + " and " + tf::DataTypeString(out_type_)));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("mode", &mode));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("hash", &hash));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("sign", &options_.sign));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("block_size", &options_.block_size));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("num_embeddings", &options_.num_embeddings));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("embedding_dim", &options_.dim));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("padding_idx", &padding_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("include_last_offset", &ends_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("scaled", &scaled_));
  const Result<BagMode> bag_mode = BagModeNamed(mode);
  OP_REQUIRES_OK(ctx, ToAbsl(bag_mode.status()));
  mode_ = bag_mode.value();
  const Result<PositionHash> position_hash = PositionHashNamed(hash);
  OP_REQUIRES_OK(ctx, ToAbsl(position_hash.status()));
  options_.hash = position_hash.value();
  options_.seed = static_cast<uint64_t>(seed);
}

absl::Status HashedBagKernel::MakePositions(int64_t size,
                                            std::optional<PositionMap>* positions) const {
  PositionMapOptions options = options_;
  options.size = size;
  const Result<PositionMap> made = PositionMap::Make(options);
  if (made.ok()) positions->emplace(made.value());
  return ToAbsl(made.status());
}

absl::Status HashedBagKernel::CheckForm(const tf::Tensor& ids, const tf::Tensor& offsets) const {
  if (offsets.dims() != 1 || ids.dims() < 1 || ids.dims() > 2) {
    return absl::InvalidArgumentError(
        "expected ids of one or two dimensions and offsets of one, got shapes " +
        ids.shape().DebugString() + " and " + offsets.shape().DebugString());
  }
  if (ids.dims() == 1 || offsets.NumElements() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError("expected no offsets with ids of two dimensions, got " +
                                    std::to_string(offsets.NumElements()));
}

absl::Status HashedBagKernel::ReadBags(tf::OpKernelContext* ctx, const tf::Tensor& ids,
                                       const tf::Tensor& offsets, InputBags* read) const {
  TF_RETURN_IF_ERROR(CheckForm(ids, offsets));
  const int64_t n = ids.NumElements();
  if (ids.dims() == 2) {
    // Rows without ids have any number, so the number of ids does not give it.
    TF_RETURN_IF_ERROR(
        AllocateOnHost(ctx, tf::DT_INT64, tf::TensorShape({ids.dim_size(0) + 1}), &read->splits));
    auto splits = read->splits.flat<int64_t>();
    for (int64_t bag = 0; bag < splits.size(); ++bag) splits(bag) = bag * ids.dim_size(1);
  } else {
    Result<std::vector<int64_t>> splits =
        offsets.dtype() == tf::DT_INT32
            ? SplitsOfOffsets(Elements<int32_t>(offsets), offsets.NumElements(), n, ends_)
            : SplitsOfOffsets(Int64s(offsets), offsets.NumElements(), n, ends_);
    TF_RETURN_IF_ERROR(ToAbsl(splits.status()));
    const auto count = static_cast<int64_t>(splits.value().size());
    TF_RETURN_IF_ERROR(AllocateOnHost(ctx, tf::DT_INT64, tf::TensorShape({count}), &read->splits));
    std::copy_n(splits.value().data(), count, read->splits.flat<int64_t>().data());
  }
  read->ids = KeysOf(ids);
  // Every Key comes from the bits of an int64.
  const auto* wide = reinterpret_cast<const int64_t*>(read->ids.keys);
  TF_RETURN_IF_ERROR(ToAbsl(CheckIds(wide, n, options_.num_embeddings, IntraOpPool(ctx))));
  read->bags = {wide, Int64s(read->splits), read->splits.NumElements() - 1, padding_};
  return absl::OkStatus();
}

absl::Status HashedBagKernel::CheckScales(const tf::Tensor& scales, const tf::Tensor& ids) const {
  if (!scaled_) return absl::OkStatus();
  if (mode_ != BagMode::kSum) {
    return absl::InvalidArgumentError("expected per_sample_weights with the mode sum only");
  }
  if (scales.shape() == ids.shape()) return absl::OkStatus();
  return absl::InvalidArgumentError("expected per_sample_weights of the shape of the ids, " +
                                    ids.shape().DebugString() + ", got shape " +
                                    scales.shape().DebugString());
}

absl::Status HashedBagKernel::CheckUpstream(const tf::Tensor& upstream, int64_t bags) const {
  if (upstream.dims() == 2 && upstream.dim_size(0) == bags &&
      upstream.dim_size(1) == options_.dim) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("expected gradients of shape [" + std::to_string(bags) + "," +
                                    std::to_string(options_.dim) + "], got " +
                                    upstream.shape().DebugString());
}

absl::Status HashedBagKernel::CheckWinners(const tf::Tensor& winners, const Bags& bags) const {
  if (mode_ != BagMode::kMax) return absl::OkStatus();
  bool good = winners.NumElements() == bags.bags * options_.dim;
  for (int64_t i = 0; good && i < winners.NumElements(); ++i) {
    good = Int64s(winners)[i] >= -1 && Int64s(winners)[i] < bags.entries();
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError("expected the winners of the forward pass, got shape " +
                                    winners.shape().DebugString());
}

absl::Status HashedBagKernel::ReadGradientInputs(tf::OpKernelContext* ctx, int64_t size,
                                                 GradientInputs* inputs) const {
  TF_RETURN_IF_ERROR(MakePositions(size, &inputs->positions));
  TF_RETURN_IF_ERROR(ReadBags(ctx, ctx->input(1), ctx->input(2), &inputs->read));
  TF_RETURN_IF_ERROR(CheckUpstream(ctx->input(0), inputs->read.bags.bags));
  return CheckScales(ctx->input(3), ctx->input(1));
}

absl::Status HashedBagKernel::ReadSize(tf::OpKernelContext* ctx, int64_t* size) {
  constexpr int64_t kMaxSize = int64_t{1} << 44;
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(5), "size"));
  *size = ctx->input(5).scalar<int64_t>()();
  if (*size <= kMaxSize) return absl::OkStatus();
  return absl::InvalidArgumentError("expected size of at most 2^44, got " + std::to_string(*size));
}

}  // namespace sok
