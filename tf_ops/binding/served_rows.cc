// Files of rows that are served.
#include "core/serving/served_rows.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "binding/binding.h"
#include "core/base/thread_pool.h"
#include "core/serving/served_rows_writer.h"

namespace sok::binding {
namespace {

// Running calls keep the file mapped after it is closed; so does the array of its keys.
class PyServedRows {
 public:
  explicit PyServedRows(nb::handle path) {
    const std::string name = ToPath(path);
    rows_ = Value(Unlocked([&] { return ServedRows::Open(name); }));
  }

  std::shared_ptr<const ServedRows> get() const {
    if (rows_ == nullptr) {
      Raise(Status(Code::kFailedPrecondition,
                   "Expected a file of rows that is open. Received: one that is closed. Open it "
                   "again."));
    }
    return rows_;
  }
  void Close() { rows_.reset(); }

 private:
  std::shared_ptr<const ServedRows> rows_;
};

nb::ndarray<nb::numpy, const Key, nb::ndim<1>> KeysOf(const PyServedRows& self) {
  using Shared = std::shared_ptr<const ServedRows>;
  auto owned = std::make_unique<Shared>(self.get());
  const Key* const first = (*owned)->keys();
  const size_t n = (*owned)->size();
  const nb::capsule owner(owned.release(),
                          [](void* p) noexcept { delete static_cast<Shared*>(p); });
  return nb::ndarray<nb::numpy, const Key, nb::ndim<1>>(first, {n}, owner);
}

void Lookup(const PyServedRows& self, const KeysIn& keys, const FloatsOut& out) {
  const auto rows = self.get();
  CheckSize("out", out.size(), keys.size() * static_cast<size_t>(rows->dim()), "dim a key");
  Check(
      Unlocked([&] { return rows->Lookup(keys.data(), keys.size(), out.data(), ProcessPool()); }));
}

void Contains(const PyServedRows& self, const KeysIn& keys, const FlagsOut& out) {
  const auto rows = self.get();
  CheckSize("out", out.size(), keys.size(), "one a key");
  Check(Unlocked(
      [&] { return rows->Contains(keys.data(), keys.size(), out.data(), ProcessPool()); }));
}

void Read(const PyServedRows& self, uint64_t begin, const FloatsOut& out) {
  const auto rows = self.get();
  const auto dim = static_cast<size_t>(rows->dim());
  const size_t n = out.size() / dim;
  CheckSize("out", out.size(), n * dim, "whole rows");
  if (begin > rows->size() || n > rows->size() - begin) {
    Raise(InvalidArgument("expected rows among " + std::to_string(rows->size()) + ", got " +
                          std::to_string(n) + " from " + std::to_string(begin) + " on"));
  }
  Unlocked([&] { rows->Read(begin, n, out.data(), ProcessPool()); });
}

using Missing = std::tuple<std::string, double, double, uint64_t, uint64_t>;
using Extra = std::vector<std::pair<std::string, std::string>>;

struct PyServedRowsWriter {
  std::unique_ptr<ServedRowsWriter> writer;

  ServedRowsWriter& get() {
    if (writer == nullptr) {
      Raise(Status(Code::kFailedPrecondition,
                   "expected a file that is open, got one that is closed"));
    }
    return *writer;
  }
};

void OpenWriter(PyServedRowsWriter* self, nb::handle path, const std::string& dtype, int dim,
                const std::string& name, const std::optional<Missing>& missing, Extra extra,
                size_t memory) {
  ServingHeader header;
  header.name = name;
  header.type = Value(ServingTypeOf(dtype));
  header.dim = dim;
  header.extra = std::move(extra);
  if (missing.has_value()) {
    const auto& [kind, a, b, seed, group] = *missing;
    header.missing = {kind, a, b, seed, group};
  }
  const std::string at = ToPath(path);
  new (self) PyServedRowsWriter{
      Value(Unlocked([&] { return ServedRowsWriter::Open(at, std::move(header), memory); }))};
}

void Add(PyServedRowsWriter& self, const KeysIn& keys, const FloatsIn& rows, int dim) {
  CheckSize("rows", rows.size(), keys.size() * static_cast<size_t>(dim), "dim a key");
  ServedRowsWriter& writer = self.get();
  Check(Unlocked([&] { return writer.Add(keys.data(), rows.data(), keys.size(), ProcessPool()); }));
}

}  // namespace

void BindServedRows(nb::module_& module) {
  nb::class_<PyServedRows>(module, "ServedRows")
      .def(nb::init<nb::handle>(), nb::arg("path"))
      .def_prop_ro("dim", [](const PyServedRows& self) { return self.get()->dim(); })
      .def_prop_ro("size", [](const PyServedRows& self) { return self.get()->size(); })
      .def_prop_ro("dtype",
                   [](const PyServedRows& self) {
                     return std::string(ServingTypeName(self.get()->header().type));
                   })
      .def_prop_ro("file_bytes", [](const PyServedRows& self) { return self.get()->file_bytes(); })
      .def_prop_ro("header",
                   [](const PyServedRows& self) {
                     const std::string& text = self.get()->header_text();
                     return nb::bytes(text.data(), text.size());
                   })
      .def("lookup", Lookup, nb::arg("keys").noconvert(), nb::arg("out").noconvert())
      .def("contains", Contains, nb::arg("keys").noconvert(), nb::arg("out").noconvert())
      .def("read", Read, nb::arg("begin"), nb::arg("out").noconvert())
      .def("keys", KeysOf)
      .def("verify",
           [](const PyServedRows& self) {
             const auto rows = self.get();
             Check(Unlocked([&] { return rows->Verify(ProcessPool()); }));
           })
      .def("close", &PyServedRows::Close);

  nb::class_<PyServedRowsWriter>(module, "ServedRowsWriter")
      .def("__init__", OpenWriter, nb::arg("path"), nb::arg("dtype"), nb::arg("dim"),
           nb::arg("name"), nb::arg("missing").none(), nb::arg("extra"),
           nb::arg("memory") = ServedRowsWriter::kMemory)
      .def("add", Add, nb::arg("keys").noconvert(), nb::arg("rows").noconvert(), nb::arg("dim"))
      .def("finish",
           [](PyServedRowsWriter& self) {
             ServedRowsWriter& writer = self.get();
             Check(Unlocked([&] { return writer.Finish(); }));
             return std::make_pair(writer.rows(), writer.file_bytes());
           })
      .def("close", [](PyServedRowsWriter& self) { self.writer.reset(); });
}

}  // namespace sok::binding
