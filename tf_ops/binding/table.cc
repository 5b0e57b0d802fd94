#include "core/tables/table.h"

#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

#include "binding/binding.h"
#include "binding/row_calls.h"
#include "core/base/thread_pool.h"

namespace sok::binding {
namespace {

void CheckBatch(const PyTable& self, const KeysIn& keys, const char* name, size_t floats) {
  CheckCount(keys);
  const auto dim = static_cast<size_t>(self.table->dim());
  CheckSize(name, floats, keys.size() * dim,
            std::to_string(keys.size()) + " keys of dimension " + std::to_string(dim));
}

void Lookup(PyTable& self, const KeysIn& keys, const FloatsOut& out, bool make_rows,
            const std::optional<FlagsOut>& exists) {
  CheckBatch(self, keys, "out", out.size());
  if (exists) CheckSize("exists", exists->size(), keys.size(), "one a key");
  Check(Unlocked([&] {
    return self.table->Lookup(keys.data(), keys.size(), make_rows, out.data(), ProcessPool(),
                              exists ? exists->data() : nullptr);
  }));
}

void Metadata(PyTable& self, const KeysIn& keys, const FlagsOut& exists,
              const NumbersOut& update_nums, const NumbersOut& update_times) {
  PutMetadata(keys, exists, update_nums, update_times, [&](RowMeta* metas) {
    return self.table->ReadMeta(keys.data(), keys.size(), metas, exists.data(), ProcessPool());
  });
}

void Update(PyTable& self, const KeysIn& keys, const FloatsIn& gradients,
            const PyOptimizer& optimizer, bool sequential) {
  CheckBatch(self, keys, "gradients", gradients.size());
  Check(Unlocked([&] {
    return self.table->Update(keys.data(), keys.size(), gradients.data(), optimizer.rule,
                              *optimizer.optimizer, {sequential}, ProcessPool());
  }));
}

void Assign(PyTable& self, const KeysIn& keys, const FloatsIn& embeddings) {
  CheckBatch(self, keys, "embeddings", embeddings.size());
  Check(Unlocked([&] {
    return self.table->Assign(keys.data(), keys.size(), embeddings.data(), ProcessPool());
  }));
}

uint64_t Remove(PyTable& self, const KeysIn& keys) {
  return Value(
      Unlocked([&] { return self.table->Remove(keys.data(), keys.size(), ProcessPool()); }));
}

// Returns the keys as bytes, and whether they are complete.
nb::tuple TakeRemoved(PyTable& self, uint64_t limit) {
  const RemovedSince removed =
      Value(Unlocked([&] { return self.table->TakeRemoved(limit, ProcessPool()); }));
  const auto* keys = reinterpret_cast<const char*>(removed.keys.data());
  return nb::make_tuple(nb::bytes(keys, removed.keys.size() * sizeof(Key)), removed.complete);
}

void Prefetch(PyTable& self, const KeysIn& keys) {
  CheckCount(keys);
  Check(Unlocked([&] { return self.table->ReadAhead(keys.data(), keys.size(), ProcessPool()); }));
}

nb::dict Stats(PyTable& self) {
  return ToDict(Unlocked([&] { return self.table->Stats(); }));
}

}  // namespace

void BindTable(nb::module_& module) {
  nb::class_<PyTable>(module, "Table")
      .def_prop_ro("dim", [](PyTable& self) { return self.table->dim(); })
      .def("lookup", Lookup, nb::arg("keys").noconvert(), nb::arg("out").noconvert(),
           nb::arg("make_rows"), nb::arg("exists").noconvert() = nb::none())
      .def("metadata", Metadata, nb::arg("keys").noconvert(), nb::arg("exists").noconvert(),
           nb::arg("update_nums").noconvert(), nb::arg("update_times").noconvert())
      .def("prefetch", Prefetch, nb::arg("keys").noconvert())
      .def("update", Update, nb::arg("keys").noconvert(), nb::arg("gradients").noconvert(),
           nb::arg("optimizer"), nb::arg("sequential"))
      .def("assign", Assign, nb::arg("keys").noconvert(), nb::arg("embeddings").noconvert())
      .def("remove", Remove, nb::arg("keys").noconvert())
      .def("removed_keys", TakeRemoved, nb::arg("limit"))
      .def("size", [](PyTable& self) { return Unlocked([&] { return self.table->size(); }); })
      .def("steps", [](PyTable& self) { return Unlocked([&] { return self.table->steps(); }); })
      .def("stats", Stats);
}

}  // namespace sok::binding
