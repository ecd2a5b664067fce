/* For the training tests: a context, a folder that is removed, and a tiny recipe for a synthetic task. */
#ifndef WN_TESTS_TRAIN_TINY_H
#define WN_TESTS_TRAIN_TINY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "winnow/train.h"

#define UNUSED __attribute__((unused))

/* The status must be WN_OK; otherwise the context's message is shown. */
#define must(ctx, expr)                                                                                                \
  do {                                                                                                                 \
    wn_status must_ = (expr);                                                                                          \
    if (must_ != WN_OK) fail_msg("%s: %s: %s", #expr, wn_status_name(must_), wn_context_error(ctx));                   \
  } while (0)

static UNUSED wn_context *tiny_context(const char *backend, int threads) {
  wn_context *ctx = NULL;
  wn_context_options options = {.size = sizeof options, .threads = threads, .backend = backend};
  if (wn_context_create(&options, &ctx) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  return ctx;
}

static UNUSED int tiny_remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk) {
  (void)info, (void)type, (void)walk;
  return remove(path);
}
static UNUSED void tiny_remove(const char *dir) {
  nftw(dir, tiny_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A new folder, in memory where possible, since these tests sync often. */
static UNUSED void tiny_folder(char out[256]) {
  const char *base = getenv("TMPDIR");
  if (!base) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  snprintf(out, 256, "%s/winnow-test-XXXXXX", base);
  if (!mkdtemp(out)) fail_msg("cannot make %s", out);
}

/* About 20K parameters, task Copy. */
static UNUSED void tiny_recipe(wn_recipe *r, bool selective) {
  wn_recipe_init(r);
  r->data.kind = WN_DATA_COPY;
  r->data.max_length = 6;
  r->data.values = 8;
  r->data.train[0] = r->data.val[0] = r->data.tokenizer[0] = 0;
  r->model.vocab_size = r->model.context = 0;
  r->model.layers = 2;
  r->model.width = 32;
  r->model.heads = 2;
  r->model.kv_heads = r->model.head_size = r->model.ffn_width = 0;
  r->model.qk_norm = true;
  r->model.attention.selective.enabled = selective;
  r->train.steps = 6;
  r->train.batch = 4;
  r->train.accumulate = 1;
  r->train.context = 0;
  r->train.optimizer = WN_OPT_ADAMW;
  r->train.lr = 3e-3;
  r->train.warmup = 2;
  r->train.schedule = WN_SCHED_CONSTANT;
  r->train.clip = 1;
  r->train.seed = 7;
  r->train.eval_every = 0;
  r->train.save_every = 0;
  r->train.log_every = 1;
}

/* The whole file, malloc'd, NUL-terminated. */
static UNUSED char *tiny_read(const char *dir, const char *name, size_t *bytes) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  fseek(f, 0, SEEK_END);
  long n = ftell(f);
  rewind(f);
  char *text = malloc((size_t)n + 1);
  if (fread(text, 1, (size_t)n, f) != (size_t)n) fail_msg("cannot read %s", path);
  text[n] = 0;
  fclose(f);
  if (bytes) *bytes = (size_t)n;
  return text;
}

static UNUSED bool tiny_same_file(const char *a, const char *b, const char *name) {
  size_t na = 0, nb = 0;
  char *x = tiny_read(a, name, &na), *y = tiny_read(b, name, &nb);
  bool same = x && y && na == nb && !memcmp(x, y, na);
  free(x);
  free(y);
  return same;
}

#endif
