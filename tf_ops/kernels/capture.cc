// The op that begins a capture of a table, which _core writes into a file.
#include <algorithm>
#include <string>
#include <utility>

#include "core/tables/table_capture.h"
#include "kernels/outputs.h"
#include "kernels/register_kernel.h"
#include "kernels/snapshot.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

REGISTER_OP("SokEmbed>BeginCapture")
    .Input("table: resource")
    .Input("mark: int64")
    .Input("since: int64")
    .Input("reader: int64")
    .Output("capture: int64")
    .Output("slot_start: float")
    .Output("rule: string")
    .Output("steps: int64")
    .Output("step_clock: int64")
    .Output("admission: uint8")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      for (int i : {0, 2, 3, 4}) c->set_output(i, c->Scalar());
      for (int i : {1, 5}) c->set_output(i, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

namespace {

absl::Status BeginCapture(tf::OpKernelContext* ctx, OpenTable& resource) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(1), "mark"));
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(2), "since"));
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(3), "reader"));
  const int64_t reader = ctx->input(3).scalar<int64_t>()();
  if (reader < 0 || reader >= CaptureOptions::kReaders) {
    return absl::InvalidArgumentError("expected a reader in [0, " +
                                      std::to_string(CaptureOptions::kReaders) + "), got " +
                                      std::to_string(reader));
  }
  CaptureOptions options;
  options.reader = static_cast<int>(reader);
  options.mark = static_cast<uint64_t>(ctx->input(1).scalar<int64_t>()());
  options.since = static_cast<uint64_t>(ctx->input(2).scalar<int64_t>()());
  auto begun = resource.table()->BeginCapture(options);
  TF_RETURN_IF_ERROR(ToAbsl(begun.status(), resource.name()));
  TableCapture& capture = begun.value();
  capture.hold = resource.table();
  int64_t count_bytes = 0;
  for (const std::string& part : capture.admission) {
    count_bytes += static_cast<int64_t>(part.size());
  }
  tf::Tensor *slot_start, *rule, *admission;
  TF_RETURN_IF_ERROR(ctx->allocate_output(1, {capture.slot_floats()}, &slot_start));
  TF_RETURN_IF_ERROR(ctx->allocate_output(2, {}, &rule));
  TF_RETURN_IF_ERROR(ctx->allocate_output(5, {count_bytes}, &admission));
  std::copy(capture.slot_start.begin(), capture.slot_start.end(), slot_start->flat<float>().data());
  rule->scalar<tf::tstring>()() = capture.state.rule;
  auto* to = static_cast<char*>(admission->data());
  for (const std::string& part : capture.admission) to = std::copy(part.begin(), part.end(), to);
  capture.admission.clear();
  const int64_t steps = capture.state.steps, step_clock = capture.step_clock;
  tf::Tensor *steps_out, *clock_out, *number;
  TF_RETURN_IF_ERROR(ctx->allocate_output(3, {}, &steps_out));
  TF_RETURN_IF_ERROR(ctx->allocate_output(4, {}, &clock_out));
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {}, &number));
  steps_out->scalar<int64_t>()() = steps;
  clock_out->scalar<int64_t>()() = step_clock;
  number->scalar<int64_t>()() = static_cast<int64_t>(HandOver(std::move(capture)));
  return absl::OkStatus();
}
SOK_REGISTER_KERNEL("BeginCapture", FunctionKernel<OnTable<BeginCapture>>);

}  // namespace

}  // namespace sok
