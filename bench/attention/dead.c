/* How much of selective attention is dead: attention weights that are 0 or negligible because F has hidden their key.
 *
 *   bench_dead MODEL TOKENS CONTEXT [SEQUENCES [THREADS]]
 *
 * MODEL: a checkpoint with selective attention. TOKENS: a token file, read from its start. A weight is "zero" below
 * 2^-126 (where the kernels' exponential is 0) and "small" below 2^-24 of its row's sum (half a unit in the sum's last
 * place). For the causal pairs of one layer, as attention processes them:
 *
 *   pairs     attention weights that are dead
 *   tiles     tiles of 64 rows and 16, 32 or 64 keys in which all weights are dead, for one head and for all heads
 *   keys      (row block, key) dead in all 64 rows, so that each row block needs only a compact list of keys; for one
 *   head
 *             and for all heads; "forever": dead in this row block and all later ones
 *   bound     the same, decided before any product except the selecting head's: from F at the block's first row, the
 *   norms
 *             of queries and keys, and a lower bound of the row's sum: the logits of its own key and of the
 *             document's
 *             first ("before"), or the sum itself ("after": the backward pass knows it)
 *   F > C     (row block, key) with F above C at the block's first row; the largest weight among them, and the
 *   largest sum
 *             of such weights in one row
 *
 * Tiles on the diagonal count as alive. JSON: one object for each layer, then one for all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/attention.h"
#include "model/workspace.h"
#include "winnow/data.h"

enum { BLOCK = 64, SIZES = 3, CUTS = 7 };
enum { ZERO, SMALL, KINDS };
static const double cuts[CUTS] = {10, 17, 25, 35, 50, 75, 100};
static const int64_t sizes[SIZES] = {16, 32, 64};
static const float limit[KINDS] = {0x1p-126f, 0x1p-24f};

struct share {
  double dead, all;
};
struct report {
  struct share pairs[KINDS], tiles[KINDS][SIZES][2], keys[KINDS][2], forever[KINDS], bound[KINDS][2][2], cut[CUTS],
      cut_tiles[CUTS];
  double largest[CUTS], sum[CUTS];
};

struct state {
  const struct wn_model *model;
  int64_t T, H, blocks;
  struct wn_attention op;
  float *top;              /* [H][blocks][T] the largest weight of a key in a row block */
  float *F;                /* [G][T][T] */
  double *lse;             /* [H][T] */
  uint64_t (*hits)[KINDS]; /* [threads] pairs */
  struct report *layers, whole;
};

static void add(struct share *s, double dead, double all) {
  s->dead += dead, s->all += all;
}

/* The largest weights of 64 rows, and the rows' sums of exponentials relative to the row's own key. */
static void on_rows(void *user, const struct wn_attention_view *v) {
  struct state *s = user;
  const struct wn_attention *a = v->a;
  float *top = s->top + (v->h * s->blocks + v->r / BLOCK) * s->T;
  memset(top, 0, (size_t)s->T * sizeof *top);
  for (int64_t i = 0; i < v->rows; i++) {
    const float *w = v->w + i * v->stride;
    const int64_t at = v->r + i;
    uint64_t hits[KINDS] = {0};
    for (int64_t j = 0; j <= at; j++) {
      for (int k = 0; k < KINDS; k++) hits[k] += w[j] < limit[k];
      if (w[j] > top[j]) top[j] = w[j];
    }
    for (int k = 0; k < KINDS; k++) s->hits[v->thread][k] += hits[k];
    double own = 0;
    const float *q = (const float *)a->q + at * a->s_q.t + v->h * a->s_q.h;
    const float *key = (const float *)a->k + at * a->s_k.t + v->h / (a->H / a->Hkv) * a->s_k.h;
    for (int64_t d = 0; d < a->D; d++) own += (double)q[d] * (double)key[d];
    s->lse[v->h * s->T + at] = w[at] > 0 ? own * a->scale - log((double)w[at]) : -INFINITY;
  }
}

