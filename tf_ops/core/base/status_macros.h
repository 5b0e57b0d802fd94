// Macros that return an error to the caller. Sources include them, headers do not.
#pragma once

#include <utility>

#include "core/base/status.h"

// Returns the error of an expression that is a Status, if it is one.
#define SOK_RETURN_IF_ERROR(...) SOK_RETURN_IF_ERROR_1(__COUNTER__, __VA_ARGS__)
#define SOK_RETURN_IF_ERROR_1(id, ...) SOK_RETURN_IF_ERROR_2(id, __VA_ARGS__)
#define SOK_RETURN_IF_ERROR_2(id, ...)                                        \
  do {                                                                        \
    if (::sok::Status sok_status_##id = (__VA_ARGS__); !sok_status_##id.ok()) \
      return sok_status_##id;                                                 \
  } while (false)

// Sets a variable, which may be declared here, to the value of an expression that is a Result;
// returns the error if there is none: SOK_ASSIGN_OR_RETURN(auto table, Table::Make(config)).
#define SOK_ASSIGN_OR_RETURN(variable, ...) \
  SOK_ASSIGN_OR_RETURN_1(__COUNTER__, variable, __VA_ARGS__)
#define SOK_ASSIGN_OR_RETURN_1(id, ...) SOK_ASSIGN_OR_RETURN_2(id, __VA_ARGS__)
#define SOK_ASSIGN_OR_RETURN_2(id, variable, ...)             \
  auto sok_result_##id = (__VA_ARGS__);                       \
  if (!sok_result_##id.ok()) return sok_result_##id.status(); \
  variable = std::move(sok_result_##id.value())
