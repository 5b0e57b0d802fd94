// Lets loops use wider vectors on newer processors.
#pragma once

#include <cstdint>  // says whether this is __GLIBC__

// Makes a function twice on x86-64, for processors with and without 512-bit vectors, which multiply
// 64 bits in one instruction; the loader picks one. The address and the thread sanitizer cannot
// work with that, so in their builds there is one version.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SOK_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "default")))
#else
#define SOK_VECTOR_CLONES
#endif
