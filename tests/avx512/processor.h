/* What a source or a test that asks the processor is told: WINNOW_PROCESSOR says how much of AVX-512 there is. In front
 * of a source (emulate.h), or of a test that asks. */
#ifndef WN_TESTS_AVX512_PROCESSOR_H
#define WN_TESTS_AVX512_PROCESSOR_H

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <unistd.h>

/* "avx512": F, BW, DQ and VL; "vnni" and "bf16": each with those before; "amx": all, as where nothing is said. */
int wn_emulated_supports(const char *feature);
unsigned wn_emulated_leaf_7(void); /* the bits of its EDX that say which tiles there are */

#define __builtin_cpu_supports(name)                                                                                   \
  (strncmp(name, "avx512", 6) == 0 ? wn_emulated_supports(name) : __builtin_cpu_supports(name))
#define __get_cpuid_count(leaf, sub, a, b, c, d) (*(a) = *(b) = *(c) = 0, *(d) = wn_emulated_leaf_7(), 1)
/* A process may have tiles: the one question that goes past the C library. */
#define syscall(...) 0
/* Plain C that the compiler is to vectorise for a set that it is told: for the file's own set instead. */
#define target(sets)

#endif
