/* Scores of a whole cache at once (kv/once.h). tests/golden/methods.safetensors, by tools/make-method-goldens.py: what
 * kvpress's presses give for the same keys, values and queries, which both sides compute from the same integers. What
 * is collected while a context is read arrives in pieces of several sizes. The rest by definition: rotations of every
 * kind, choices with equal scores, CriticalKV's two stages, AdaKV's numbers, random sketches, refusals. */
#include "support.h"

#include <math.h>
#include "kv/once/score.h"
#include "winnow/safetensors.h"

enum { NAME = 64 };
static const double limit = 1e-5; /* of the goldens, relative to a score and to the largest */

struct given {
  int64_t seed, n, H, Hkv, D, C, rope, lag, rows, chunk, sketch;
  double magnitude;
  int64_t total;          /* rows: the context's and those of KVzip's repetitions */
  float *q, *k, *v, *wo;  /* q [total,H,D], k [total,Hkv,D] rotated; v [Hkv,n,D] */
  float *keys;            /* [Hkv,n,D], as the cache has them */
  double *phi;            /* [Hkv,D,sketch] */
  int32_t *at;            /* [total] */
  double *sums, *largest; /* [Hkv,n] */
  struct wn_rope rope_row;
  struct wn_once_options options;
  struct wn_once_view view;
};

/* Uniform in [-1,1), as the tool draws. */
static double draw(int64_t seed, int64_t i) {
  uint64_t z = ((uint64_t)seed << 32) + (uint64_t)i;
  z = z * 0x9E3779B97F4A7C15u + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z = z ^ (z >> 31);
  return (double)(z >> 40) * 0x1p-23 - 1;
}

static void *made(int64_t count, size_t bytes) {
  void *p = calloc((size_t)count, bytes);
  assert_non_null(p);
  return p;
}

/* Rotates x [heads,D] of one row, as the model does. */
static void turn(const struct wn_rope *rope, float *x, int64_t heads, int64_t D, int32_t at) {
  const int64_t R = rope->R ? rope->R : D;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < R / 2; i++) {
      const int64_t a = h * D + (rope->adjacent ? 2 * i : i), b = rope->adjacent ? a + 1 : a + R / 2;
      const double f = rope->frequencies ? rope->frequencies[i] : pow(rope->theta, -2.0 * (double)i / (double)R);
      const double c = cos(at * f) * rope->magnitude, s = sin(at * f) * rope->magnitude;
      const double x0 = (double)x[a], x1 = (double)x[b];
      x[a] = (float)(x0 * c - x1 * s), x[b] = (float)(x0 * s + x1 * c);
    }
}

static double setting(const wn_safetensors *file, const char *name, const char *key) {
  char full[2 * NAME];
  snprintf(full, sizeof full, "%s%s%s", name, *name ? "/" : "", key);
  const char *text = wn_safetensors_metadata(file, full);
  if (!text) fail_msg("methods.safetensors has no \"%s\"", full);
  return strtod(text, NULL);
}

static const int64_t repeated[2][2] = {{0, 20}, {20, 37}};
static int64_t repeated_rows(int r) {
  return repeated[r][1] - repeated[r][0] + 3;
}

static void fill(struct given *c) {
  const int64_t H = c->H, G = c->Hkv, D = c->D, s = 8 * c->seed;
  for (int64_t t = 0; t < c->total; t++) {
    c->at[t] = (int32_t)(t < c->n ? t : t < c->n + repeated_rows(0) ? t : t - repeated_rows(0));
    for (int64_t i = 0; i < H * D; i++)
      c->q[t * H * D + i] = (float)(1.2 * draw(s, t * H * D + i) + 0.8 * draw(s + 1, i));
    for (int64_t i = 0; i < G * D; i++)
      c->k[t * G * D + i] = (float)(1.5 * draw(s + 2, t * 7 % 11 * G * D + i) + 0.7 * draw(s + 3, t * G * D + i));
    if (c->rope)
      turn(&c->rope_row, c->q + t * H * D, H, D, c->at[t]), turn(&c->rope_row, c->k + t * G * D, G, D, c->at[t]);
    for (int64_t g = 0; g < G && t < c->n; g++)
      for (int64_t d = 0; d < D; d++) {
        c->v[(g * c->n + t) * D + d] = (float)(draw(s + 4, (t * G + g) * D + d) * (1 + 0.125 * (double)(t % 13)));
        c->keys[(g * c->n + t) * D + d] = c->k[(t * G + g) * D + d];
      }
  }
  for (int64_t i = 0; i < c->C * H * D; i++) c->wo[i] = (float)draw(s + 5, i);
  for (int64_t i = 0; i < G * D * c->sketch; i++) c->phi[i] = draw(s + 6, i) / sqrt((double)c->sketch);
}

