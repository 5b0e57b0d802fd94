// SokEmbed>Prefetch: reads rows of a storage into its cache, before a step asks for them.
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/base/thread_pool.h"
#include "kernels/guarded_kernel.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

REGISTER_OP("SokEmbed>Prefetch")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Attr("Tkeys: {int32, int64, uint64}")
    // True: the keys are noted, and read by the next op that reads rows of the table ahead.
    .Attr("later: bool = false")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

namespace {

// Reads on threads of its own: TensorFlow's would lack in the step that runs meanwhile.
class PrefetchOp : public tf::AsyncOpKernel {
 public:
  explicit PrefetchOp(tf::OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("later", &later_));
  }

  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) override {
    try {
      std::shared_ptr<OpenTable> table;
      OP_REQUIRES_OK_ASYNC(ctx, GetTable(ctx, &table), done);
      if (!table->stored()) return done();
      if (later_) {
        static_cast<void>(OrNoMemory([&] {  // the keys are a hint that may be lost
          const LookupKeys keys = KeysOf(ctx->input(1));
          if (keys.n > 0) table->NoteKeysToCome({keys.keys, keys.keys + keys.n});
          return Status();
        }));
        return done();
      }
      ctx->env()->SchedClosure([table = std::move(table), keys = ctx->input(1), done]() mutable {
        const auto read = [&](const Key* wanted, size_t n) {
          return table->table()->ReadAhead(wanted, n, ProcessPool());
        };
        // The step that needs a row which cannot be read meets the error itself.
        static_cast<void>(OrNoMemory([&] {
          const LookupKeys own = KeysOf(keys);
          SOK_RETURN_IF_ERROR(read(own.keys, own.n));
          // These have the room in the cache that is left.
          for (const auto& noted : table->TakeKeysToCome()) {
            SOK_RETURN_IF_ERROR(read(noted.data(), noted.size()));
          }
          return Status();
        }));
        table.reset();  // nobody waits for what comes after done()
        done();
      });
    } catch (const std::exception&) {
      ctx->CtxFailure(CaughtStatus());
      done();
    }
  }

 private:
  bool later_;
};

SOK_REGISTER_ASYNC_KERNEL("Prefetch", PrefetchOp);

}  // namespace

}  // namespace sok