static void on_attention(void *user, const struct wn_run *run, int64_t l, struct wn_attention *a) {
  struct state *s = user;
  (void)l;
  a->look.rows = on_rows;
  a->look.user = s;
  a->sel.F = s->F;
  s->op = *a;
  if (!run->measuring) memset(s->hits, 0, (size_t)run->exec.threads * sizeof *s->hits);
}

static double norm(const float *x, int64_t D) {
  double sum = 0;
  for (int64_t d = 0; d < D; d++) sum += (double)x[d] * (double)x[d];
  return sqrt(sum);
}

/* The keys before block b's own that the bound calls dead for head h: dead[kind][known][j] = 1. */
static void bound_keys(const struct state *s, int64_t h, int64_t b, const double *k_norm, const float *F,
                       uint8_t *dead[KINDS][2]) {
  const struct wn_attention *a = &s->op;
  const int64_t end = b * BLOCK, last = end + BLOCK < s->T ? end + BLOCK : s->T;
  double q_norm[BLOCK], below[2][BLOCK];
  for (int64_t i = end; i < last; i++) {
    const float *q = (const float *)a->q + i * a->s_q.t + h * a->s_q.h;
    const float *k = (const float *)a->k + h / (a->H / a->Hkv) * a->s_k.h;
    double own = 0, first = 0;
    for (int64_t d = 0; d < a->D; d++)
      own += (double)q[d] * (double)k[i * a->s_k.t + d], first += (double)q[d] * (double)k[d];
    q_norm[i - end] = norm(q, a->D) * a->scale;
    below[0][i - end] = a->scale * (own > first ? own : first);
    below[1][i - end] = s->lse[h * s->T + i];
  }
  for (int known = 0; known < 2; known++)
    for (int64_t j = 0; j < end; j++) {
      double most = -INFINITY;
      for (int64_t i = 0; i < last - end; i++) {
        const double x = q_norm[i] * k_norm[j] - below[known][i];
        if (x > most) most = x;
      }
      for (int k = 0; k < KINDS; k++) dead[k][known][j] &= most - (double)F[j] < log((double)limit[k]);
    }
}

