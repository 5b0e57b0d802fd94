#include "kernels/table_resource.h"

#include <exception>
#include <vector>

#include "core/base/utf8.h"
#include "tensorflow/core/framework/tensor.h"

namespace sok {

namespace tf = tensorflow;

int64_t OpenTable::MemoryUsed() const {
  const TableStats stats = table_->Stats();
  return static_cast<int64_t>(stats.index_bytes + stats.row_bytes);
}

absl::Status ToAbsl(const Status& status, const std::string& table_name) {
  std::string named;
  std::string_view message = status.text();
  // If memory ends here, the error goes as it is: what it says matters more.
  try {
    if (!table_name.empty()) message = named = "table '" + table_name + "': " + status.message();
    if (!IsUtf8(message)) message = named = EscapedUtf8(message);
  } catch (const std::bad_alloc&) {
  }
  switch (status.code()) {
    case Code::kOk:
      return absl::OkStatus();
    case Code::kInvalidArgument:
      return absl::InvalidArgumentError(message);
    case Code::kOutOfRange:
      // TensorFlow takes OutOfRange for the end of a data set, and Keras would end the epoch.
      return absl::InvalidArgumentError(message);
    case Code::kResourceExhausted:
      return absl::ResourceExhaustedError(message);
    case Code::kFailedPrecondition:
      return absl::FailedPreconditionError(message);
    case Code::kNotFound:
      return absl::NotFoundError(message);
    case Code::kPermissionDenied:
      return absl::PermissionDeniedError(message);
    case Code::kUnavailable:
      return absl::UnavailableError(message);
    case Code::kDataLoss:
      return absl::DataLossError(message);
    case Code::kInternal:
      return absl::InternalError(message);
  }
  return absl::InternalError(message);
}

absl::Status OpenTable::CheckProcess() const {
  return storage_ == nullptr ? absl::OkStatus() : ToAbsl(storage_->CheckProcess(), name_);
}

absl::Status ReadForm(tf::OpKernelConstruction* ctx, RowForm* form) {
  std::string row_dtype, slot_dtype;
  TF_RETURN_IF_ERROR(ctx->GetAttr("row_dtype", &row_dtype));
  TF_RETURN_IF_ERROR(ctx->GetAttr("slot_dtype", &slot_dtype));
  const auto made = RowForm::Make(row_dtype, slot_dtype);
  if (made.ok()) *form = made.value();
  return ToAbsl(made.status());
}

absl::Status GetTable(tf::OpKernelContext* ctx, std::shared_ptr<OpenTable>* table) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(0), "table"));
  TF_RETURN_IF_ERROR(GetContent(ctx, tf::HandleFromInput(ctx, 0), table));
  return (*table)->CheckProcess();
}

absl::Status ExpectScalar(const tf::Tensor& tensor, const char* what) {
  if (tf::TensorShapeUtils::IsScalar(tensor.shape())) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string("expected ") + what +
                                    " to be a scalar, got shape " + tensor.shape().DebugString());
}

ParallelFor IntraOpPool(tf::OpKernelContext* ctx) {
  tsl::thread::ThreadPool* pool = ctx->device()->tensorflow_cpu_worker_threads()->workers;
  return [pool](int64_t total, int64_t unit_cost, const std::function<void(int64_t, int64_t)>& fn) {
    // TensorFlow's threads let no exception through, so it is kept for the caller.
    std::mutex mu;
    std::exception_ptr failure;
    const auto caught = [&](int64_t begin, int64_t end) {
      try {
        fn(begin, end);
      } catch (...) {
        std::lock_guard<std::mutex> guard(mu);
        if (failure == nullptr) failure = std::current_exception();
      }
    };
// TensorFlow 2.19 has no SchedulingParams::Adaptive, and later ones deprecate all others.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    pool->ParallelFor(total, unit_cost, caught);
#pragma GCC diagnostic pop
    if (failure != nullptr) std::rethrow_exception(failure);
  };
}

std::shared_ptr<const void> Hold(const tf::Tensor& tensor) {
  return std::make_shared<const tf::Tensor>(tensor);
}

absl::Status CountsOf(tf::OpKernelContext* ctx, int inputs, const tf::Tensor& keys,
                      const int64_t** counts) {
  if (ctx->num_inputs() <= inputs) return absl::OkStatus();
  const tf::Tensor& given = ctx->input(inputs);
  if (ctx->num_inputs() > inputs + 1 || given.shape() != keys.shape()) {
    return absl::InvalidArgumentError("expected counts of the shape of the keys, " +
                                      keys.shape().DebugString() + ", got shape " +
                                      given.shape().DebugString());
  }
  *counts = static_cast<const int64_t*>(given.data());
  return absl::OkStatus();
}

void LogLeftOut(const CommitOutcome& outcome, const std::string& table_name) {
  if (!outcome.first_left_out) return;
  LOG(WARNING)
      << "table '" << table_name << "': a step has dropped the gradients of " << outcome.left_out
      << " keys without a row, since the table is full, and not enough of its rows may go. "
         "stats()[\"left_out\"] counts such keys from now on. Raise max_rows, or make "
         "batches smaller";
}

LookupKeys KeysOf(const tf::Tensor& keys) {
  LookupKeys out;
  out.n = static_cast<size_t>(keys.NumElements());
  if (keys.dtype() != tf::DT_INT32) {
    out.hold = Hold(keys);
    out.keys = static_cast<const Key*>(keys.data());
    return out;
  }
  auto wide = std::make_shared<std::vector<Key>>(out.n);
  const auto narrow = keys.flat<int32_t>();
  for (size_t i = 0; i < out.n; ++i) {
    (*wide)[i] = static_cast<Key>(static_cast<int64_t>(narrow(i)));
  }
  out.keys = wide->data();
  out.hold = std::move(wide);
  return out;
}

}  // namespace sok
