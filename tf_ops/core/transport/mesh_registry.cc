#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/transport/mesh.h"

namespace sok {
namespace {

struct Registry {
  std::mutex mu;
  std::map<int64_t, std::shared_ptr<Mesh>> meshes;
  int64_t next = 1;
};

Registry& TheRegistry() {
  // It is never destroyed: threads of other libraries may exchange until the process ends.
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

int64_t AddMesh(std::shared_ptr<Mesh> mesh) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mu);
  registry.meshes[registry.next] = std::move(mesh);
  return registry.next++;
}

std::shared_ptr<Mesh> FindMesh(int64_t number) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mu);
  const auto found = registry.meshes.find(number);
  return found == registry.meshes.end() ? nullptr : found->second;
}

void RemoveMesh(int64_t number) {
  Registry& registry = TheRegistry();
  std::shared_ptr<Mesh> removed;  // destroyed after the lock is released
  std::lock_guard<std::mutex> guard(registry.mu);
  const auto found = registry.meshes.find(number);
  if (found == registry.meshes.end()) return;
  removed = std::move(found->second);
  registry.meshes.erase(found);
}

}  // namespace sok
