// The description of a table: everything that a caller chooses of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/policies/admission.h"
#include "core/policies/eviction.h"
#include "core/rows/row_type.h"

namespace sok {

// A new option of a table is a field here, a line in VisitFields below, and a field of the
// dataclass `TableSpec` of Python. Ops, layers and files hand the description on whole.
struct TableSpec {
  int dim = 0;
  // "constant", "uniform", …: see Initializer::Make.
  std::string initializer = "uniform";
  double initializer_a = -0.05;
  double initializer_b = 0.05;
  uint64_t seed = 0;
  uint64_t max_rows = 0;  // 0: as many as memory holds
  // Keys are positions in [0, max_rows * owners), of which this process holds key % owners ==
  // owner.
  bool direct = false;
  uint64_t owners = 1;
  uint64_t owner = 0;
  std::string storage;      // the folder of the storage that the rows lie in; empty: in memory
  std::string storage_id;   // the id of the storage whose rows are meant; empty: any
  int group = 0;            // of the storage; part of what rows start from
  uint32_t shards = 0;      // the number of shards by key; 0: as many as suit the machine
  bool step_clock = false;  // times of rows are steps of the table, not seconds
  // The number, among the GPUs that the process sees, of the GPU whose memory the rows lie in; -1:
  // they lie in the host's memory. A table on a GPU has float32 rows, and finds keys by a hash even
  // if it is direct.
  int gpu = -1;
  bool gpu_optional = false;  // without that GPU the rows lie in the host's memory
  uint64_t max_bytes = 0;     // bytes of the GPU for rows and index; 0: as many as it has
  // The types of rows. The seed of the form is made from the table's seed: see SeededForm.
  RowForm form = {};
  std::optional<AdmissionConfig> admission = {};  // unset: every key gets a row
  std::optional<EvictionConfig> eviction = {};    // unset: rows stay

  // Reads a description from the text that Python's TableSpec makes: a JSON object whose fields
  // have the names that VisitFields gives them. Fields that are left out have their defaults; the
  // storage is percent-encoded, since a path may have any bytes. Errors: kInvalidArgument for a
  // text that is none, a field of another type, and one that this release does not know.
  static Result<TableSpec> FromJson(const std::string& text);
};

// Calls visit(name, &value) for each field of the serialised form, and then sets the fields of the
// spec whose form differs. Errors: kInvalidArgument for types of rows that there are not.
template <typename Visit>
Status VisitFields(TableSpec* spec, const Visit& visit) {
  std::string row_dtype = RowTypeName(spec->form.row), slot_dtype = RowTypeName(spec->form.slots);
  AdmissionConfig admission{"", 0, 0, 0.01f};  // as an attribute of an op has the rate, a float
  EvictionConfig eviction{""};
  visit("dim", &spec->dim);
  visit("initializer", &spec->initializer);
  visit("initializer_a", &spec->initializer_a);
  visit("initializer_b", &spec->initializer_b);
  visit("seed", &spec->seed);
  visit("max_rows", &spec->max_rows);
  visit("direct", &spec->direct);
  visit("owners", &spec->owners);
  visit("owner", &spec->owner);
  visit("storage", &spec->storage);
  visit("storage_id", &spec->storage_id);
  visit("group", &spec->group);
  visit("admission", &admission.kind);
  visit("admission_min_count", &admission.min_count);
  visit("admission_capacity", &admission.capacity);
  visit("admission_false_positive_rate", &admission.false_positive_rate);
  visit("admission_counter_bits", &admission.counter_bits);
  visit("eviction", &eviction.kind);
  visit("eviction_max_age", &eviction.max_age);
  visit("eviction_min_l2", &eviction.min_l2);
  visit("eviction_every", &eviction.every);
  visit("shards", &spec->shards);
  visit("row_dtype", &row_dtype);
  visit("slot_dtype", &slot_dtype);
  visit("step_clock", &spec->step_clock);
  visit("gpu", &spec->gpu);
  visit("gpu_optional", &spec->gpu_optional);
  visit("max_bytes", &spec->max_bytes);
  const auto form = RowForm::Make(row_dtype, slot_dtype);
  if (!form.ok()) return form.status();
  spec->form = form.value();
  if (!admission.kind.empty()) spec->admission = admission;
  if (!eviction.kind.empty()) spec->eviction = eviction;
  return Status();
}

// Returns the form of a table's rows with its seed, which rounds the results of steps at random.
RowForm SeededForm(const TableSpec& spec);

}  // namespace sok
