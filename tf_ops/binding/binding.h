// Declarations that the sources of the Python module _core share.
//
// Every call that does work runs without the GIL. Arrays belong to Python: the caller must see to
// it that no other Python thread changes them during a call.
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

// Arrays are one-dimensional and contiguous, in the machine's memory. Arguments are bound with
// .noconvert(): nanobind would otherwise convert an array of another dtype to a copy, and results
// written to the copy would be lost.
template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using KeysIn = Array<const Key>;
using FloatsIn = Array<const float>;
using FloatsOut = Array<float>;
using FlagsOut = Array<uint8_t>;
using NumbersIn = Array<const int64_t>;
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

// Returns a path as the bytes that the system uses. Takes str, bytes or os.PathLike, as open()
// does, also bytes that are not UTF-8. Raises ValueError for a path that contains a NUL.
std::string ToPath(nb::handle path);
// Turns a path into a Python str, as os.fsdecode does.
nb::object FromPath(std::string_view path);

// In the core, the names of the rules of sok_embed.kv begin with this prefix.
constexpr char kRulePrefix[] = "kv_";
// Returns the name by which users of sok_embed.kv know a rule: a rule of sok_embed.kv without the
// prefix, a rule of Keras with "keras." in front. Unknown names are returned unchanged.
std::string ShownRule(const std::string& rule);

// Throws the Python exception of the error's kind; its text names rules as ShownRule does. The
// caller must hold the GIL, for this function and those below.
[[noreturn]] void Raise(const Status& status);
inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}
template <typename T>
T Value(Result<T> result) {
  Check(result.status());
  return std::move(result.value());
}
// Raises ValueError unless n, the number of floats in the array `name`, is `expected`; `reason` is
// added to the message and explains why.
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

// Raises RuntimeError on a thread that runs a progress callback: the call would wait for the work
// that waits for the callback.
void CheckNotReporting();

// Releases the GIL for as long as the object lives. A daemon thread that wants the GIL back while
// the interpreter exits waits forever, as Python itself does from 3.14 on. Older versions end such
// a thread by unwinding its stack, which ends the process at the first noexcept function.
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

// Holds the GIL for as long as the object lives. It may be made on any thread.
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

// Makes a Python callback, which may be None, usable for the core. An exception from the callback
// or from a signal handler of Python stops the work; Rethrow raises it after the work has ended.
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
void BindDump(nb::module_& module);
void BindServedRows(nb::module_& module);
void BindOptimizer(nb::module_& module);
void BindInitializer(nb::module_& module);

}  // namespace sok::binding