/* The attention that each token receives from all rows of the context. */
static void attend(struct given *c) {
  double *row = made(c->n, sizeof *row);
  for (int64_t h = 0; h < c->H; h++)
    for (int64_t t = 0; t < c->n; t++) {
      const int64_t g = h / (c->H / c->Hkv);
      double sum = 0;
      for (int64_t j = 0; j <= t; j++) {
        double z = 0;
        for (int64_t d = 0; d < c->D; d++)
          z += (double)c->q[(t * c->H + h) * c->D + d] * (double)c->k[(j * c->Hkv + g) * c->D + d];
        sum += row[j] = exp(z / sqrt((double)c->D));
      }
      for (int64_t j = 0; j <= t; j++) c->sums[g * c->n + j] += row[j] / sum;
    }
  free(row);
}

static struct given *given_of(const wn_safetensors *file, const char *name) {
  struct given *c = made(1, sizeof *c);
  const struct {
    const char *key;
    int64_t *to;
  } keys[] = {{"seed", &c->seed}, {"n", &c->n},         {"H", &c->H},          {"Hkv", &c->Hkv},
              {"D", &c->D},       {"C", &c->C},         {"rope", &c->rope},    {"lag", &c->lag},
              {"rows", &c->rows}, {"chunk", &c->chunk}, {"sketch", &c->sketch}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) *keys[i].to = (int64_t)setting(file, name, keys[i].key);
  c->magnitude = setting(file, name, "magnitude");
  c->total = c->n + repeated_rows(0) + repeated_rows(1);
  c->q = made(c->total * c->H * c->D, sizeof *c->q);
  c->k = made(c->total * c->Hkv * c->D, sizeof *c->k);
  c->v = made(c->n * c->Hkv * c->D, sizeof *c->v);
  c->keys = made(c->n * c->Hkv * c->D, sizeof *c->keys);
  c->wo = made(c->C * c->H * c->D, sizeof *c->wo);
  c->phi = made(c->Hkv * c->D * c->sketch, sizeof *c->phi);
  c->at = made(c->total, sizeof *c->at);
  c->sums = made(c->Hkv * c->n, sizeof *c->sums);
  c->largest = made(c->Hkv * c->n, sizeof *c->largest);
  c->rope_row = (struct wn_rope){.D = c->D, .theta = 10000, .magnitude = c->magnitude};
  fill(c);
  attend(c);
  wn_once_options_init(&c->options);
  c->options.lagkv.lag = c->lag;
  c->options.snapkv.rows = c->rows;
  c->options.compactor.chunk = c->chunk;
  c->options.leverage.sketch = c->sketch;
  c->options.expected.future = (int64_t)setting(file, "", "future");
  c->view = (struct wn_once_view){.options = &c->options,
                                  .threads = 2,
                                  .n = c->n,
                                  .H = c->H,
                                  .Hkv = c->Hkv,
                                  .D = c->D,
                                  .next = c->n,
                                  .kept = c->n / 2,
                                  .ratio = 0.5,
                                  .scale = 1 / sqrt((double)c->D),
                                  .at = c->at,
                                  .k = c->keys,
                                  .v = c->v,
                                  .rope = c->rope ? &c->rope_row : NULL,
                                  .sums = c->sums,
                                  .largest = c->largest,
                                  .wo = c->wo,
                                  .C = c->C,
                                  .wo_row = c->H * c->D};
  return c;
}

