#include "core/transport/mesh.h"

#include <nanobind/stl/pair.h>
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

// Descriptors, and the places of their other ends; by rank.
using Sockets = std::vector<std::pair<int, std::string>>;

// A mesh that ops find by its number for as long as this lives.
class PyMesh {
 public:
  PyMesh(int rank, double timeout, const Sockets& sockets, std::vector<std::vector<int>> hosts)
      : mesh_(Made(rank, timeout, sockets, std::move(hosts))), number_(AddMesh(mesh_)) {}
  ~PyMesh() { RemoveMesh(number_); }
  PyMesh(const PyMesh&) = delete;

  nb::dict Stats() const {
    const MeshStats stats = mesh_->Stats();
    nb::dict dict;
    dict["exchanges"] = stats.exchanges;
    dict["bytes_sent"] = stats.bytes_sent;
    dict["seconds"] = stats.seconds;
    return dict;
  }
  bool is_broken() const { return mesh_->is_broken(); }
  int64_t number() const { return number_; }

 private:
  static std::shared_ptr<Mesh> Made(int rank, double timeout, const Sockets& sockets,
                                    std::vector<std::vector<int>> hosts) {
    std::vector<Connection> connections;
    for (const auto& [fd, place] : sockets) connections.push_back({Descriptor(fd), place});
    auto mesh = Mesh::Make({rank, static_cast<int>(sockets.size()), timeout, std::move(hosts)},
                           std::move(connections));
    Check(mesh.status());
    return std::move(mesh.value());
  }

  const std::shared_ptr<Mesh> mesh_;
  const int64_t number_;
};

}  // namespace

void BindMesh(nb::module_& module) {
  module.def("watch_interrupts", &WatchInterrupts);
  nb::class_<PyMesh>(module, "Mesh")
      .def(nb::init<int, double, const Sockets&, std::vector<std::vector<int>>>(), nb::arg("rank"),
           nb::arg("timeout"), nb::arg("sockets"), nb::arg("hosts"))
      .def_prop_ro("number", [](const PyMesh& self) { return self.number(); })
      .def_prop_ro("broken", [](const PyMesh& self) { return self.is_broken(); })
      .def("stats", &PyMesh::Stats);
}

}  // namespace sok::binding
