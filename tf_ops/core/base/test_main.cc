// The entry point of sok_core_test; every *_test.cc of the core is linked to it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "core/base/thread_pool.h"

int main(int argc, char** argv) {
  const int status = doctest::Context(argc, argv).run();
  // What threads keep for their next call goes with them. A leak sanitizer does not find it in
  // threads that still live.
  sok::EndProcessPool();
  return status;
}
