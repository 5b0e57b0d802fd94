// The kernels on the host, for SOK_DIM or for every dim. The library exports two functions;
// everything else in it is hidden, since it is compiled for several dims.
#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>

#include "core/gpu/kernels/exchanged.h"
#include "core/gpu/kernels/index.h"
#include "core/gpu/kernels/mask_gather.h"
#include "core/gpu/kernels/pooling.h"
#include "core/gpu/kernels/rule.h"
#include "core/gpu/kernels/sort.h"

namespace sok::gpu {

thread_local Block current_block;

namespace {

std::map<std::string, BlockFunction>& Functions() {
  static std::map<std::string, BlockFunction> functions;
  return functions;
}

template <typename Rule>
void UpdateBlock(const void* argument) {
  Update<Rule>::Run(*static_cast<const RuleUpdate<Rule>*>(argument));
}

// Returns the name that programs for a GPU receive as SOK_RULE.
std::string TypeName(const char* mangled) {
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr), std::free);
  return name.get();
}

template <typename... Rules>
struct RegisteredRules {
  RegisteredRules() {
    (Registered("UpdateRows " + TypeName(typeid(Rules).name()), UpdateBlock<Rules>), ...);
  }
};

const RegisteredRules<Adadelta, Adagrad, Adam, Adamax, AdamW, Amsgrad, Deferred<0>, Deferred<1>,
                      Deferred<2>, Deferred<3>, Deferred<4>, Deferred<5>, Deferred<6>, Deferred<7>,
                      Deferred<8>, Ftrl<true>, Ftrl<false>, GroupFtrl<true>, GroupFtrl<false>,
                      KvAdagrad, KvAdam, KvAdamW, KvAmsgrad, KvFtrl, KvLion, KvSgd, Lion, Momentum,
                      Nadam, Rmsprop, RmspropCentered, RmspropCenteredMomentum, RmspropMomentum,
                      RowwiseAdagrad, Sgd, V1Momentum>
    registered_rules;

}  // namespace

Registered::Registered(const std::string& name, BlockFunction function) {
  Functions()[name] = function;
}

}  // namespace sok::gpu

// Returns the function that runs a block, or null.
extern "C" __attribute__((visibility("default"))) void* SokFindKernel(const char* name) {
  const auto found = sok::gpu::Functions().find(name);
  return found == sok::gpu::Functions().end() ? nullptr : reinterpret_cast<void*>(found->second);
}

extern "C" __attribute__((visibility("default"))) void SokRunBlock(void* function,
                                                                   const void* argument,
                                                                   unsigned index, unsigned count) {
  sok::gpu::current_block = {index, count};
  reinterpret_cast<sok::gpu::BlockFunction>(function)(argument);
}
