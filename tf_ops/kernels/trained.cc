#include "kernels/trained.h"

#include <utility>

#include "kernels/adaptive_resource.h"
#include "kernels/collection_resource.h"

namespace sok {

namespace tf = tensorflow;

namespace {

template <typename Content>
absl::Status GetOne(tf::OpKernelContext* ctx, const tf::ResourceHandle& handle,
                    std::shared_ptr<Content>* content, Trained* trained) {
  TF_RETURN_IF_ERROR(GetContent(ctx, handle, content));
  trained->name = (*content)->name();
  trained->names = {trained->name};
  trained->commit = [table = (*content)->table()](
                        const CommitOptions&, const std::vector<const CommitOptions*>& options,
                        const ParallelFor& parallel_for) -> Result<std::vector<CommitOutcome>> {
    if (options[0] == nullptr) return InvalidArgument("expected a rule of the table, got none");
    auto outcome = table->Commit(*options[0], parallel_for);
    if (!outcome.ok()) return outcome.status();
    return std::vector<CommitOutcome>{std::move(outcome.value())};
  };
  trained->drop_deposits = [table = (*content)->table()] { return table->DropDeposits(); };
  return absl::OkStatus();
}

absl::Status GetAll(tf::OpKernelContext* ctx, Trained* trained) {
  OpenCollection collection;
  TF_RETURN_IF_ERROR(GetCollection(ctx, &collection));
  for (const auto& member : collection.tables->members()) trained->names.push_back(member.name);
  trained->commit = [tables = collection.tables](const CommitOptions& common,
                                                 const std::vector<const CommitOptions*>& options,
                                                 const ParallelFor& parallel_for) {
    return tables->Commit(common, options, parallel_for);
  };
  trained->drop_deposits = [tables = collection.tables] { return tables->DropDeposits(); };
  return absl::OkStatus();
}

}  // namespace

absl::Status GetTrained(tf::OpKernelContext* ctx, Trained* trained) {
  tf::OpInputList queues, tables;
  TF_RETURN_IF_ERROR(ctx->input_list("queue", &queues));
  TF_RETURN_IF_ERROR(ctx->input_list("tables", &tables));
  if (queues.size() == 1) return GetAll(ctx, trained);
  if (queues.size() > 1 || tables.size() != 1) {
    return absl::InvalidArgumentError("expected one table, or tables with one queue, got " +
                                      std::to_string(tables.size()) + " tables and " +
                                      std::to_string(queues.size()) + " queues");
  }
  TF_RETURN_IF_ERROR(ExpectScalar(tables[0], "table"));
  const tf::ResourceHandle& handle = tables[0].scalar<tf::ResourceHandle>()();
  if (handle.hash_code() == tf::TypeIndex::Make<AdaptiveResource>().hash_code()) {
    std::shared_ptr<OpenAdaptiveTable> table;
    return GetOne(ctx, handle, &table, trained);
  }
  TF_RETURN_IF_ERROR(GetOne(ctx, handle, &trained->keeps_slot_sources, trained));
  return trained->keeps_slot_sources->CheckProcess();
}

}  // namespace sok
