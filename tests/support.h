/* Shared by tests: a context, a folder that is removed afterwards, checks of a status with its message. */
#ifndef WN_TESTS_SUPPORT_H
#define WN_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "policies.h"
#include "winnow/context.h"

/* 1: cases that need terms missing in the cpu backend are left out and counted. 0: they fail. */
#define CPU_MAY_LACK_TERMS 0

#define SUPPORT_UNUSED __attribute__((unused))

/* expr must give WN_OK; otherwise the context's message is shown. */
#define assert_ok(ctx, expr)                                                                                           \
  do {                                                                                                                 \
    wn_status ok_ = (expr);                                                                                            \
    if (ok_ != WN_OK) fail_msg("%s: %s: %s", #expr, wn_status_name(ok_), wn_context_error(ctx));                       \
  } while (0)

/* expr must give this status, and the context's message must contain `part`. */
#define assert_refused(ctx, expr, expected, part)                                                                      \
  do {                                                                                                                 \
    wn_status refused_ = (expr);                                                                                       \
    const char *part_ = (part);                                                                                        \
    if (refused_ != (expected) || !strstr(wn_context_error(ctx), part_))                                               \
      fail_msg("%s: expected %s with \"%s\", found %s: %s", #expr, wn_status_name(expected), part_,                    \
               wn_status_name(refused_), wn_context_error(ctx));                                                       \
  } while (0)

static SUPPORT_UNUSED wn_context *make_context(void) {
  wn_context *ctx = NULL;
  wn_context_options options = {.size = sizeof options, .threads = 1, .backend = "ref"};
  wn_status status = wn_context_create(&options, &ctx);
  if (status != WN_OK) fail_msg("context: %s", wn_context_error(ctx));
  return ctx;
}

static SUPPORT_UNUSED void make_folder(char out[512]) {
  const char *base = getenv("TMPDIR");
  snprintf(out, 512, "%s/winnow-test-XXXXXX", base && *base ? base : "/tmp");
  if (!mkdtemp(out)) fail_msg("cannot make %s", out);
}

/* The path of a file in a folder. Up to eight results are valid at a time. */
static SUPPORT_UNUSED const char *path_in(const char *folder, const char *name) {
  static char paths[8][1024];
  static int next;
  char *path = paths[next++ % 8];
  if (snprintf(path, sizeof *paths, "%s/%s", folder, name) >= (int)sizeof *paths) fail_msg("too long: %s", name);
  return path;
}

/* The number of files in a folder with a writer's temporary name; 0 if there is no folder. */
static SUPPORT_UNUSED int count_temporary(const char *path) {
  int count = 0;
  DIR *entries = opendir(path);
  if (!entries) return 0;
  for (struct dirent *e; (e = readdir(entries));) count += strstr(e->d_name, ".winnow-") != NULL;
  closedir(entries);
  return count;
}

static int support_remove(const char *path, const struct stat *st, int type, struct FTW *at) {
  (void)st;
  (void)type;
  (void)at;
  return remove(path);
}
static SUPPORT_UNUSED void remove_folder(const char *path) {
  nftw(path, support_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* Writes a file without the library. */
static SUPPORT_UNUSED void put_file(const char *path, const void *data, size_t bytes) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  if (bytes) assert_int_equal(fwrite(data, 1, bytes, f), bytes);
  assert_int_equal(fclose(f), 0);
}

static SUPPORT_UNUSED void assert_file_is(const char *path, const char *text) {
  char found[4096];
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("%s is not there", path);
  size_t n = fread(found, 1, sizeof found - 1, f);
  fclose(f);
  found[n] = 0;
  assert_string_equal(found, text);
}

#endif
