// Helpers for tests: results of calls that must succeed.
#pragma once

#include <doctest/doctest.h>

#include <utility>

#include "core/base/status.h"

namespace sok {

// These may only be called on the test's main thread.
template <typename T>
T Value(Result<T> result) {
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  return std::move(result.value());
}

}  // namespace sok
