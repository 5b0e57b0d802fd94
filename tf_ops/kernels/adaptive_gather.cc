// SokEmbed>AdaptiveMaskGather: rows of a static variable and rows of a table, each into its place.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/adaptive/decimal_fingerprint.h"
#include "core/base/bfloat16.h"
#include "core/base/remainder.h"
#include "core/rows/row_copy.h"
#include "kernels/guarded_kernel.h"
#include "kernels/receipt.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// The anchor is not read: it is what the embeddings of own rows depend on, as far as gradients are
// concerned. `own` says which embeddings are of own rows: a key without one gets its static row,
// whatever its mask. With hash_keys nobody reads `buckets`: they are hashes of the keys' decimal
// digits, and put out where static rows were read. Without own_gradient the receipt takes no
// deposit.
REGISTER_OP("SokEmbed>AdaptiveMaskGather")
    .Input("table: resource")
    .Input("static_rows: resource")
    .Input("keys: int64")
    .Input("buckets: int64")
    .Input("mask: int32")
    .Input("anchor: float")
    .Output("embeddings: dtype")
    .Output("receipt: variant")
    .Output("own: bool")
    .Output("hashed_buckets: int64")
    .Attr("dtype: {float, bfloat16} = DT_FLOAT")
    .Attr("dim: int >= 1")
    .Attr("make_rows: bool")
    .Attr("copy_slots: bool = true")
    .Attr("hash_keys: bool = false")
    .Attr("own_gradient: bool = true")
    .Attr("number: int = 0")  // DepositOrder's call
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      bool hash_keys;
      TF_RETURN_IF_ERROR(c->GetAttr("hash_keys", &hash_keys));
      ShapeHandle keys, out;
      TF_RETURN_IF_ERROR(c->Merge(c->input(2), c->input(4), &keys));
      if (!hash_keys) TF_RETURN_IF_ERROR(c->Merge(keys, c->input(3), &keys));
      TF_RETURN_IF_ERROR(c->Concatenate(keys, c->Vector(dim), &out));
      c->set_output(0, out);
      c->set_output(1, c->Scalar());
      c->set_output(2, keys);
      c->set_output(3, hash_keys ? keys : c->Vector(0));
      return absl::OkStatus();
    });