static void on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *acts) {
  struct state *s = user;
  const struct wn_attention *a = &s->op;
  const int64_t T = s->T, H = s->H, G = wn_selection_groups(a);
  struct report *r = &s->layers[l];
  uint8_t *dead[KINDS][2], *all[KINDS][2], *later[KINDS];
  double *k_norm = malloc((size_t)(T * a->Hkv) * sizeof *k_norm);
  for (int k = 0; k < KINDS; k++) {
    uint64_t hits = 0;
    for (int t = 0; t < run->exec.threads; t++) hits += s->hits[t][k];
    add(&r->pairs[k], (double)hits, 0.5 * (double)T * (double)(T + 1) * (double)H);
    for (int known = 0; known < 2; known++) dead[k][known] = malloc((size_t)T), all[k][known] = malloc((size_t)T);
    later[k] = malloc((size_t)T);
    memset(later[k], 1, (size_t)T);
  }
  (void)acts;
  for (int64_t g = 0; g < a->Hkv; g++)
    for (int64_t j = 0; j < T; j++) k_norm[g * T + j] = norm((const float *)a->k + j * a->s_k.t + g * a->s_k.h, a->D);
  for (int64_t b = s->blocks - 1; b >= 0; b--) {
    const int64_t end = b * BLOCK;
    for (int k = 0; k < KINDS; k++) {
      for (int known = 0; known < 2; known++) memset(all[k][known], 1, (size_t)T);
      uint8_t *keys = dead[k][0];
      memset(keys, 1, (size_t)T);
      for (int64_t h = 0; h < H; h++) {
        const float *top = s->top + (h * s->blocks + b) * T;
        double count = 0;
        for (int64_t j = 0; j < end; j++) count += top[j] < limit[k], keys[j] &= top[j] < limit[k];
        add(&r->keys[k][0], count, (double)(end + BLOCK));
        for (int n = 0; n < SIZES; n++) {
          count = 0;
          for (int64_t j = 0; j < end; j += sizes[n]) {
            bool one = true;
            for (int64_t i = j; i < j + sizes[n]; i++) one &= top[i] < limit[k];
            count += one;
          }
          add(&r->tiles[k][n][0], count, (double)((end + BLOCK) / sizes[n]));
        }
      }
      double count = 0, forever = 0;
      for (int64_t j = 0; j < end; j++) count += keys[j], later[k][j] &= keys[j], forever += later[k][j];
      add(&r->keys[k][1], count, (double)(end + BLOCK));
      add(&r->forever[k], forever, (double)(end + BLOCK));
      for (int n = 0; n < SIZES; n++) {
        count = 0;
        for (int64_t j = 0; j < end; j += sizes[n]) count += !memchr(keys + j, 0, (size_t)sizes[n]);
        add(&r->tiles[k][n][1], count, (double)((end + BLOCK) / sizes[n]));
      }
    }
    for (int64_t h = 0; h < H; h++) {
      const int64_t g = h / (H / a->Hkv);
      for (int k = 0; k < KINDS; k++)
        for (int known = 0; known < 2; known++) memset(dead[k][known], 1, (size_t)T);
      bound_keys(s, h, b, k_norm + g * T, s->F + ((G > 1 ? g : 0) * T + end) * T, dead);
      for (int k = 0; k < KINDS; k++)
        for (int known = 0; known < 2; known++) {
          double count = 0;
          for (int64_t j = 0; j < end; j++) count += dead[k][known][j], all[k][known][j] &= dead[k][known][j];
          add(&r->bound[k][known][0], count, (double)(end + BLOCK));
        }
    }
    for (int k = 0; k < KINDS; k++)
      for (int known = 0; known < 2; known++) {
        double count = 0;
        for (int64_t j = 0; j < end; j++) count += all[k][known][j];
        add(&r->bound[k][known][1], count, (double)(end + BLOCK));
      }
    for (int64_t g = 0; g < G; g++)
      for (int n = 0; n < CUTS; n++) {
        const float *F = s->F + (g * T + end) * T;
        double count = 0, tiles = 0;
        for (int64_t j = 0; j < end; j++) count += (double)F[j] > cuts[n];
        for (int64_t j = 0; j < end; j += BLOCK) {
          bool one = true;
          for (int64_t i = j; i < j + BLOCK; i++) one &= (double)F[i] > cuts[n];
          tiles += one;
        }
        add(&r->cut[n], count, (double)(end + BLOCK));
        add(&r->cut_tiles[n], tiles, (double)(end + BLOCK) / BLOCK);
        for (int64_t h = g * (H / G); h < (g + 1) * (H / G); h++) {
          double sum = 0; /* of each column's largest: an upper bound for every row's sum */
          for (int64_t j = 0; j < end; j++) {
            if (!((double)F[j] > cuts[n])) continue;
            const double w = (double)s->top[(h * s->blocks + b) * T + j];
            sum += w;
            if (w > r->largest[n]) r->largest[n] = w;
          }
          if (sum > r->sum[n]) r->sum[n] = sum;
        }
      }
  }
  for (int k = 0; k < KINDS; k++) {
    for (int known = 0; known < 2; known++) free(dead[k][known]), free(all[k][known]);
    free(later[k]);
  }
  free(k_norm);
}

static double of(struct share s) {
  return s.all > 0 ? s.dead / s.all : 0;
}

static void print(const char *name, const struct report *r) {
  printf("{%s", name);
  for (int k = 0; k < KINDS; k++) {
    printf(", \"%s\": {\"pairs\": %.4f", k == ZERO ? "zero" : "small", of(r->pairs[k]));
    for (int n = 0; n < SIZES; n++)
      printf(", \"tiles_%d\": [%.4f, %.4f]", (int)sizes[n], of(r->tiles[k][n][0]), of(r->tiles[k][n][1]));
    printf(", \"keys\": [%.4f, %.4f], \"forever\": %.4f", of(r->keys[k][0]), of(r->keys[k][1]), of(r->forever[k]));
    printf(", \"before\": [%.4f, %.4f], \"after\": [%.4f, %.4f]}", of(r->bound[k][0][0]), of(r->bound[k][0][1]),
           of(r->bound[k][1][0]), of(r->bound[k][1][1]));
  }
  for (int n = 0; n < CUTS; n++)
    printf(", \"F>%g\": {\"keys\": %.4f, \"tiles_64\": %.4f, \"largest\": %.2g, \"sum\": %.2g}", cuts[n], of(r->cut[n]),
           of(r->cut_tiles[n]), r->largest[n], r->sum[n]);
  printf("}\n");
}

