#include "core/policies/eviction.h"

#include "core/policies/lfu_eviction.h"
#include "core/policies/lru_eviction.h"
#include "core/policies/max_age_eviction.h"
#include "core/policies/min_norm_eviction.h"
#include "core/policies/policy_registry.h"

namespace sok {
namespace {

constexpr PolicyKind<Eviction, EvictionConfig> kRegistry[] = {
    {"lru", LruEviction::Make},
    {"lfu", LfuEviction::Make},
    {"max_age", MaxAgeEviction::Make},
    {"min_norm", MinNormEviction::Make},
};

}  // namespace

Result<std::unique_ptr<Eviction>> MakeEviction(const EvictionConfig& config) {
  return MakePolicy("an eviction", kRegistry, config);
}

bool SameEviction(const EvictionConfig& a, const EvictionConfig& b) {
  return a.kind == b.kind && (a.kind != "max_age" || a.max_age == b.max_age) &&
         (a.kind != "min_norm" || (a.min_l2 == b.min_l2 && a.every == b.every));
}

}  // namespace sok
