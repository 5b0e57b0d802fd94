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
        const LookupKeys keys = KeysOf(ctx->input(1));
        table->NoteKeysToCome(keys.keys, keys.n);
        return done();
      }
      ctx->env()->SchedClosure([table = std::move(table), keys = ctx->input(1), done]() mutable {
        // The step that needs a row which cannot be read meets the error itself.
        static_cast<void>(OrNoMemory([&] {
          const LookupKeys given = KeysOf(keys);
          std::vector<Key> wanted = table->TakeKeysToCome();
          wanted.insert(wanted.end(), given.keys, given.keys + given.n);
          return table->table()->ReadAhead(wanted.data(), wanted.size(), ProcessPool());
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
