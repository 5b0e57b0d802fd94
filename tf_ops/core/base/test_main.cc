// The entry point of sok_core_test; every *_test.cc of the core is linked to it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "core/base/thread_pool.h"

int main(int argc, char** argv) {
  const int status = doctest::Context(argc, argv).run();
  // Frees the buffers that threads keep for their next call. A leak sanitizer does not find them in
  // threads that still live.
  sok::EndProcessPool();
  return status;
}
