// The registry of policies, admissions or evictions: their names, and the functions that make them.
// Internal to this room.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace sok {

template <typename Policy, typename Config>
struct PolicyKind {
  const char* name;
  Result<std::unique_ptr<Policy>> (*make)(const Config& config);
};

// Makes the policy that config.kind names. `what` is a word for the message, such as "an
// admission".
// Errors: kInvalidArgument for a name that is not in `kinds`, and those of the policy.
template <typename Policy, typename Config, size_t n>
Result<std::unique_ptr<Policy>> MakePolicy(const char* what,
                                           const PolicyKind<Policy, Config> (&kinds)[n],
                                           const Config& config) {
  std::string names;
  for (const PolicyKind<Policy, Config>& kind : kinds) {
    if (config.kind == kind.name) return kind.make(config);
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  return InvalidArgument("Expected " + std::string(what) + " kind of " + names + ". Received: \"" +
                         config.kind + "\".");
}

}  // namespace sok
