#include "kernels/core_calls.h"

#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <string_view>

#include "core/base/utf8.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace sok {

namespace tf = tensorflow;

absl::Status ToAbsl(const Status& status, const std::string& table_name) {
  std::string named;
  std::string_view message = status.text();
  // If there is no memory left, the error is returned without the name of the table.
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
      // OutOfRange means the end of a data set to TensorFlow, and Keras would end the epoch.
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

absl::Status ExpectScalar(const tf::Tensor& tensor, const char* what) {
  if (tf::TensorShapeUtils::IsScalar(tensor.shape())) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string("expected ") + what +
                                    " to be a scalar, got shape " + tensor.shape().DebugString());
}

absl::Status UnfitAttributes(const tf::NodeDef& op, const std::string& expected) {
  return absl::InvalidArgumentError("expected " + expected + ", got the attributes of " +
                                    tf::SummarizeNodeDef(op));
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

}  // namespace sok
