// _core: the core for Python, without TensorFlow. sok_embed/binding/_core.pyi describes it.
#include "binding/binding.h"

namespace sok::binding {

std::vector<Hyper> ToHypers(const NamedNumbers& numbers) {
  std::vector<Hyper> hypers;
  for (const auto& [name, value] : numbers) hypers.push_back({name, value});
  return hypers;
}

NamedNumbers FromHypers(const std::vector<Hyper>& hypers) {
  NamedNumbers numbers;
  for (const Hyper& hyper : hypers) numbers.emplace_back(hyper.name, hyper.value);
  return numbers;
}

}  // namespace sok::binding

NB_MODULE(_core, module) {
  // Threads that the interpreter leaves behind when it ends still hold what they worked with.
  nanobind::set_leak_warnings(false);
  module.doc() = "The core of sok_embed: storages, their tables, and the rules that train them.";
  sok::binding::BindErrors(module);
  sok::binding::BindChecksums(module);
  sok::binding::BindOptimizer(module);
  sok::binding::BindInitializer(module);
  sok::binding::BindTable(module);
  sok::binding::BindStorage(module);
  sok::binding::BindMesh(module);
  sok::binding::BindRowsFile(module);
  sok::binding::BindDump(module);
  sok::binding::BindServedRows(module);
}
