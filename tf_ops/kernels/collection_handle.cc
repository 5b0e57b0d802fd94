// SokEmbed>AnonymousCollectionQueue makes a queue in which gradients of many tables wait for one
// commit. The handle of the queue stands for these tables.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "core/collection/row_messages.h"
#include "kernels/collection_resource.h"
#include "kernels/host_memory.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

absl::Status ReadPlacements(tf::OpKernelConstruction* ctx, bool has_holders, size_t tables,
                            int64_t workers, std::vector<TablePlacement>* placements) {
  std::vector<int64_t> kinds, holders, buckets;  // empty, since GetAttr appends to a vector
  std::vector<bool> pools;
  TF_RETURN_IF_ERROR(ctx->GetAttr("placements", &kinds));
  TF_RETURN_IF_ERROR(ctx->GetAttr("pools", &pools));
  if (has_holders) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("holders", &holders));
    TF_RETURN_IF_ERROR(ctx->GetAttr("buckets", &buckets));
  } else {
    holders.resize(tables, 0);
  }
  if (buckets.empty()) buckets.resize(tables, 0);
  bool fits = kinds.size() == tables && pools.size() == tables && holders.size() == tables &&
              buckets.size() == tables;
  for (size_t table = 0; fits && table < tables; ++table) {
    const bool on_worker = kinds[table] == TablePlacement::kOnWorker;
    fits = kinds[table] >= TablePlacement::kByKey && kinds[table] <= TablePlacement::kByBucket &&
           holders[table] >= 0 && holders[table] < workers && (on_worker || !pools[table]) &&
           buckets[table] >= (kinds[table] == TablePlacement::kByBucket ? 1 : 0);
    placements->push_back({static_cast<TablePlacement::Kind>(kinds[table]),
                           static_cast<uint32_t>(holders[table]), static_cast<bool>(pools[table]),
                           static_cast<uint64_t>(buckets[table])});
  }
  return fits ? absl::OkStatus() : UnfitAttributes(ctx->def(), "a placement of each table");
}

namespace {

// Finds the tables of the inputs "tables".
absl::Status GetTables(tf::OpKernelContext* ctx, std::vector<std::shared_ptr<OpenTable>>* tables) {
  tf::OpInputList handles;
  TF_RETURN_IF_ERROR(ctx->input_list("tables", &handles));
  for (const tf::Tensor& handle : handles) {
    TF_RETURN_IF_ERROR(ExpectScalar(handle, "a table"));
    std::shared_ptr<OpenTable> table;
    TF_RETURN_IF_ERROR(GetContent(ctx, handle.scalar<tf::ResourceHandle>()(), &table));
    tables->push_back(std::move(table));
  }
  return absl::OkStatus();
}

absl::Status CheckProcess(const std::vector<std::shared_ptr<OpenTable>>& tables) {
  for (const auto& table : tables) TF_RETURN_IF_ERROR(table->CheckProcess());
  return absl::OkStatus();
}

}  // namespace

std::shared_ptr<TableCollection> OpenQueue::CollectionOf(
    const std::vector<std::shared_ptr<OpenTable>>& tables,
    const std::vector<TablePlacement>& placements, size_t rank) const {
  std::vector<TableCollection::Member> members;
  members.reserve(tables.size());
  for (const auto& table : tables) {
    members.push_back({table->name(), table->table(), table->stored()});
    if (members.size() <= placements.size()) {
      members.back().placement = placements[members.size() - 1];
    }
  }
  return std::make_shared<TableCollection>(std::move(members), queue_, rank);
}

std::shared_ptr<TableCollection> OpenQueue::Collection(
    const std::vector<TablePlacement>& placements, size_t rank) {
  std::lock_guard<std::mutex> guard(mu_);
  const bool same = placements.empty() || (placements == placements_ && rank == rank_);
  if (collection_ == nullptr || !same) {
    collection_ = CollectionOf(tables_, placements, rank);
    placements_ = placements;
    rank_ = rank;
  }
  return collection_;
}

absl::Status GetCollection(tf::OpKernelContext* ctx, OpenCollection* collection,
                           const std::vector<TablePlacement>& placements, size_t rank) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(0), "queue"));
  std::shared_ptr<OpenQueue> queue;
  TF_RETURN_IF_ERROR(GetContent(ctx, tf::HandleFromInput(ctx, 0), &queue));
  collection->name = queue->name();
  if (!queue->tables().empty()) {
    collection->tables = queue->Collection(placements, rank);
    return CheckProcess(queue->tables());
  }
  std::vector<std::shared_ptr<OpenTable>> tables;
  TF_RETURN_IF_ERROR(GetTables(ctx, &tables));
  collection->tables = queue->CollectionOf(tables, placements, rank);
  return CheckProcess(tables);
}

absl::Status PutAnswer(tf::OpKernelContext* ctx, const tf::Tensor& rows,
                       const std::vector<int32_t>& splits, const Status& failure) {
  if (!failure.ok()) {
    const RowMessage message = WriteFailure(splits, failure);
    tf::Tensor text;
    TF_RETURN_IF_ERROR(
        AllocateOnHost(ctx, tf::DT_FLOAT, {static_cast<int64_t>(message.floats.size())}, &text));
    std::copy(message.floats.begin(), message.floats.end(), text.flat<float>().data());
    return PutAnswer(ctx, text, message.splits, Status());
  }
  tf::Tensor* sizes = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(1, {static_cast<int64_t>(splits.size())}, &sizes));
  std::copy(splits.begin(), splits.end(), sizes->flat<int32_t>().data());
  ctx->set_output(0, rows);
  return absl::OkStatus();
}

REGISTER_OP("SokEmbed>AnonymousCollectionQueue")
    .Input("tables: num_tables * resource")
    .Output("queue: resource")
    .Attr("num_tables: int >= 0 = 0")
    .Attr("collection_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

class AnonymousCollectionQueueOp : public tf::OpKernel {
 public:
  explicit AnonymousCollectionQueueOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("collection_name", &name_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::vector<std::shared_ptr<OpenTable>> tables;
    OP_REQUIRES_OK(ctx, GetTables(ctx, &tables));
    tf::Tensor handle;
    OP_REQUIRES_OK(ctx, AllocateOnHost(ctx, tf::DT_RESOURCE, {}, &handle));
    handle.scalar<tf::ResourceHandle>()() = tf::ResourceHandle::MakeRefCountingHandle(
        new CollectionQueueResource(std::make_shared<OpenQueue>(name_, std::move(tables))),
        ctx->device()->name());
    ctx->set_output(0, handle);
  }

 private:
  std::string name_;
};

SOK_REGISTER_KERNEL("AnonymousCollectionQueue", AnonymousCollectionQueueOp);

}  // namespace sok
