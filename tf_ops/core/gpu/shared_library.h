// Opens a library of the system and finds its functions.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace sok::gpu {

// A library that stays open until the process ends.
class SharedLibrary {
 public:
  // Opens the first of `names` that the loader finds. Errors: kUnavailable with the loader's
  // message for each name, followed by `advice`.
  static Result<SharedLibrary> Open(const std::vector<std::string>& names,
                                    const std::string& advice);

  // Sets *function to the address of a symbol. Errors: kUnavailable if the library does not have
  // it.
  template <typename Function>
  Status Find(const char* symbol, Function** function) const {
    void* address = nullptr;
    Status status = FindAddress(symbol, &address);
    *function = reinterpret_cast<Function*>(address);
    return status;
  }

  const std::string& name() const { return name_; }

 private:
  SharedLibrary(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  Status FindAddress(const char* symbol, void** address) const;

  std::string name_;
  void* handle_;
};

}  // namespace sok::gpu
