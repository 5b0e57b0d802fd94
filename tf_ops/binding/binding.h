// Declarations that the sources of the Python module _core share.
//
// Every call that does work runs without the GIL. Arrays come from Python and stay its own: what
// another Python thread does to them meanwhile is for the caller to keep apart.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/storage/storage.h"

namespace sok::binding {

namespace nb = nanobind;

// Arrays are one-dimensional and contiguous, in the machine's memory. As arguments they are taken
// with .noconvert(): a copy of another dtype would be written to in vain.
template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using KeysIn = Array<const Key>;
using FloatsIn = Array<const float>;
using FloatsOut = Array<float>;
using FlagsOut = Array<uint8_t>;
using NumbersOut = Array<int64_t>;

using NamedNumbers = std::vector<std::pair<std::string, double>>;
std::vector<Hyper> ToHypers(const NamedNumbers& numbers);
NamedNumbers FromHypers(const std::vector<Hyper>& hypers);

// Makes a new NumPy array of these numbers.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> ToNumpy(std::vector<T> numbers) {
  auto owned = std::make_unique<std::vector<T>>(std::move(numbers));
  T* const first = owned->data();
  const size_t n = owned->size();
  const nb::capsule owner(owned.release(),
                          [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(first, {n}, owner);
}

// Returns a path as the system has it: str, bytes or os.PathLike, as open() takes them, also bytes
// that are not UTF-8. Raises ValueError for one with a NUL in it.
std::string ToPath(nb::handle path);
// Turns a path into a Python str, as os.fsdecode does.
nb::object FromPath(std::string_view path);

// The names in the core of the rules of sok_embed.kv begin so.
constexpr char kRulePrefix[] = "kv_";
// The name that a user of sok_embed.kv knows a rule by: one of its own without the prefix, one of
// Keras' with "keras." in front. Unknown ones stay as they are.
std::string ShownRule(const std::string& rule);

// Throws the Python exception that stands for the error, in whose text rules are called so. The GIL
// must be held, here and below.
[[noreturn]] void Raise(const Status& status);
inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}
template <typename T>
T Value(Result<T> result) {
  Check(result.status());
  return std::move(result.value());
}
// Raises ValueError unless `name`, an array of n floats, has as many as n should be; `reason` says
// why.
void CheckSize(const char* name, size_t n, size_t expected, const std::string& reason);

// Runs fn, and never returns if Python ends the thread in there.
template <typename Fn>
auto OrPauseThread(const Fn& fn) {
  try {
    return fn();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Raises RuntimeError on a thread that is inside of a progress callback: what it would wait for
// waits for it.
void CheckNotReporting();

// Gives the GIL away for as long as it lives. A daemon thread that wants it back while the
// interpreter ends never gets it, as all do from Python 3.14 on: earlier ones end the thread by
// unwinding its stack, and with it the process, at the first function that must not throw.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    OrPauseThread([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// Takes the GIL for as long as it lives, on a thread that may be any.
class GilAcquired {
 public:
  GilAcquired() {
    OrPauseThread([this] { state_ = PyGILState_Ensure(); });
  }
  ~GilAcquired() { PyGILState_Release(state_); }
  GilAcquired(const GilAcquired&) = delete;

 private:
  PyGILState_STATE state_;
};

// Runs fn without the GIL.
template <typename Fn>
auto Unlocked(const Fn& fn) {
  CheckNotReporting();
  const GilReleased released;
  return fn();
}

// Holds the callback, which may be None, in the form that the core takes. What it raises, and what
// comes in through Python's signal handlers, stops the work; Rethrow raises it once the work has
// ended.
class Progress {
 public:
  explicit Progress(nb::object callback) : callback_(std::move(callback)) {}

  DumpProgress report();
  void Rethrow();

 private:
  bool Call(uint64_t done, uint64_t total);

  const nb::object callback_;
  std::unique_ptr<nb::python_error> error_;
};

// The last holder of a storage closes it, which may write a lot.
template <typename T>
class Held {
 public:
  explicit Held(std::shared_ptr<T> held) : held_(std::move(held)) {}
  ~Held() {
    const GilReleased released;
    held_.reset();
  }
  Held(const Held&) = delete;

  T* operator->() const { return held_.get(); }
  T& operator*() const { return *held_; }
  const std::shared_ptr<T>& shared() const { return held_; }

 private:
  std::shared_ptr<T> held_;
};

struct PyStorage {
  Held<Storage> storage;
};

struct PyTable {
  PyTable(std::shared_ptr<Storage> of, std::shared_ptr<Table> opened)
      : storage(std::move(of)), table(std::move(opened)) {}

  Held<Storage> storage;
  Held<Table> table;
};

struct PyOptimizer {
  std::string rule;
  std::unique_ptr<RowOptimizer> optimizer;
};

void BindErrors(nb::module_& module);
void BindChecksums(nb::module_& module);
void BindStorage(nb::module_& module);
void BindTable(nb::module_& module);
void BindMesh(nb::module_& module);
void BindRowsFile(nb::module_& module);
void BindServedRows(nb::module_& module);
void BindOptimizer(nb::module_& module);
void BindInitializer(nb::module_& module);

}  // namespace sok::binding