static void given_free(struct given *c) {
  void *all[] = {c->q, c->k, c->v, c->keys, c->wo, c->phi, c->at, c->sums, c->largest, c};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* KVzip's two repetitions, in pieces of so many rows. */
static void repeat(wn_context *ctx, struct given *c, int64_t piece) {
  memset(c->largest, 0, (size_t)(c->Hkv * c->n) * sizeof *c->largest);
  for (int64_t r = 0, at = c->n; r < 2; at += repeated_rows((int)r), r++) {
    const int64_t T = repeated_rows((int)r);
    float *own = made(c->Hkv * T * c->D, sizeof *own);
    for (int64_t done = 0, now; done < T; done += now) { /* of the T rows */
      now = T - done < piece ? T - done : piece;
      for (int64_t g = 0; g < c->Hkv; g++)
        for (int64_t i = 0; i < (done + now) * c->D; i++)
          own[g * (done + now) * c->D + i] = c->k[((at + i / c->D) * c->Hkv + g) * c->D + i % c->D];
      const struct wn_once_repeated rows = {
          repeated[r][0], repeated[r][1], now, done + now, c->q + (at + done) * c->H * c->D, own};
      assert_ok(ctx, wn_once_repeat(ctx, &c->view, &rows, c->largest));
    }
    free(own);
  }
}

/* A method's scores, from a context that is read in pieces of so many tokens. sketch: the golden's in place of a random
 * one. */
static void score(wn_context *ctx, struct given *c, const char *name, int64_t piece, bool sketch, double *scores) {
  const struct wn_once_method *method = wn_once_find(name);
  assert_non_null(method);
  struct wn_once_seen *seen;
  const struct wn_once_shape shape = {
      .H = c->H, .Hkv = c->Hkv, .D = c->D, .capacity = c->n, .rope = c->view.rope, .threads = 2};
  assert_ok(ctx, wn_once_seen_create(ctx, method, &c->options, &shape, &seen));
  struct wn_once_view view = c->view;
  for (int pass = 0; pass < 2 && seen; pass++) { /* the second after a reset */
    wn_once_seen_reset(seen);
    for (int64_t t = 0; t < c->n; t += piece) {
      const int64_t T = c->n - t < piece ? c->n - t : piece;
      assert_ok(ctx, wn_once_seen_rows(ctx, seen, c->q + t * c->H * c->D, c->k + t * c->Hkv * c->D, c->at + t, T));
    }
    assert_ok(ctx, wn_once_seen_show(ctx, seen, &view));
  }
  if (method->needs & WN_ONCE_REPEAT) repeat(ctx, c, piece);
  if (sketch && !strcmp(name, "leverage")) {
    assert_ok(ctx, wn_once_leverage_of(ctx, &view, 0, c->n, c->phi, c->sketch, scores, c->n));
    for (int64_t i = 0; i < c->Hkv * c->n; i++) scores[i] = -scores[i];
  } else if (sketch && !strcmp(name, "compactor")) {
    assert_ok(ctx, wn_once_compactor_of(ctx, &view, c->phi, scores));
  } else {
    assert_ok(ctx, wn_once_score(ctx, method, &view, scores));
  }
  wn_once_seen_destroy(seen);
}

static const wn_safetensors_entry *golden(const wn_safetensors *file, const char *name, const char *what,
                                          const char *method, const char *after) {
  char key[2 * NAME];
  snprintf(key, sizeof key, "%s/%s%s%s", name, what, method, after);
  return wn_safetensors_find(file, key);
}

/* The kept tokens of each head, and AdaKV's numbers. Returns how many of the two were compared. */
static int check_kept(wn_context *ctx, const wn_safetensors *file, const char *name, const char *method,
                      const struct given *c, const double *scores) {
  const wn_safetensors_entry *kept = golden(file, name, "", method, "/kept");
  const wn_safetensors_entry *ada = golden(file, name, "ada-", method, "");
  const int64_t K = c->view.kept;
  int32_t *best = made(K, sizeof *best);
  for (int64_t g = 0; g < c->Hkv && kept; g++) {
    assert_int_equal(kept->shape[1], K);
    assert_ok(ctx, wn_once_best(ctx, scores + g * c->n, c->n, K, best));
    assert_memory_equal(best, (const int32_t *)kept->data + g * K, (size_t)K * sizeof *best);
  }
  free(best);
  if (!ada) return kept != NULL;
  int64_t numbers[8];
  assert_ok(ctx, wn_once_ada(ctx, scores, c->Hkv, c->n, K * c->Hkv, wn_once_ada_safe(&c->options, K), numbers));
  for (int64_t g = 0; g < c->Hkv; g++) assert_int_equal(numbers[g], ((const int32_t *)ada->data)[g]);
  return 1 + (kept != NULL);
}

static int check_golden(wn_context *ctx, const wn_safetensors *file, const char *name, const char *method,
                        const struct given *c, const double *scores) {
  const wn_safetensors_entry *e = golden(file, name, "", method, "");
  if (!e) return 0; /* a press that fails for this shape */
  assert_int_equal(e->shape[0] * e->shape[1], c->Hkv * c->n);
  const double *want = e->data;
  double most = 0;
  for (int64_t i = 0; i < c->Hkv * c->n; i++)
    if (isfinite(want[i])) most = fmax(most, fabs(want[i]));
  for (int64_t i = 0; i < c->Hkv * c->n; i++) {
    if (isinf(want[i]) != wn_once_protected(scores[i]) ||
        (isfinite(want[i]) && !(fabs(scores[i] + want[i]) <= limit * fabs(want[i]) + limit / 100 * most)))
      fail_msg("%s, %s, head %lld, token %lld: expected %.9g, found %.9g", name, method, (long long)(i / c->n),
               (long long)(i % c->n), -want[i], scores[i]);
  }
  return 1 + check_kept(ctx, file, name, method, c, scores);
}

/* Golden names that are a method with options, and what sets them. */
static void cross(struct wn_once_options *o) {
  o->lagkv.cross = true;
}
static void mean_only(struct wn_once_options *o) {
  o->expected.covariance = o->expected.values = false;
}
static void epsilon(struct wn_once_options *o) {
  o->expected.epsilon = 0.02;
}
static const struct {
  const char *golden, *method;
  void (*set)(struct wn_once_options *options);
  bool critical;
} variants[] = {
    {"lagkv", "lagkv", NULL, false},
    {"lagkv-cross", "lagkv", cross, false},
    {"expected", "expected", NULL, false},
    {"expected-mean", "expected", mean_only, false},
    {"expected-epsilon", "expected", epsilon, false},
    {"observed", "observed", NULL, false},
    {"snapkv", "snapkv", NULL, false},
    {"tova", "tova", NULL, false},
    {"leverage", "leverage", NULL, false},
    {"compactor", "compactor", NULL, false},
    {"rkv", "rkv", NULL, false},
    {"kvzip", "kvzip", NULL, false},
    {"critical-snapkv", "snapkv", NULL, true},
    {"critical-observed", "observed", NULL, true},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* The norms of projected values: for all heads at once, and the same bits for each by itself. */
static double *projected(wn_context *ctx, const struct given *c) {
  const int64_t group = c->H / c->Hkv;
  double *norms = made(c->Hkv * c->n, sizeof *norms), *one = made(c->n, sizeof *one);
  assert_ok(ctx, wn_once_projected(ctx, &c->view, norms));
  for (int64_t g = 0; g < c->Hkv; g++) {
    struct wn_once_view view = c->view;
    view.v += g * c->n * c->D, view.wo += g * group * c->D, view.H = group, view.Hkv = 1;
    assert_ok(ctx, wn_once_projected(ctx, &view, one));
    assert_memory_equal(one, norms + g * c->n, (size_t)c->n * sizeof *one);
  }
  free(one);
  return norms;
}

static void methods_as_kvpress(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_safetensors *file = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, WN_TEST_DIR "/golden/methods.safetensors", &file));
  char names[256];
  snprintf(names, sizeof names, "%s", wn_safetensors_metadata(file, "cases"));
  int compared[VARIANTS] = {0};
  for (char *rest = names, *name; (name = strtok_r(rest, " ", &rest));) {
    struct given *c = given_of(file, name);
    const struct wn_once_options options = c->options;
    double *scores = made(c->Hkv * c->n, sizeof *scores);
    const int64_t pieces[] = {1, 7, 64, c->n};
    for (int v = 0; v < VARIANTS; v++)
      for (int p = 0; p < 4; p++) {
        c->options = options;
        if (variants[v].set) variants[v].set(&c->options);
        score(ctx, c, variants[v].method, pieces[p], true, scores);
        const int64_t kept[] = {c->view.kept, c->view.kept};
        if (variants[v].critical) {
          double *norms = projected(ctx, c);
          assert_ok(ctx, wn_once_critical(ctx, &c->view, kept, norms, scores));
          free(norms);
        }
        compared[v] += check_golden(ctx, file, name, variants[v].golden, c, scores);
      }
    free(scores);
    given_free(c);
  }
  for (int v = 0; v < VARIANTS; v++)
    if (compared[v] < 12) fail_msg("%s: only %d comparisons", variants[v].golden, compared[v]);
  wn_safetensors_close(file);
  wn_context_destroy(ctx);
}

