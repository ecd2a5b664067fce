/* Answers sources and tests that ask which instructions the processor has: WINNOW_PROCESSOR says how much of AVX-512
 * there is. Included before such a source (emulate.h) or test. */
#ifndef WN_TESTS_AVX512_PROCESSOR_H
#define WN_TESTS_AVX512_PROCESSOR_H

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <unistd.h>

/* "avx512": F, BW, DQ and VL; "vnni", "bf16": each with those before it; "amx", also the default: everything. */
int wn_emulated_supports(const char *feature);
unsigned wn_emulated_leaf_7(void); /* the bits of CPUID leaf 7's EDX that announce tiles */

#define __builtin_cpu_supports(name)                                                                                   \
  (strncmp(name, "avx512", 6) == 0 ? wn_emulated_supports(name) : __builtin_cpu_supports(name))
#define __get_cpuid_count(leaf, sub, a, b, c, d) (*(a) = *(b) = *(c) = 0, *(d) = wn_emulated_leaf_7(), 1)
/* Permission to use tiles is the one question that goes straight to the kernel: granted. */
#define syscall(...) 0
/* Functions with a target attribute are compiled for the file's own instruction set instead. */
#define target(sets)

#endif
