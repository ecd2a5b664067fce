/* What the fuzz targets share: a context, the input as a file that never touches a disk, and a check that must hold. */
#ifndef WN_TESTS_FUZZ_H
#define WN_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "winnow/context.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Mutators that know the format: random bytes alone seldom get past a length or a checked count. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size); /* libFuzzer's own */

/* Not assert(): a build without debugging checks must find the same. */
#define HOLDS(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                                    \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

static inline wn_context *fuzz_context(void) {
  static wn_context *ctx;
  wn_context_options options = {.size = sizeof options, .threads = 1, .backend = "ref"};
  if (!ctx) HOLDS(wn_context_create(&options, &ctx) == WN_OK);
  return ctx;
}

/* A refusal must come with a sentence of one line. */
static inline void fuzz_refused(const wn_context *ctx) {
  const char *error = wn_context_error(ctx);
  HOLDS(*error && !strchr(error, '\n'));
}

/* A path under which the bytes can be opened until the next call. */
static inline const char *fuzz_file(const uint8_t *data, size_t size) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) {
    fd = memfd_create("fuzz", MFD_CLOEXEC);
    HOLDS(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  }
  HOLDS(ftruncate(fd, 0) == 0);
  HOLDS(size == 0 || pwrite(fd, data, size, 0) == (ssize_t)size);
  return path;
}

#endif