static wn_context *ctx;
static void need(wn_status status) {
  if (status == WN_OK) return;
  fprintf(stderr, "bench_dead: %s\n", wn_context_error(ctx));
  exit(1);
}

int main(int argc, char **argv) {
  if (argc < 4) return fprintf(stderr, "usage: bench_dead MODEL TOKENS CONTEXT [SEQUENCES [THREADS]]\n"), 2;
  const int64_t T = atoll(argv[3]), sequences = argc > 4 ? atoll(argv[4]) : 1;
  const wn_context_options options = {.size = sizeof options, .threads = argc > 5 ? atoi(argv[5]) : 0};
  wn_model *model;
  wn_token_file *file;
  need(wn_context_create(&options, &ctx));
  need(wn_model_load(ctx, argv[1], NULL, &model));
  need(wn_token_file_open(ctx, argv[2], &file));
  const wn_model_config *c = &model->config;
  if (!c->attention.selective.enabled || T < BLOCK || T % BLOCK != 0 || sequences < 1)
    return fprintf(stderr, "bench_dead: wants selective attention and a context of whole blocks of %d\n", BLOCK), 1;
  const size_t threads = (size_t)wn_context_threads(ctx), L = (size_t)c->layers;
  const size_t G = (size_t)(c->attention.selective.per_kv_head ? c->kv_heads : 1), t = (size_t)T;
  struct state s = {.model = model, .T = T, .H = c->heads, .blocks = T / BLOCK};
  int32_t *tokens = malloc(t * sizeof *tokens);
  s.top = malloc((size_t)s.H * (t / BLOCK) * t * sizeof *s.top);
  s.F = malloc(G * t * t * sizeof *s.F);
  s.lse = malloc((size_t)s.H * t * sizeof *s.lse);
  s.hits = calloc(threads, sizeof *s.hits);
  s.layers = calloc(L, sizeof *s.layers);
  if (!tokens || !s.top || !s.F || !s.lse || !s.hits || !s.layers) return fprintf(stderr, "bench_dead: no memory\n"), 1;
  const struct wn_layer_observer observer = {.attention = on_attention, .layer = on_layer, .user = &s};
  const struct wn_workspace_options workspace = {.activation_dtype = WN_F32, .observer = &observer};
  wn_workspace *ws;
  need(wn_workspace_create(ctx, model, 1, T, &workspace, &ws));
  for (int64_t n = 0; n < sequences; n++) {
    struct wn_run run;
    need(wn_token_file_read(ctx, file, (uint64_t)(n * T), t, tokens));
    need(wn_run_batch(&run, model, ws, &(struct wn_batch){.B = 1, .T = T, .tokens = tokens}, NULL));
    run.observer = &observer;
    need(wn_run_stack(&run, ws));
  }
  for (size_t l = 0; l < L; l++) {
    char name[32];
    snprintf(name, sizeof name, "\"layer\": %zu", l);
    print(name, &s.layers[l]);
    const struct share *from = (const struct share *)(const void *)&s.layers[l];
    struct share *to = (struct share *)(void *)&s.whole;
    for (size_t i = 0; i < offsetof(struct report, largest) / sizeof *from; i++) add(&to[i], from[i].dead, from[i].all);
    for (int i = 0; i < CUTS; i++) {
      s.whole.largest[i] = fmax(s.whole.largest[i], s.layers[l].largest[i]);
      s.whole.sum[i] = fmax(s.whole.sum[i], s.layers[l].sum[i]);
    }
  }
  print("\"layer\": \"all\"", &s.whole);
  wn_workspace_destroy(ws);
  wn_token_file_close(file);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  free(tokens), free(s.top), free(s.F), free(s.lse), free(s.hits), free(s.layers);
  return 0;
}