static void pyramid_as_kvpress(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_safetensors *file = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, WN_TEST_DIR "/golden/methods.safetensors", &file));
  const wn_safetensors_entry *e = wn_safetensors_find(file, "pyramid");
  assert_non_null(e);
  assert_true(e->shape[0] > 80);
  struct wn_once_options options;
  wn_once_options_init(&options);
  for (int64_t i = 0; i < e->shape[0]; i++) {
    const double *row = (const double *)e->data + i * 7;
    options.pyramid.beta = row[3];
    assert_int_equal(wn_once_pyramid(&options, (int64_t)row[5], (int64_t)row[4], (int64_t)row[0], row[0] * (1 - row[1]),
                                     (int64_t)row[2]),
                     (int64_t)row[6]);
  }
  wn_safetensors_close(file);
  wn_context_destroy(ctx);
}

/* Keys are turned back whatever the rotation: part of a head, adjacent pairs, frequencies and sizes of their own. */
static void rotations_are_undone(void **state) {
  (void)state;
  enum { N = 9, HEADS = 3, D = 10 };
  const double frequencies[] = {1, 0.3, 0.01};
  const struct wn_rope ropes[] = {
      {.D = D, .theta = 10000, .magnitude = 1},
      {.D = D, .R = 6, .theta = 500, .magnitude = 1, .adjacent = true},
      {.D = D, .R = 6, .theta = 1, .magnitude = 1.7, .frequencies = frequencies},
  };
  for (int r = 0; r < 4; r++) {
    float plain[N * HEADS * D], x[N * HEADS * D]; /* [N,HEADS,D] */
    double back[HEADS * N * D];
    int32_t at[N];
    for (int i = 0; i < N * HEADS * D; i++) plain[i] = x[i] = (float)draw(90, i);
    for (int t = 0; t < N; t++) {
      at[t] = 37 * t + 2;
      if (r < 3) turn(&ropes[r], x + t * HEADS * D, HEADS, D, at[t]);
    }
    const struct wn_once_rows rows = {x, N, HEADS, D, HEADS * D, D, at, r < 3 ? &ropes[r] : NULL, back};
    wn_once_unrotate(2, &rows);
    for (int t = 0; t < N; t++)
      for (int h = 0; h < HEADS; h++)
        for (int d = 0; d < D; d++)
          assert_true(fabs(back[(h * N + t) * D + d] - (double)plain[(t * HEADS + h) * D + d]) < 1e-6);
  }
}

