// What the two ops that commit have in common: their inputs, and what becomes of the anchor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

// The inputs after the table, the output and the attributes of an op that commits.
#define SOK_COMMIT_SIGNATURE                  \
  Input("anchor: float")                      \
      .Input("hypers: double")                \
      .Input("step: int64")                   \
      .Input("scale: float")                  \
      .Input("redeemed: float")               \
      .Output("committed_anchor: float")      \
      .Attr("rule: string")                   \
      .Attr("hyper_names: list(string) >= 0") \
      .Attr("optimizer: int >= 0 = 0")        \
      .Attr("first_step: int >= 1 = 1")       \
      .Attr("clip_value: float = 0.0")        \
      .Attr("redeems: bool = false")          \
      .Attr("plain: bool = true")             \
      .Attr("clipped_to: float = 0.0")

namespace sok {

absl::Status CommitShape(tensorflow::shape_inference::InferenceContext* c);

// A kernel that commits. Input 0 is what is committed.
class CommitKernel : public tensorflow::OpKernel {
 public:
  explicit CommitKernel(tensorflow::OpKernelConstruction* ctx);
  void Compute(tensorflow::OpKernelContext* ctx) override;

 protected:
  // Commits, and sets the name of what it has committed.
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx, const CommitOptions& options,
                           CommitOutcome* outcome, std::string* name) = 0;

 private:
  std::string rule_;
  std::vector<std::string> hyper_names_;
  int64_t optimizer_;
  int64_t first_step_;
  float clip_value_, clipped_to_;
  bool redeems_, plain_;
};

}  // namespace sok
