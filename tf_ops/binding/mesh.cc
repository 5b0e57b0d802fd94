#include "core/transport/mesh.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding/binding.h"
#include "core/base/interrupt.h"

namespace sok::binding {
namespace {

// A mesh that ops find by its number for as long as this lives.
class PyMesh {
 public:
  PyMesh(int rank, int size, const std::string& host, double timeout, const nb::bytes& secret)
      : mesh_(Made(Mesh::Listen(
            {rank, size, host, timeout, true, std::string(secret.c_str(), secret.size())}))),
        number_(AddMesh(mesh_)) {}
  ~PyMesh() { RemoveMesh(number_); }
  PyMesh(const PyMesh&) = delete;

  void Connect(const std::vector<std::string>& addresses) {
    const Status status = Unlocked([&] { return mesh_->Connect(addresses); });
    // An interrupt has ended the wait, and is an exception of its own.
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    CheckConnected(status);
  }
  nb::dict Stats() const {
    const MeshStats stats = mesh_->Stats();
    nb::dict dict;
    dict["exchanges"] = stats.exchanges;
    dict["bytes_sent"] = stats.bytes_sent;
    dict["seconds"] = stats.seconds;
    return dict;
  }
  const std::string& address() const { return mesh_->address(); }
  bool is_broken() const { return mesh_->is_broken(); }
  int64_t number() const { return number_; }

 private:
  static void CheckConnected(const Status& status) {
    if (status.code() != Code::kUnavailable) return Check(status);
    PyErr_SetString(PyExc_ConnectionError, status.message().c_str());
    throw nb::python_error();
  }
  static std::shared_ptr<Mesh> Made(Result<std::shared_ptr<Mesh>> mesh) {
    CheckConnected(mesh.status());
    return std::move(mesh.value());
  }

  const std::shared_ptr<Mesh> mesh_;
  const int64_t number_;
};

}  // namespace

void BindMesh(nb::module_& module) {
  module.def("watch_interrupts", &WatchInterrupts);
  nb::class_<PyMesh>(module, "Mesh")
      .def(nb::init<int, int, const std::string&, double, const nb::bytes&>(), nb::arg("rank"),
           nb::arg("size"), nb::arg("host"), nb::arg("timeout"), nb::arg("secret"))
      .def_prop_ro("address", [](const PyMesh& self) { return self.address(); })
      .def_prop_ro("number", [](const PyMesh& self) { return self.number(); })
      .def_prop_ro("broken", [](const PyMesh& self) { return self.is_broken(); })
      .def("connect", &PyMesh::Connect, nb::arg("addresses"))
      .def("stats", &PyMesh::Stats);
}

}  // namespace sok::binding
