/* What dead-key skipping saves: the attention of a trained selective model, forward and backward, with every key and
 * without dead keys (ops/attention.h: sel.dead_share = 2^-24), alternating.
 *
 *   bench_skipping MODEL TOKENS CONTEXT [BATCH [PAIRS [THREADS]]]
 *
 * The model reads BATCH sequences of CONTEXT tokens. Then every layer's attention runs again alone, on the same
 * queries, keys and values, with a random gradient. "cache" is a forward pass that also returns F, as in a session's
 * prefill. JSON, for each layer and for all: processor time in milliseconds (medians over the pairs) and the median of
 * the ratios; the largest difference of outputs and of gradients, relative to their largest element. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/attention.h"
#include "base/rng.h"
#include "model/workspace.h"
#include "winnow/data.h"

enum { FORWARD, CACHE, BACKWARD, PASSES, PAIRS_MAX = 101, LAYERS_MAX = 256 };
static const char *const names[PASSES] = {"forward", "cache", "backward"};

static wn_context *ctx;
static void need(wn_status status) {
  if (status == WN_OK) return;
  fprintf(stderr, "bench_skipping: %s\n", wn_context_error(ctx));
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

struct result {
  float *y, *lse, *M, *f_out, *dq, *dk, *dv;
};
struct state {
  struct wn_attention op;
  int pairs;
  float *dy;
  struct result r[2];
  double ms[LAYERS_MAX + 1][PASSES][2][PAIRS_MAX], off[LAYERS_MAX][2];
};

static float *make(int64_t n) {
  float *x = aligned_alloc(64, ((size_t)n * sizeof *x + 63) / 64 * 64);
  if (!x) exit(1);
  memset(x, 0, (size_t)n * sizeof *x);
  return x;
}

static void on_attention(void *user, const struct wn_run *run, int64_t l, struct wn_attention *a) {
  struct state *s = user;
  (void)run, (void)l;
  s->op = *a;
}

/* One pass of the operation. q, k, v and their gradients have the strides of the model's arrays. */
static double pass(const struct wn_run *run, const struct state *s, int which, bool leave_out, const struct result *r) {
  struct wn_attention a = s->op;
  struct wn_exec exec = run->exec;
  a.sel.dead_share = leave_out ? 0x1p-24 : 0;
  a.y = r->y, a.lse = r->lse, a.sel.M = r->M, a.dy = s->dy;
  a.dq = r->dq, a.dk = r->dk, a.dv = r->dv, a.sel.dstrength = NULL;
  a.sel.f_out = which == CACHE ? r->f_out : NULL;
  const bool backward = which == BACKWARD;
  static float *scratch; /* pages already mapped, as in a workspace */
  static size_t bytes;
  exec.scratch_bytes = wn_op_attention_scratch(&exec, &a, backward);
  if (exec.scratch_bytes > bytes) {
    free(scratch);
    bytes = exec.scratch_bytes;
    scratch = make((int64_t)(bytes / sizeof(float)) + 16);
  }
  exec.scratch = scratch;
  const double begin = now();
  need(backward ? wn_op_attention_backward(&exec, &a) : wn_op_attention_forward(&exec, &a));
  return now() - begin;
}

static double difference(const float *x, const float *y, int64_t n) {
  double most = 0, size = 0;
  for (int64_t i = 0; i < n; i++)
    most = fmax(most, fabs((double)x[i] - (double)y[i])), size = fmax(size, fabs((double)x[i]));
  return size > 0 ? most / size : 0;
}

static void on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *acts) {
  struct state *s = user;
  const struct wn_attention *a = &s->op;
  (void)acts;
  for (int i = 0; i < s->pairs; i++)
    for (int which = 0; which < PASSES; which++)
      for (int k = 0; k < 2; k++) {
        const int side = k ^ (i & 1);
        const double ms = pass(run, s, which, side, &s->r[side]);
        s->ms[l][which][side][i] = ms;
        s->ms[LAYERS_MAX][which][side][i] += ms;
      }
  s->off[l][0] = difference(s->r[0].y, s->r[1].y, a->B * a->s_y.b);
  s->off[l][1] = fmax(
      difference(s->r[0].dq, s->r[1].dq, a->B * a->s_q.b),
      fmax(difference(s->r[0].dk, s->r[1].dk, a->B * a->s_k.b), difference(s->r[0].dv, s->r[1].dv, a->B * a->s_v.b)));
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, by_size);
  return x[n / 2];
}

