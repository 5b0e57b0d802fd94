#include "core/base/initializer.h"

#include <cstdint>

#include "binding/binding.h"

namespace sok::binding {

void BindInitializer(nb::module_& module) {
  nb::class_<Initializer>(module, "Initializer")
      .def(
          "__init__",
          [](Initializer* self, const std::string& kind, double a, double b, uint64_t seed,
             uint64_t group) {
            new (self) Initializer(Value(Initializer::Make(kind, a, b, seed, group)));
          },
          nb::arg("kind"), nb::arg("a"), nb::arg("b"), nb::arg("seed"), nb::arg("group"))
      .def(
          "fill",
          [](const Initializer& self, Key key, const FloatsOut& out) {
            if (out.size() > static_cast<size_t>(Table::kMostDim)) {
              Raise(InvalidArgument("expected out of at most " + std::to_string(Table::kMostDim) +
                                    " elements, got " + std::to_string(out.size())));
            }
            const GilReleased released;
            self.Fill(key, out.data(), static_cast<int>(out.size()));
          },
          nb::arg("key"), nb::arg("out").noconvert());
}

}  // namespace sok::binding
