/* Contexts that use a given instruction set. */
#ifndef WN_TESTS_ISA_H
#define WN_TESTS_ISA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "winnow/context.h"

/* The instruction set whose vectors have 8 lanes, as WINNOW_ISA names it: AVX2, or NEON in pairs. */
#if defined(__aarch64__)
#define ISA_OF_EIGHT "neon"
#else
#define ISA_OF_EIGHT "avx2"
#endif

/* Creates a context on the backend (NULL: cpu) with instruction set `isa` (NULL: the machine's best). Returns false if
 * this machine lacks it. */
static inline bool context_with_isa(const char *backend, const char *isa, int threads, wn_context **ctx) {
  const wn_context_options options = {.size = sizeof options, .backend = backend, .threads = threads};
  if (isa)
    setenv("WINNOW_ISA", isa, 1);
  else
    unsetenv("WINNOW_ISA");
  const wn_status status = wn_context_create(&options, ctx);
  unsetenv("WINNOW_ISA");
  if (status == WN_ERR_UNSUPPORTED && isa) {
    wn_context_destroy(*ctx);
    *ctx = NULL;
    return false;
  }
  if (status != WN_OK) fail_msg("%s", wn_context_error(*ctx));
  return true;
}

#endif