static void print(const char *name, struct state *s, int64_t l, const double off[2]) {
  double ratio[PAIRS_MAX];
  printf("{\"layer\": %s", name);
  for (int which = 0; which < PASSES; which++) {
    for (int i = 0; i < s->pairs; i++) ratio[i] = s->ms[l][which][1][i] / s->ms[l][which][0][i];
    printf(", \"%s\": {\"all_keys\": %.3f, \"left_out\": %.3f, \"ratio\": %.3f}", names[which],
           median(s->ms[l][which][0], s->pairs), median(s->ms[l][which][1], s->pairs), median(ratio, s->pairs));
  }
  printf(", \"outputs_off\": %.2g, \"gradients_off\": %.2g}\n", off[0], off[1]);
}

int main(int argc, char **argv) {
  if (argc < 4) return fprintf(stderr, "usage: bench_skipping MODEL TOKENS CONTEXT [BATCH [PAIRS [THREADS]]]\n"), 2;
  const int64_t T = atoll(argv[3]), B = argc > 4 ? atoll(argv[4]) : 1;
  const wn_context_options options = {.size = sizeof options, .threads = argc > 6 ? atoi(argv[6]) : 1};
  struct state *s = calloc(1, sizeof *s);
  wn_model *model;
  wn_token_file *file;
  need(wn_context_create(&options, &ctx));
  need(wn_model_load(ctx, argv[1], NULL, &model));
  need(wn_token_file_open(ctx, argv[2], &file));
  const wn_model_config *c = &model->config;
  if (!s || !c->attention.selective.enabled || c->layers > LAYERS_MAX || B < 1)
    return fprintf(stderr, "bench_skipping: wants a model with selective attention\n"), 1;
  s->pairs = argc > 5 ? atoi(argv[5]) : 5;
  if (s->pairs < 1 || s->pairs > PAIRS_MAX) return 2;
  const int64_t row = (c->heads + 2 * c->kv_heads) * c->head_size, M = B * T;
  s->dy = make(M * row);
  for (int64_t i = 0; i < M * row; i++) s->dy[i] = (float)wn_random_normal(1, WN_STREAM_TEST, 0, (uint64_t)i);
  for (int k = 0; k < 2; k++)
    s->r[k] = (struct result){make(M * row), make(M * c->heads), make(M * c->kv_heads), make(M * c->kv_heads),
                              make(M * row), make(M * row),      make(M * row)};
  const struct wn_layer_observer observer = {.attention = on_attention, .layer = on_layer, .user = s};
  const struct wn_workspace_options workspace = {.activation_dtype = WN_F32};
  wn_workspace *ws;
  int32_t *tokens = (int32_t *)(void *)make(M);
  struct wn_run run;
  need(wn_workspace_create(ctx, model, B, T, &workspace, &ws));
  need(wn_token_file_read(ctx, file, 0, (uint64_t)M, tokens));
  need(wn_run_batch(&run, model, ws, &(struct wn_batch){.B = B, .T = T, .tokens = tokens}, NULL));
  run.observer = &observer;
  need(wn_run_stack(&run, ws));
  double off[2] = {0, 0};
  for (int64_t l = 0; l < c->layers; l++) {
    char name[32];
    snprintf(name, sizeof name, "%lld", (long long)l);
    print(name, s, l, s->off[l]);
    for (int k = 0; k < 2; k++) off[k] = fmax(off[k], s->off[l][k]);
  }
  print("\"all\"", s, LAYERS_MAX, off);
  wn_workspace_destroy(ws);
  wn_token_file_close(file);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  return 0;
}
