#include "kernels/snapshot.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace sok {

namespace tf = tensorflow;

namespace {

absl::Status Expected(const std::string& table, const std::string& what, const tf::Tensor& tensor) {
  return absl::InvalidArgumentError("table '" + table + "': expected " + what + ", got shape " +
                                    tensor.shape().DebugString());
}

}  // namespace

absl::Status ExpectKeys(const std::string& table, const tf::Tensor& keys) {
  if (keys.dims() == 1 && keys.NumElements() < int64_t{UINT32_MAX}) return absl::OkStatus();
  return Expected(table, "keys of one dimension and fewer than 2^32", keys);
}

absl::Status ExpectEmbeddings(const std::string& table, const tf::Tensor& embeddings, size_t n,
                              int dim) {
  if (embeddings.dims() == 2 && embeddings.dim_size(0) == static_cast<int64_t>(n) &&
      embeddings.dim_size(1) == dim) {
    return absl::OkStatus();
  }
  return Expected(
      table,
      "embeddings of shape [" + std::to_string(n) + ", " + std::to_string(dim) + "], one row a key",
      embeddings);
}

void SetSnapshotShapes(tf::shape_inference::InferenceContext* c, int first, int64_t dim) {
  const auto any = c->UnknownDim();
  int output = first;
  c->set_output(output++, c->Vector(any));                   // keys
  c->set_output(output++, c->Matrix(any, dim));              // embeddings
  c->set_output(output++, c->Matrix(any, c->UnknownDim()));  // slots
  for (int i = 0; i < 3; ++i) {                              // update_nums, update_times,
    c->set_output(output++, c->Vector(c->UnknownDim()));     // slot_start
  }
  for (int i = 0; i < 3; ++i) c->set_output(output++, c->Scalar());  // rule, steps, step_clock
  c->set_output(output, c->Vector(c->UnknownDim()));                 // admission
}

