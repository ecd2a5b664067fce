/* Shared by the tests of the search: a small model, its two sets of tokens, a folder, and a child process that kills
 * itself at a chosen sync or rename. */
#ifndef WN_TESTS_PRUNE_BENCH_H
#define WN_TESTS_PRUNE_BENCH_H

#include "train/tiny.h"
#include "policies.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/context.h"
#include "base/rng.h"
#include "winnow/prune.h"

enum { CONTEXT = 80, VOCAB = 40, STEP = 16, ROWS = 3 };

/* Where a child can kill itself: every sync and rename of a save. */
static long kill_at, places;
static int placed(long rc) {
  if (++places == kill_at) kill(getpid(), SIGKILL);
  return (int)rc;
}
int rename(const char *from, const char *to) {
  return placed(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
  return placed(syscall(SYS_renameat2, from_dir, from, to_dir, to, 0));
}
int fsync(int fd) {
  return placed(syscall(SYS_fsync, fd));
}

struct bench {
  wn_context *ctx;
  wn_model *model;
  char dir[256], search[300], report[300];
};

static UNUSED void write_tokens(wn_context *ctx, const char *path, uint64_t stream, int64_t rows) {
  int32_t tokens[CONTEXT * 8 + 1];
  for (int64_t i = 0; i < rows * CONTEXT + 1; i++)
    tokens[i] = (int32_t)wn_random_below(stream, WN_STREAM_TEST, (uint64_t)i, 0, VOCAB);
  must(ctx, wn_token_file_write(ctx, path, "llmc", VOCAB, tokens, (uint64_t)(rows * CONTEXT + 1)));
}

/* sets: changes to the recipe's keys. */
static UNUSED void bench_init(struct bench *b, const char *const *sets, int count) {
  wn_recipe r;
  const char *all[16] = {"model.context=80", "model.vocab_size=40", "model.layers=2",     "model.width=32",
                         "model.heads=2",    "model.init_std=0.3",  "model.qk_norm=true", "data.kind=tokens"};
  int n = 8;
  for (int i = 0; i < count; i++) all[n++] = sets[i];
  b->ctx = tiny_context("cpu", 1);
  must(b->ctx, wn_recipe_load(b->ctx, NULL, all, n, &r));
  must(b->ctx, wn_model_create(b->ctx, &r.model, 11, &b->model));
  tiny_folder(b->dir);
  snprintf(b->search, sizeof b->search, "%s/search.bin", b->dir);
  snprintf(b->report, sizeof b->report, "%s/report.bin", b->dir);
  write_tokens(b->ctx, b->search, 1, ROWS);
  write_tokens(b->ctx, b->report, 2, 2);
}

static UNUSED void bench_clear(struct bench *b) {
  tiny_remove(b->dir);
  wn_model_destroy(b->model);
  wn_context_destroy(b->ctx);
}

static UNUSED wn_prune_options options_of(const struct bench *b, wn_policy policy) {
  wn_prune_options o;
  wn_prune_options_init(&o, sizeof o);
  o.search.path = b->search;
  o.report.path = b->report;
  o.budgets.policy = policy;
  o.step = STEP;
  o.batch = 2; /* the last batch is smaller */
  o.target = 1e30;
  o.memory = UINT64_C(1) << 30;
  return o;
}

static UNUSED wn_status search(const struct bench *b, const wn_prune_options *o, const char *name, bool resume,
                               wn_prune_curve *out) {
  char dir[300];
  snprintf(dir, sizeof dir, "%s/%s", b->dir, name);
  return wn_prune_search(b->ctx, b->model, o, dir, resume, NULL, NULL, out);
}

/* Resumes as a user does after a kill. There may be nothing to resume yet. */
static UNUSED wn_status search_on(const struct bench *b, const wn_prune_options *o, const char *name,
                                  wn_prune_curve *out) {
  char path[320];
  snprintf(path, sizeof path, "%s/%s/search.json", b->dir, name);
  return search(b, o, name, access(path, F_OK) == 0, out);
}

static UNUSED void same_curves(const char *what, const wn_prune_curve *a, const wn_prune_curve *b) {
  if (a->count != b->count) fail_msg("%s: %d and %d points", what, (int)a->count, (int)b->count);
  for (int64_t i = 0; i < a->count; i++) {
    const wn_prune_point *p = &a->points[i], *q = &b->points[i];
    if (p->layer != q->layer || p->search_loss != q->search_loss || p->report_loss != q->report_loss ||
        memcmp(p->tokens, q->tokens, (size_t)a->layers * sizeof *p->tokens))
      fail_msg("%s: point %d: layers %d and %d, search %.17g and %.17g, report %.17g and %.17g", what, (int)i,
               (int)p->layer, (int)q->layer, p->search_loss, q->search_loss, p->report_loss, q->report_loss);
    if (memcmp(&p->search_rows, &q->search_rows, sizeof p->search_rows) ||
        memcmp(&p->report_rows, &q->report_rows, sizeof p->report_rows) ||
        memcmp(&p->report_change, &q->report_change, sizeof p->report_change))
      fail_msg("%s: point %d: errors %.17g and %.17g, %.17g and %.17g, %.17g and %.17g", what, (int)i,
               p->search_rows.error, q->search_rows.error, p->report_rows.error, q->report_rows.error,
               p->report_change.error, q->report_change.error);
  }
  if (memcmp(&a->report_saving, &b->report_saving, sizeof a->report_saving))
    fail_msg("%s: savings on the report set %.17g and %.17g", what, a->report_saving.value, b->report_saving.value);
}

static const char *const selective[] UNUSED = {"model.attention.selective.enabled=true"};

#endif
