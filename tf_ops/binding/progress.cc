// Reports the progress of a long call of the core to Python, and lets Python stop it.
#include "binding/binding.h"

namespace sok::binding {
namespace {

// True while a callback runs on this thread.
thread_local bool reporting = false;

struct Reporting {
  Reporting() { reporting = true; }
  ~Reporting() { reporting = false; }
};

}  // namespace

void CheckNotReporting() {
  if (!reporting) return;
  Raise(Status(Code::kFailedPrecondition,
               "a progress callback must not use storages or tables: the call that it reports on "
               "would wait for itself; use them once that call has returned"));
}

DumpProgress Progress::report() {
  return [this](uint64_t done, uint64_t total) {
    const GilAcquired acquired;
    if (error_ != nullptr) return false;
    try {
      return Call(done, total);
    } catch (nb::python_error& error) {
      error_ = std::make_unique<nb::python_error>(std::move(error));
      return false;
    }
  };
}

bool Progress::Call(uint64_t done, uint64_t total) {
  const Reporting guard;
  if (OrPauseThread([] { return PyErr_CheckSignals(); }) != 0) throw nb::python_error();
  if (callback_.is_none()) return true;
  const nb::object answer = OrPauseThread([&] { return callback_(done, total); });
  if (!PyBool_Check(answer.ptr())) {
    PyErr_Format(PyExc_TypeError,
                 "expected the progress callback to return True to go on or False to stop, got %R",
                 answer.ptr());
    throw nb::python_error();
  }
  return answer.is(nb::handle(Py_True));
}

void Progress::Rethrow() {
  if (error_ == nullptr) return;
  nb::python_error error = std::move(*error_);
  error_.reset();
  throw error;
}

}  // namespace sok::binding