static void choices_with_equal_scores(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const double scores[] = {WN_ONCE_SINK, 1, 2, 1, WN_ONCE_RECENT, 1, 0, WN_ONCE_RECENT};
  const int32_t want[][5] = {{0}, {0, 7}, {0, 4, 7}, {0, 4, 6, 7}, {0, 4, 5, 6, 7}}; /* equal: the newest stay */
  int32_t best[8];
  for (int K = 1; K <= 5; K++) {
    assert_ok(ctx, wn_once_best(ctx, scores, 8, K, best));
    assert_memory_equal(best, want[K - 1], (size_t)K * sizeof *best);
  }
  assert_ok(ctx, wn_once_best(ctx, scores, 8, 0, best));
  assert_ok(ctx, wn_once_best(ctx, scores, 8, 8, best));
  for (int i = 0; i < 8; i++) assert_int_equal(best[i], i);
  /* three rows: the second has all low scores, but each row keeps its two */
  const double rows[] = {5, 6, 7, 8, 0, 1, 2, 3, 9, 9, 9, 4};
  int64_t kept[3];
  assert_ok(ctx, wn_once_ada(ctx, rows, 3, 4, 7, 2, kept));
  assert_int_equal(kept[0], 2), assert_int_equal(kept[1], 3), assert_int_equal(kept[2], 2);
  assert_ok(ctx, wn_once_ada(ctx, rows, 3, 4, 6, 0, kept));
  assert_int_equal(kept[0], 1), assert_int_equal(kept[1], 4), assert_int_equal(kept[2], 1);
  assert_ok(ctx, wn_once_ada(ctx, rows, 3, 4, 12, 3, kept));
  assert_int_equal(kept[0], 4), assert_int_equal(kept[1], 4), assert_int_equal(kept[2], 4);
  wn_context_destroy(ctx);
}