namespace {

struct Piece {
  int64_t begin, end;  // rows
  bool with_slots, with_admission;
};

absl::Status Put(tf::OpKernelContext* ctx, int first, const std::string& table,
                 const Table::Snapshot& snapshot, int dim, const Piece& piece) {
  const int64_t n = piece.end - piece.begin;
  const int64_t extra = piece.with_slots ? n : 0;
  const int64_t width = piece.with_slots ? snapshot.slot_floats() : 0;
  std::vector<std::string> counts;
  if (piece.with_admission) {
    auto dumped = snapshot.DumpAdmission();
    TF_RETURN_IF_ERROR(ToAbsl(dumped.status(), table));
    counts = std::move(dumped.value());
  }
  int64_t count_bytes = 0;
  for (const std::string& part : counts) count_bytes += static_cast<int64_t>(part.size());
  const tf::TensorShape shapes[kContentsTensors] = {
      {n}, {n, dim}, {extra, width}, {extra}, {extra}, {width}, {}, {}, {}, {count_bytes}};
  tf::Tensor* out[kContentsTensors];
  for (int i = 0; i < kContentsTensors; ++i) {
    TF_RETURN_IF_ERROR(ctx->allocate_output(first + i, shapes[i], &out[i]));
  }
  WritableRowColumns columns;
  columns.keys = static_cast<Key*>(out[0]->data());
  columns.embeddings = static_cast<float*>(out[1]->data());
  if (piece.with_slots) {
    columns.slots = static_cast<float*>(out[2]->data());
    columns.update_nums = static_cast<int64_t*>(out[3]->data());
    columns.update_times = static_cast<int64_t*>(out[4]->data());
  }
  if (n > 0) {
    TF_RETURN_IF_ERROR(ToAbsl(snapshot.Write(columns, static_cast<uint64_t>(piece.begin),
                                             static_cast<uint64_t>(piece.end)),
                              table));
  }
  std::copy_n(snapshot.slot_start().begin(), width, out[5]->flat<float>().data());
  out[6]->scalar<tf::tstring>()() = snapshot.state().rule;
  out[7]->scalar<int64_t>()() = snapshot.state().steps;
  out[8]->scalar<int64_t>()() = snapshot.step_clock();
  auto* to = static_cast<char*>(out[9]->data());
  for (std::string& part : counts) {
    to = std::copy(part.begin(), part.end(), to);
    std::string().swap(part);  // frees each part at once, so that there is no second copy
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PutPiece(tf::OpKernelContext* ctx, int first, const std::string& table,
                      const Table::Snapshot& snapshot, int dim, int64_t begin, int64_t end,
                      bool with_admission) {
  return Put(ctx, first, table, snapshot, dim, {begin, end, true, with_admission});
}

absl::Status PutSnapshot(tf::OpKernelContext* ctx, int first, const std::string& table,
                         const Table::Snapshot& snapshot, int dim, bool with_slots) {
  const auto n = static_cast<int64_t>(snapshot.size());
  return Put(ctx, first, table, snapshot, dim, {0, n, with_slots, with_slots});
}

absl::Status ReadContents(tf::OpKernelContext* ctx, int first, const std::string& table, int dim,
                          TableContents* contents) {
  const auto input = [&](int i) -> const tf::Tensor& { return ctx->input(first + i); };
  const tf::Tensor &keys = input(0), &embeddings = input(1), &slots = input(2),
                   &update_nums = input(3), &update_times = input(4), &slot_start = input(5),
                   &admission = input(9);
  const int64_t n = keys.NumElements();
  const std::string count = std::to_string(n);
  TF_RETURN_IF_ERROR(ExpectKeys(table, keys));
  TF_RETURN_IF_ERROR(ExpectEmbeddings(table, embeddings, keys.NumElements(), dim));
  if (slots.dims() != 2 || slots.dim_size(0) != n) {
    return Expected(table, "slots of shape [" + count + ", any], one row a key", slots);
  }
  if (update_nums.dims() != 1 || update_nums.NumElements() != n) {
    return Expected(table, count + " update counts, one a key", update_nums);
  }
  if (update_times.dims() != 1 || update_times.NumElements() != n) {
    return Expected(table, count + " update times, one a key", update_times);
  }
  if (slot_start.NumElements() != slots.dim_size(1)) {
    return Expected(table,
                    "slot_start to have " + std::to_string(slots.dim_size(1)) +
                        " values, one a column of slots",
                    slot_start);
  }
  TF_RETURN_IF_ERROR(ExpectScalar(input(6), "rule"));
  TF_RETURN_IF_ERROR(ExpectScalar(input(7), "steps"));
  TF_RETURN_IF_ERROR(ExpectScalar(input(8), "step_clock"));
  contents->rule = input(6).scalar<tf::tstring>()();
  contents->steps = input(7).scalar<int64_t>()();
  contents->step_clock = input(8).scalar<int64_t>()();
  contents->n = static_cast<size_t>(n);
  contents->rows.keys = static_cast<const Key*>(keys.data());
  contents->rows.embeddings = static_cast<const float*>(embeddings.data());
  contents->rows.slots = static_cast<const float*>(slots.data());
  contents->rows.update_nums = static_cast<const int64_t*>(update_nums.data());
  contents->rows.update_times = static_cast<const int64_t*>(update_times.data());
  contents->slot_floats = static_cast<int>(slots.dim_size(1));
  contents->slot_start = static_cast<const float*>(slot_start.data());
  contents->admission = {static_cast<const char*>(admission.data()),
                         static_cast<size_t>(admission.NumElements())};
  return absl::OkStatus();
}

absl::Status LogDropped(const Result<RestoreOutcome>& outcome, const std::string& table) {
  TF_RETURN_IF_ERROR(ToAbsl(outcome.status(), table));
  if (outcome.value().dropped_counts) {
    LOG(WARNING) << "table '" << table
                 << "' has no admission, and was given what one has counted: every key gets a row, "
                    "and the counts are dropped";
  }
  if (outcome.value().dropped_times) {
    LOG(WARNING) << "table '" << table
                 << "' was given rows whose times are by another clock, of steps instead of "
                    "seconds or the other way round: all of them count as updated now";
  }
  return absl::OkStatus();
}

}  // namespace sok
