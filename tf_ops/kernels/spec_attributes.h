// The attributes of the ops that make a table, and the description of the table that they give.
#pragma once

#include "core/tables/table_spec.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

// `spec` is the description of a table: see TableSpec::FromJson. The other attributes are those by
// which graphs of the releases 0.1 and 0.2 describe a table, which still load. They get no new
// ones.
#define SOK_TABLE_ATTRS                                    \
  Attr("spec: string = ''")                                \
      .Attr("dim: int >= 0 = 0")                           \
      .Attr("initializer: string = 'uniform'")             \
      .Attr("initializer_a: float = -0.05")                \
      .Attr("initializer_b: float = 0.05")                 \
      .Attr("seed: int = 0")                               \
      .Attr("max_rows: int >= 0 = 0")                      \
      .Attr("direct: bool = false")                        \
      .Attr("owners: int >= 1 = 1")                        \
      .Attr("owner: int >= 0 = 0")                         \
      .Attr("storage: string = ''")                        \
      .Attr("storage_id: string = ''")                     \
      .Attr("group: int >= 0 = 0")                         \
      .Attr("admission: string = ''")                      \
      .Attr("admission_min_count: int >= 0 = 0")           \
      .Attr("admission_capacity: int >= 0 = 0")            \
      .Attr("admission_false_positive_rate: float = 0.01") \
      .Attr("admission_counter_bits: int >= 0 = 4")        \
      .Attr("eviction: string = ''")                       \
      .Attr("eviction_max_age: int >= 0 = 0")              \
      .Attr("eviction_min_l2: float = 0.0")                \
      .Attr("eviction_every: int >= 0 = 100")              \
      .Attr("shards: int >= 0 = 0")                        \
      .Attr("row_dtype: string = 'float32'")               \
      .Attr("slot_dtype: string = 'float32'")              \
      .Attr("step_clock: bool = false")                    \
      .Attr("gpu: int >= -1 = -1")                         \
      .Attr("gpu_optional: bool = false")                  \
      .Attr("max_bytes: int >= 0 = 0")

// Reads the description of a table from the attributes of an op. An op that does not have all of
// the attributes of older graphs leaves the fields of the others as they are.
absl::Status ReadTableSpec(tensorflow::OpKernelConstruction* ctx, TableSpec* spec);

}  // namespace sok