/* A sketch of winnow's own random numbers: the same for the same seed, another for another, and most of the tokens that
 * an exact computation (as many columns as dimensions, and orthogonal ones) would keep. */
static void sketches_are_seeded(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_safetensors *file = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, WN_TEST_DIR "/golden/methods.safetensors", &file));
  struct given *c = given_of(file, "grouped");
  double *exact = made(c->Hkv * c->n, sizeof *exact), *drawn = made(c->Hkv * c->n, sizeof *drawn);
  double *again = made(c->Hkv * c->n, sizeof *again), *unit = made(c->Hkv * c->D * c->D, sizeof *unit);
  for (int64_t i = 0; i < c->Hkv * c->D; i++) unit[i * c->D + i % c->D] = 1;
  assert_ok(ctx, wn_once_leverage_of(ctx, &c->view, 0, c->n, unit, c->D, exact, c->n));
  score(ctx, c, "leverage", c->n, false, drawn);
  score(ctx, c, "leverage", c->n, false, again);
  assert_memory_equal(drawn, again, (size_t)(c->Hkv * c->n) * sizeof *drawn);
  c->options.seed = 5;
  score(ctx, c, "leverage", c->n, false, again);
  assert_memory_not_equal(drawn, again, (size_t)(c->Hkv * c->n) * sizeof *drawn);
  int both = 0;
  int32_t best[2][150];
  const int64_t K = c->n / 2;
  for (int64_t i = 0; i < c->Hkv * c->n; i++) exact[i] = -exact[i];
  assert_ok(ctx, wn_once_best(ctx, exact, c->n, K, best[0]));
  assert_ok(ctx, wn_once_best(ctx, drawn, c->n, K, best[1]));
  for (int64_t i = 0; i < K; i++)
    for (int64_t j = 0; j < K; j++) both += best[0][i] == best[1][j];
  assert_true(both > 9 * K / 10); /* 16 columns for 12 dimensions */
  free(exact), free(drawn), free(again), free(unit);
  given_free(c);
  wn_safetensors_close(file);
  wn_context_destroy(ctx);
}

/* Contexts shorter than what a method protects, and down to one token: all tokens are protected or have finite scores.
 */
static void short_contexts(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_safetensors *file = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, WN_TEST_DIR "/golden/methods.safetensors", &file));
  struct given *c = given_of(file, "first");
  const int64_t n = c->n;
  double scores[2 * 70];
  float *keys = made(c->Hkv * n * c->D, sizeof *keys), *values = made(c->Hkv * n * c->D, sizeof *values);
  for (c->n = 1; c->n < 24; c->n++) {
    for (int64_t g = 0; g < c->Hkv; g++) {
      memcpy(keys + g * c->n * c->D, c->keys + g * n * c->D, (size_t)(c->n * c->D) * sizeof *keys);
      memcpy(values + g * c->n * c->D, c->v + g * n * c->D, (size_t)(c->n * c->D) * sizeof *values);
    }
    c->view.n = c->view.next = c->n, c->view.kept = (c->n + 1) / 2;
    c->view.k = keys, c->view.v = values;
    for (int i = 0; i < wn_once_count(); i++) {
      if (wn_once_at(i)->needs & WN_ONCE_REPEAT) continue;
      score(ctx, c, wn_once_at(i)->name, 3, false, scores);
      for (int64_t j = 0; j < c->Hkv * c->n; j++) assert_true(wn_once_protected(scores[j]) || isfinite(scores[j]));
    }
  }
  free(keys), free(values);
  given_free(c);
  wn_safetensors_close(file);
  wn_context_destroy(ctx);
}

