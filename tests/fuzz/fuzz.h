/* Shared by the fuzz targets: a context, the input as a file that exists only in memory, and a check that must hold. */
#ifndef WN_TESTS_FUZZ_H
#define WN_TESTS_FUZZ_H

#include <ftw.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "winnow/context.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Custom mutators know the format: random bytes rarely get past a length or a checked count. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size); /* libFuzzer's own */

/* Unlike assert() this also works in builds with NDEBUG. */
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

/* A refusal must have a message of one line. */
static inline void fuzz_refused(const wn_context *ctx) {
  const char *error = wn_context_error(ctx);
  HOLDS(*error && !strchr(error, '\n'));
}

/* A path that opens as these bytes until the next call. */
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

/* This process's folder in memory, removed at the end with its contents. A target that crashes leaves it behind. */
static char fuzz_folder_path[64];
static int fuzz_remove(const char *path, const struct stat *st, int type, struct FTW *at) {
  (void)st;
  (void)type;
  (void)at;
  return remove(path);
}
__attribute__((unused)) static void fuzz_folder_remove(void) {
  nftw(fuzz_folder_path, fuzz_remove, 16, FTW_DEPTH | FTW_PHYS);
}
/* The path of a name in that folder; "": the folder itself. Up to eight paths are valid at a time. */
static inline const char *fuzz_path(const char *name) {
  static char paths[8][128];
  static int next;
  char *path = paths[next++ % 8];
  if (!*fuzz_folder_path) {
    snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%s/winnow-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    HOLDS(mkdtemp(fuzz_folder_path));
    atexit(fuzz_folder_remove);
  }
  HOLDS(snprintf(path, 128, "%s%s%s", fuzz_folder_path, *name ? "/" : "", name) < 128);
  return path;
}

static inline void fuzz_put(const char *name, const void *data, size_t size) {
  FILE *f = fopen(fuzz_path(name), "wb");
  HOLDS(f && (size == 0 || fwrite(data, 1, size, f) == size) && fclose(f) == 0);
}

/* The bytes of a file in that folder, malloc'd, with a NUL after them. */
static inline char *fuzz_get(const char *name, size_t *size) {
  struct stat st;
  FILE *f = fopen(fuzz_path(name), "rb");
  HOLDS(f && fstat(fileno(f), &st) == 0);
  char *text = malloc((size_t)st.st_size + 1);
  HOLDS(text && fread(text, 1, (size_t)st.st_size, f) == (size_t)st.st_size && fclose(f) == 0);
  text[st.st_size] = 0;
  *size = (size_t)st.st_size;
  return text;
}

/* Splits inputs of several parts. Each part but the last has its length, two bytes, before it. *part gets the next
 * part, which is cut to what is left. */
static inline size_t fuzz_part(const uint8_t **data, size_t *size, const uint8_t **part) {
  size_t n = 0;
  if (*size < 2) {
    *part = *data;
    n = *size, *data += n, *size = 0;
    return n;
  }
  n = (size_t)(*data)[0] | (size_t)(*data)[1] << 8;
  if (n > *size - 2) n = *size - 2;
  *part = *data + 2;
  *data += 2 + n, *size -= 2 + n;
  return n;
}

#endif
