// SokEmbed>StaticBuckets: which static row an id has, as TensorFlow's hash-bucket columns say.
#include <string>

#include "core/adaptive/decimal_fingerprint.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/fingerprint.h"

namespace sok {

namespace tf = tensorflow;

REGISTER_OP("SokEmbed>StaticBuckets")
    .Input("ids: T")
    .Output("buckets: int64")
    .Attr("T: {int32, int64, string}")
    .Attr("num_buckets: int >= 1")
    .SetShapeFn(tf::shape_inference::UnchangedShape);

// The FarmHash fingerprint of the string, of an integer's decimal digits, modulo num_buckets.
class StaticBucketsOp : public tf::OpKernel {
 public:
  explicit StaticBucketsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    int64_t buckets;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_buckets", &buckets));
    buckets_ = static_cast<uint64_t>(buckets);
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& ids = ctx->input(0);
    tf::Tensor* buckets = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ids.shape(), &buckets));
    int64_t* out = buckets->flat<int64_t>().data();
    switch (ids.dtype()) {
      case tf::DT_STRING: {
        const auto strings = ids.flat<tf::tstring>();
        Fill(ctx, ids.NumElements(), out, [&](int64_t i) {
          return tf::Fingerprint64({strings(i).data(), strings(i).size()});
        });
        break;
      }
      case tf::DT_INT32:
        FillOfDigits(ctx, ids.flat<int32_t>().data(), ids.NumElements(), out);
        break;
      default:
        FillOfDigits(ctx, ids.flat<int64_t>().data(), ids.NumElements(), out);
    }
  }

 private:
  template <typename T>
  void FillOfDigits(tf::OpKernelContext* ctx, const T* ids, int64_t n, int64_t* out) const {
    Fill(ctx, n, out, [ids](int64_t i) { return FingerprintOfDigits(ids[i]); });
  }

  template <typename Fingerprint>
  void Fill(tf::OpKernelContext* ctx, int64_t n, int64_t* out, const Fingerprint& of) const {
    IntraOpPool(ctx)(n, 20, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = static_cast<int64_t>(of(i) % buckets_);
    });
  }

  uint64_t buckets_;
};

REGISTER_KERNEL_BUILDER(Name("SokEmbed>StaticBuckets").Device(tf::DEVICE_CPU), StaticBucketsOp);

}  // namespace sok
