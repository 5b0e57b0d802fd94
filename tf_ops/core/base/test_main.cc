// The entry point of sok_core_test; every *_test.cc of the core is linked to it.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