static void refusals(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_safetensors *file = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, WN_TEST_DIR "/golden/methods.safetensors", &file));
  struct given *c = given_of(file, "first");
  double scores[2 * 70];
  for (int i = 0; i < wn_once_count(); i++) {
    const struct wn_once_method *method = wn_once_at(i);
    assert_true(wn_once_find(method->name) == method && *method->summary);
    struct wn_once_view view = c->view;
    view.k = view.v = view.q = NULL, view.sums = view.largest = view.chunks = view.mean = NULL;
    assert_refused(ctx, wn_once_score(ctx, method, &view, scores), WN_ERR_ARGUMENT, method->name);
  }
  assert_null(wn_once_find("nothing"));
  assert_null(wn_once_at(-1));
  assert_null(wn_once_at(wn_once_count()));
  struct wn_once_view view = c->view;
  view.wo = NULL;
  assert_refused(ctx, wn_once_projected(ctx, &view, scores), WN_ERR_ARGUMENT, "output projection");
  c->keys[5] = NAN;
  assert_refused(ctx, wn_once_score(ctx, wn_once_find("leverage"), &c->view, scores), WN_ERR_DIVERGED, "finite keys");
  c->sums[3] = NAN;
  assert_refused(ctx, wn_once_score(ctx, wn_once_find("observed"), &c->view, scores), WN_ERR_DIVERGED, "token 3");
  struct wn_once_seen *seen;
  const struct wn_once_shape shape = {.H = c->H, .Hkv = c->Hkv, .D = c->D, .capacity = 8, .threads = 1};
  assert_ok(ctx, wn_once_seen_create(ctx, wn_once_find("compactor"), &c->options, &shape, &seen));
  assert_refused(ctx, wn_once_seen_rows(ctx, seen, c->q, c->k, c->at, 9), WN_ERR_ARGUMENT, "at most 8 tokens");
  assert_ok(ctx, wn_once_seen_rows(ctx, seen, c->q, c->k, c->at, 8));
  assert_refused(ctx, wn_once_seen_show(ctx, seen, &c->view), WN_ERR_ARGUMENT, "8 tokens of the whole context");
  wn_once_seen_destroy(seen);
  assert_ok(ctx, wn_once_seen_create(ctx, wn_once_find("lagkv"), &c->options, &shape, &seen));
  assert_null(seen);
  given_free(c);
  wn_safetensors_close(file);
  wn_context_destroy(ctx);
}

/* Beside the C library's exp: every length up to some vectors, wide ranges, nothing but -inf, NaN. */
static void softmax_by_definition(void **state) {
  (void)state;
  enum { MOST = 67 };
  double x[MOST], exact[MOST];
  for (int n = 1; n <= MOST; n++)
    for (int wide = 0; wide < 4; wide++) {
      double most = -INFINITY, sum = 0;
      for (int i = 0; i < n; i++) {
        x[i] = i % 13 == 5 ? -INFINITY : pow(10, wide) * draw(wide, n * MOST + i);
        most = fmax(most, x[i]);
      }
      for (int i = 0; i < n; i++) sum += exact[i] = exp(x[i] - most);
      wn_once_softmax(x, n);
      for (int i = 0; i < n; i++)
        if (fabs(x[i] - exact[i] / sum) > 1e-14 * exact[i] / sum && exact[i] > 1e-300)
          fail_msg("softmax of %d numbers up to 1e%d: %.17g instead of %.17g", n, wide, x[i], exact[i] / sum);
    }
  for (int at = 0; at < 2; at++) {
    double none[] = {1, 2, 3};
    none[at] = NAN;
    wn_once_softmax(none, 3);
    assert_true(isnan(none[0]) && isnan(none[1]) && isnan(none[2]));
  }
  wn_once_softmax(x, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(softmax_by_definition),
      cmocka_unit_test(methods_as_kvpress),
      cmocka_unit_test(pyramid_as_kvpress),
      cmocka_unit_test(rotations_are_undone),
      cmocka_unit_test(choices_with_equal_scores),
      cmocka_unit_test(sketches_are_seeded),
      cmocka_unit_test(short_contexts),
      cmocka_unit_test(refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
