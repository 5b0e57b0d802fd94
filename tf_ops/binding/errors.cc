// The core's errors as Python's exceptions.
#include <algorithm>
#include <new>
#include <string_view>

#include "binding/binding.h"
#include "core/rules/row_optimizer.h"

namespace sok::binding {
namespace {

// The exceptions are made with the module, which lives as long as the interpreter.
PyObject* storage_error = nullptr;
PyObject* storage_locked_error = nullptr;
PyObject* corruption_error = nullptr;

PyObject* MakeException(nb::module_& module, const char* name, const char* doc, PyObject* base) {
  const std::string full = nb::cast<std::string>(module.attr("__name__")) + "." + name;
  PyObject* made = PyErr_NewExceptionWithDoc(full.c_str(), doc, base, nullptr);
  if (made == nullptr) throw nb::python_error();
  module.attr(name) = nb::handle(made);
  return made;
}

PyObject* ExceptionFor(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
      return PyExc_ValueError;
    case Code::kFailedPrecondition:
      return PyExc_RuntimeError;
    case Code::kNotFound:
      return PyExc_FileNotFoundError;
    case Code::kPermissionDenied:
      return PyExc_PermissionError;
    case Code::kUnavailable:
      return storage_locked_error;
    case Code::kDataLoss:
      return corruption_error;
    case Code::kOk:
    case Code::kResourceExhausted:
    case Code::kInternal:
      break;
  }
  return storage_error;
}

}  // namespace

std::string ToPath(nb::handle path) {
  PyObject* converted = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &converted) == 0) throw nb::python_error();
  const nb::object bytes = nb::steal(converted);
  return std::string(PyBytes_AsString(converted), static_cast<size_t>(PyBytes_Size(converted)));
}

nb::object FromPath(std::string_view path) {
  return nb::steal(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

std::string ShownRule(const std::string& rule) {
  constexpr std::string_view prefix = kRulePrefix;
  if (std::string_view(rule).substr(0, prefix.size()) == prefix) return rule.substr(prefix.size());
  const std::vector<std::string> known = RowOptimizerNames();
  return std::find(known.begin(), known.end(), rule) == known.end() ? rule : "keras." + rule;
}

void Raise(const Status& status) {
  std::string worded;
  std::string_view message = status.text();
  // If there is no memory left, the message keeps the core's wording.
  try {
    worded = status.Worded(ShownRule);
    message = worded;
  } catch (const std::bad_alloc&) {
  }
  // Paths in messages may be bytes that are not UTF-8.
  const nb::object text = FromPath(message);
  if (text.is_valid()) PyErr_SetObject(ExceptionFor(status.code()), text.ptr());
  throw nb::python_error();
}

void CheckSize(const char* name, size_t n, size_t expected, const std::string& reason) {
  if (n == expected) return;
  Raise(InvalidArgument("expected " + std::string(name) + " of " + std::to_string(expected) +
                        " elements (" + reason + "), got " + std::to_string(n)));
}

void BindErrors(nb::module_& module) {
  module.attr("RULE_PREFIX") = kRulePrefix;
  module.def("shown_rule", ShownRule, nb::arg("rule"));
  storage_error = MakeException(module, "StorageError", "A storage cannot do what it was asked to.",
                                PyExc_OSError);
  storage_locked_error = MakeException(module, "StorageLockedError",
                                       "Somebody else has the storage open.", storage_error);
  corruption_error =
      MakeException(module, "CorruptionError", "What a file holds is damaged.", storage_error);
}

}  // namespace sok::binding