namespace {

absl::Status AtPosition(const std::string& expected, int64_t value, size_t position) {
  return absl::InvalidArgumentError("expected " + expected + ", got " + std::to_string(value) +
                                    " at position " + std::to_string(position));
}

// Writes the static rows of some positions of a batch of keys: hashes of their digits.
void HashBuckets(const Key* keys, const uint32_t* positions, size_t n, uint64_t buckets,
                 int64_t* out) {
  constexpr size_t kChunk = 256;
  const Remainder remainder(buckets);
  int64_t ids[kChunk];
  uint64_t fingerprints[kChunk];
  for (size_t base = 0; base < n; base += kChunk) {
    const size_t m = std::min(kChunk, n - base);
    for (size_t j = 0; j < m; ++j) ids[j] = static_cast<int64_t>(keys[positions[base + j]]);
    FingerprintsOfDigits(ids, m, fingerprints);
    for (size_t j = 0; j < m; ++j) {
      out[positions[base + j]] = static_cast<int64_t>(remainder(fingerprints[j]));
    }
  }
}

// What a block of positions, which one thread reads, found out.
struct Block {
  std::vector<uint32_t> missing;  // positions of mask 1 whose keys have no row
  absl::Status status;
};

class AdaptiveMaskGatherOp : public tf::OpKernel {
 public:
  explicit AdaptiveMaskGatherOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("make_rows", &make_rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("copy_slots", &copy_slots_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("hash_keys", &hash_keys_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("own_gradient", &own_gradient_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableResource> resource;
    OP_REQUIRES_OK(ctx, GetTable(ctx, &resource));
    const absl::Status status = ctx->expected_output_dtype(0) == tf::DT_FLOAT
                                    ? Run<float>(ctx, *resource)
                                    : Run<BFloat16>(ctx, *resource);
    if (status.ok()) return;
    ctx->SetStatus(absl::Status(
        status.code(), absl::StrCat("table '", resource->name(), "': ", status.message())));
  }

 private:
  static constexpr size_t kBlock = 2048;  // positions that one thread reads at a time

  absl::Status CheckInputs(tf::OpKernelContext* ctx, const Table& table) const {
    const tf::Tensor &keys = ctx->input(2), &buckets = ctx->input(3), &mask = ctx->input(4);
    if (table.dim() != dim_) {
      return absl::InvalidArgumentError("it has dim " + std::to_string(table.dim()) +
                                        ", the lookup expected " + std::to_string(dim_));
    }
    if ((!hash_keys_ && keys.shape() != buckets.shape()) || keys.shape() != mask.shape()) {
      return absl::InvalidArgumentError(
          "expected keys, buckets and a mask of one shape, got shapes " +
          keys.shape().DebugString() + ", " + buckets.shape().DebugString() + " and " +
          mask.shape().DebugString());
    }
    if (keys.NumElements() > int64_t{INT32_MAX}) {
      return absl::InvalidArgumentError("expected fewer than 2^31 keys in one lookup, got " +
                                        std::to_string(keys.NumElements()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckStatic(const tf::Var& variable) const {
    if (!variable.is_initialized) {
      return absl::FailedPreconditionError("expected initialized static rows");
    }
    const tf::Tensor& rows = *const_cast<tf::Var&>(variable).tensor();
    if (rows.dtype() == tf::DT_FLOAT && rows.dims() == 2 && rows.dim_size(1) == dim_) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "expected static rows of float32 and shape [buckets, " + std::to_string(dim_) + "], got " +
        tf::DataTypeString(rows.dtype()) + " of shape " + rows.shape().DebugString());
  }

  // Reads positions [begin, end), the table's on a pool. The variable, whose rows these are, is
  // locked.
  template <typename T>
  absl::Status Read(tf::OpKernelContext* ctx, const Table& table, const tf::Tensor& static_rows,
                    size_t begin, size_t end, T* out, bool* is_own, int64_t* hashed,
                    const ParallelFor& parallel_for, Block* block) const {
    const auto* key = static_cast<const Key*>(ctx->input(2).data());
    const auto* bucket = static_cast<const int64_t*>(ctx->input(3).data());
    const auto* mask = static_cast<const int32_t*>(ctx->input(4).data());
    const auto buckets = static_cast<uint64_t>(static_rows.dim_size(0));
    if (hash_keys_ && buckets == 0) {
      return absl::InvalidArgumentError("expected at least one static row, got shape " +
                                        static_rows.shape().DebugString());
    }
    bool wrong = false;
    for (size_t i = begin; i < end; ++i) wrong |= static_cast<uint32_t>(mask[i]) > 1;
    for (size_t i = begin; i < end; ++i) is_own[i] = mask[i] == 1;
    for (size_t i = begin; wrong && i < end; ++i) {
      if (mask[i] == 0 || mask[i] == 1) continue;
      return AtPosition("a mask of 1 (own row) or 0 (static row)", mask[i], i);
    }
    for (size_t i = begin; !hash_keys_ && i < end; ++i) {
      if (static_cast<uint64_t>(bucket[i]) < buckets) continue;
      return AtPosition("buckets in [0, " + std::to_string(buckets) + ")", bucket[i], i);
    }
    // Written without a branch on the mask, which nobody can predict.
    if (hash_keys_) {
      std::vector<uint32_t> shared(end - begin);
      size_t sharing = 0;
      for (size_t i = begin; i < end; ++i) {
        shared[sharing] = static_cast<uint32_t>(i);
        sharing += mask[i] == 0;
      }
      std::fill(hashed + begin, hashed + end, 0);
      HashBuckets(key, shared.data(), sharing, buckets, hashed);
      bucket = hashed;
    }
    const float* rows = static_rows.flat<float>().data();
    std::vector<const float*> given(end - begin);
    for (size_t i = begin; i < end; ++i) {
      const float* row = rows + bucket[i] * dim_;
      given[i - begin] = mask[i] == 0 ? row : nullptr;
    }
    GatherOptions options;
    options.given = given.data();
    std::vector<uint32_t>& missing = block->missing;
    TF_RETURN_IF_ERROR(ToAbsl(
        table.Find(key + begin, end - begin, options, out + begin * dim_, &missing, parallel_for)));
    for (uint32_t& i : missing) i += static_cast<uint32_t>(begin);
    if (hash_keys_) HashBuckets(key, missing.data(), missing.size(), buckets, hashed);
    for (size_t m = 0; m < missing.size(); ++m) {
      constexpr size_t kAhead = 16;
      if (m + kAhead < missing.size()) {
        PrefetchForCopy(rows + bucket[missing[m + kAhead]] * dim_, dim_);
      }
      const size_t i = missing[m];
      is_own[i] = false;
      CopyRow(rows + bucket[i] * dim_, dim_, out + i * dim_);
    }
    return absl::OkStatus();
  }

  // The slots of static rows, (slot, rows, width each): one lock at a time, since optimizers take
  // them in another order.
  struct SlotRows {
    std::vector<std::vector<float>> values;
    std::vector<int64_t> widths;
    int64_t floats = 0;
  };

  absl::Status ReadSlots(const TableResource& resource, const std::vector<int64_t>& buckets,
                         SlotRows* slots) const {
    const auto sources = copy_slots_ ? resource.slot_sources() : nullptr;
    for (size_t s = 0; sources != nullptr && s < sources->size(); ++s) {
      tf::Var& variable = *(*sources)[s];
      tf::tf_shared_lock lock(*variable.mu());
      const tf::Tensor& from = *variable.tensor();
      if (!variable.is_initialized || from.dtype() != tf::DT_FLOAT || from.dims() != 2) {
        *slots = {};
        break;
      }
      const int64_t width = from.dim_size(1);
      std::vector<float>& to = slots->values.emplace_back(buckets.size() * width);
      for (size_t i = 0; i < buckets.size(); ++i) {
        if (buckets[i] >= from.dim_size(0)) {
          return absl::InvalidArgumentError("expected a slot for each static row, got shape " +
                                            from.shape().DebugString());
        }
        std::copy_n(from.flat<float>().data() + buckets[i] * width, width, to.data() + i * width);
      }
      slots->widths.push_back(width);
      slots->floats += width;
    }
    return absl::OkStatus();
  }

  // Makes rows that start as `starts` (keys, dim), the static rows of buckets.
  absl::Status MakeRows(tf::OpKernelContext* ctx, const TableResource& resource,
                        const std::vector<Key>& keys, const std::vector<int64_t>& buckets,
                        const std::vector<float>& starts) const {
    SlotRows slots;
    TF_RETURN_IF_ERROR(ReadSlots(resource, buckets, &slots));
    const int dim = dim_;
    return ToAbsl(resource.table()->MakeRowsAs(
        keys.data(), keys.size(),
        [&](size_t i, float* row, int floats) {
          float* to = std::copy_n(starts.data() + i * dim, dim, row);
          if (floats != slots.floats) return;  // the slots of another rule
          for (size_t s = 0; s < slots.values.size(); ++s) {
            const int64_t width = slots.widths[s];
            to = std::copy_n(slots.values[s].data() + i * width, width, to);
          }
        },
        IntraOpPool(ctx)));
  }

  template <typename T>
  absl::Status Run(tf::OpKernelContext* ctx, const TableResource& resource) {
    Table& table = *resource.table();
    TF_RETURN_IF_ERROR(CheckInputs(ctx, table));
    TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(1), "static_rows"));
    const tf::Tensor& keys = ctx->input(2);
    const DepositOrder order = {number_, table.NextLookup()};
    const auto n = static_cast<size_t>(keys.NumElements());
    tf::core::RefCountPtr<tf::Var> variable;
    TF_RETURN_IF_ERROR(tf::LookupResource(ctx, tf::HandleFromInput(ctx, 1), &variable));
    tf::TensorShape shape = keys.shape();
    shape.AddDim(dim_);
    tf::Tensor *embeddings, *receipt, *owned, *hashed;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, shape, &embeddings));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {}, &receipt));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, keys.shape(), &owned));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(3, hash_keys_ ? keys.shape() : tf::TensorShape({0}), &hashed));
    int64_t* hashes = hashed->flat<int64_t>().data();
    const int64_t* bucket = hash_keys_ ? hashes : ctx->input(3).flat<int64_t>().data();
    auto* out = static_cast<T*>(embeddings->data());
    bool* is_own = owned->flat<bool>().data();

    const auto* key = static_cast<const Key*>(keys.data());
    // A lookup in a storage waits for who holds it, and must not do that on the pool: others wait
    // for the pool with the storage held. There the pool works within the lookup.
    const bool stored = resource.stored();
    const size_t block_size = stored ? std::max<size_t>(n, 1) : kBlock;
    const ParallelFor pool = IntraOpPool(ctx);
    const ParallelFor outer = stored ? SerialFor : pool, inner = stored ? pool : SerialFor;
    std::vector<Block> blocks((n + block_size - 1) / block_size);
    std::vector<Key> made;
    std::vector<int64_t> buckets;
    std::vector<float> starts;
    {
      // Writers wait until the last row has been read.
      tf::tf_shared_lock lock(*variable->mu());
      TF_RETURN_IF_ERROR(CheckStatic(*variable));
      const tf::Tensor& rows = *variable->tensor();
      outer(static_cast<int64_t>(blocks.size()), kBlock * 15, [&](int64_t first, int64_t last) {
        for (int64_t b = first; b < last; ++b) {
          const size_t begin = b * block_size;
          Block& block = blocks[b];
          block.status = Read(ctx, table, rows, begin, std::min(begin + block_size, n), out, is_own,
                              hashes, inner, &block);
        }
      });
      for (const Block& block : blocks) TF_RETURN_IF_ERROR(block.status);
      if (make_rows_) {
        TF_RETURN_IF_ERROR(Admit(table, blocks, key, bucket, &made, &buckets));
        const float* from = rows.flat<float>().data();
        starts.resize(made.size() * dim_);
        for (size_t i = 0; i < made.size(); ++i) {
          std::copy_n(from + buckets[i] * dim_, dim_, starts.data() + i * dim_);
        }
      }
    }
    if (!made.empty()) {
      TF_RETURN_IF_ERROR(MakeRows(ctx, resource, made, buckets, starts));
      // An earlier occurrence of a key may have been held back, and a later one admitted.
      const std::unordered_set<Key> has_row(made.begin(), made.end());
      for (const Block& block : blocks) {
        for (uint32_t i : block.missing) is_own[i] = has_row.count(key[i]) > 0;
      }
    }
    Receipt made_out{resource.name(), n, dim_, nullptr};
    if (own_gradient_) {
      const std::shared_ptr<Table> target = resource.table();
      made_out.deposit = [target, keys, own = *owned, order](
                             int64_t number, std::shared_ptr<const void> hold,
                             const float* gradients, const BFloat16* gradients_bf16,
                             const AnchorGradient& anchor, const ParallelFor& parallel_for) {
        LookupKeys deposited = OwnKeys(keys, own);
        deposited.order = order;
        deposited.order.gradient = number;
        target->Deposit(std::move(deposited), std::move(hold), gradients, gradients_bf16, anchor,
                        parallel_for);
        return Status();
      };
    }
    receipt->scalar<tf::Variant>()() = std::move(made_out);
    return absl::OkStatus();
  }

  // The keys without a row that may have one, and their static rows.
  static absl::Status Admit(Table& table, const std::vector<Block>& blocks, const Key* key,
                            const int64_t* bucket, std::vector<Key>* keys,
                            std::vector<int64_t>* buckets) {
    std::vector<Key> without;
    std::vector<uint32_t> places;
    for (const Block& block : blocks) {
      places.insert(places.end(), block.missing.begin(), block.missing.end());
    }
    for (uint32_t i : places) without.push_back(key[i]);
    std::vector<uint32_t> admitted(without.size());
    std::iota(admitted.begin(), admitted.end(), 0);
    TF_RETURN_IF_ERROR(ToAbsl(table.AdmitMissing(without.data(), &admitted)));
    for (uint32_t i : admitted) {
      keys->push_back(without[i]);
      buckets->push_back(bucket[places[i]]);
    }
    return absl::OkStatus();
  }

  // The keys of own rows, for a deposit of the whole batch's gradients.
  static LookupKeys OwnKeys(const tf::Tensor& keys, const tf::Tensor& own) {
    struct Owned {
      std::vector<Key> keys;
      std::vector<uint32_t> places;
    };
    const auto* key = static_cast<const Key*>(keys.data());
    const bool* is_own = own.flat<bool>().data();
    auto owned = std::make_shared<Owned>();
    for (int64_t i = 0; i < keys.NumElements(); ++i) {
      if (!is_own[i]) continue;
      owned->keys.push_back(key[i]);
      owned->places.push_back(static_cast<uint32_t>(i));
    }
    LookupKeys deposited;
    deposited.keys = owned->keys.data();
    deposited.positions = owned->places.data();
    deposited.n = owned->keys.size();
    deposited.hold = std::move(owned);
    deposited.leave_absent = true;  // nobody knows their static rows by then
    return deposited;
  }

  int dim_;
  bool make_rows_;
  bool copy_slots_;
  bool hash_keys_;
  bool own_gradient_;
  int64_t number_;
};

SOK_REGISTER_KERNEL("AdaptiveMaskGather", AdaptiveMaskGatherOp);

}  // namespace

}  // namespace sok
