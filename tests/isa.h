/* The instruction set whose vectors have 8 lanes, as WINNOW_ISA names it: AVX2, or NEON in pairs. */
#ifndef WN_TESTS_ISA_H
#define WN_TESTS_ISA_H

#if defined(__aarch64__)
#define ISA_OF_EIGHT "neon"
#else
#define ISA_OF_EIGHT "avx2"
#endif

#endif
