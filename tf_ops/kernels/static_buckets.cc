// SokEmbed>StaticBuckets returns the static row of each id, as TensorFlow's hash-bucket columns
// choose it.
#include <string>

#include "core/adaptive/decimal_fingerprint.h"
#include "core/base/remainder.h"
#include "kernels/register_kernel.h"
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

// The bucket is the FarmHash fingerprint of the string, or of an integer's decimal digits, modulo
// num_buckets.
class StaticBucketsOp : public tf::OpKernel {
 public:
  explicit StaticBucketsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    int64_t buckets;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_buckets", &buckets));
    remainder_ = Remainder(static_cast<uint64_t>(buckets));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& ids = ctx->input(0);
    tf::Tensor* buckets = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ids.shape(), &buckets));
    int64_t* out = buckets->flat<int64_t>().data();
    switch (ids.dtype()) {
      case tf::DT_STRING: {
        const auto strings = ids.flat<tf::tstring>();
        Fill(ctx, ids.NumElements(), out, [&](int64_t begin, int64_t end, uint64_t* to) {
          for (int64_t i = begin; i < end; ++i) {
            to[i] = tf::Fingerprint64({strings(i).data(), strings(i).size()});
          }
        });
        break;
      }
      case tf::DT_INT32: {
        const int32_t* id = ids.flat<int32_t>().data();
        Fill(ctx, ids.NumElements(), out, [id](int64_t begin, int64_t end, uint64_t* to) {
          for (int64_t i = begin; i < end; ++i) to[i] = FingerprintOfDigits(id[i]);
        });
        break;
      }
      default: {
        const auto* id = static_cast<const int64_t*>(ids.data());
        Fill(ctx, ids.NumElements(), out, [id](int64_t begin, int64_t end, uint64_t* to) {
          FingerprintsOfDigits(id + begin, end - begin, to + begin);
        });
      }
    }
  }

 private:
  // Computes buckets. fingerprints(begin, end, to) writes those of ids [begin, end) to to[begin],
  // ….
  template <typename Fingerprints>
  void Fill(tf::OpKernelContext* ctx, int64_t n, int64_t* out,
            const Fingerprints& fingerprints) const {
    auto* to = reinterpret_cast<uint64_t*>(out);
    IntraOpPool(ctx)(n, 10, [&](int64_t begin, int64_t end) {
      fingerprints(begin, end, to);
      for (int64_t i = begin; i < end; ++i) to[i] = remainder_(to[i]);
    });
  }

  Remainder remainder_{1};  // divides by the number of buckets
};

SOK_REGISTER_KERNEL("StaticBuckets", StaticBucketsOp);

}  // namespace sok
