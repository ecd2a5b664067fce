/* Attention of a few rows over a cache, on emulated kernels, near the reference: caches in float, half and bf16, groups
 * of heads, all keys in one split and in many, every supported term, selections added to F in place. Every order of
 * threads gives the same bits. Keys that no row sees are not read. (test_cuda_attention.c applies the tolerance rule.)
 */
#include "support.h"

#include <math.h>

#include "attention/registry.h"
#include "backends/backends.h"
#include "backends/cuda/cuda.h"
#include "base/rng.h"
#include "cuda/emulate_api.h"
#include "io/gguf_types.h"
#include "ops/attention.h"
#include "ops/ops.h"
#include "ops/terms.h"
#include "tensor/f16.h"

static wn_context *ctx;
static int setup(void **state) {
  (void)state;
  ctx = make_context();
  return 0;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

/* The backend with half floats for a single row. Sessions do not use these yet, since several rows have no kernel for
 * them. */
static const struct wn_backend *cuda_halves(void) {
  static struct wn_backend b;
  b = *wn_backend_cuda_table();
  b.attention_served.row |= WN_TERM_HALF;
  return &b;
}

enum cache { FLOATS, HALVES, BF16, CACHES };
enum term {
  NONE,
  WINDOW,
  STRIDED,
  SPAN,
  EXCLUSIVE,
  DOCUMENTS,
  EVICTED,
  POSITIONS,
  SOFTCAP,
  ALIBI_POSITIONS, /* with a softcap */
  SINKS,
  GATE,      /* elementwise, with learned sinks */
  GATE_HEAD, /* with exclusive attention */
  FORGET,
  KEYED, /* forget gates of each query head and write gates between ALiBi and a softcap, by positions */
  SELECT,
  SELECT_EACH,
  SELECT_MAPPED, /* from logits with ALiBi and a softcap */
  SELECT_KEYED,
  TERMS
};

struct shape {
  int64_t B, Tq, Tk, H, Hkv, D;
};

/* A call with its arrays. `k` and `v` have the cache's type. */
struct bench {
  struct wn_attention a;
  float *q, *y, *lse, *dot, *f, *z, *sink_k, *sink_v, *gates, *ungated, *numbers;
  void *k, *v;
  int32_t *positions, *evicted;
};

static void *array_of(enum cache cache, bool own, int64_t n, uint64_t stream) {
  float *x = malloc((size_t)n * sizeof *x);
  assert_non_null(x);
  for (int64_t i = 0; i < n; i++) x[i] = (float)wn_random_normal(4, WN_STREAM_TEST, stream, (uint64_t)i);
  if (cache == FLOATS || (cache == HALVES && own)) return x;
  uint16_t *h = malloc((size_t)n * sizeof *h);
  assert_non_null(h);
  for (int64_t i = 0; i < n; i++) h[i] = wn_bf16_round(x[i]);
  if (cache == HALVES) wn_f16_from_f32(n, x, h);
  free(x);
  return h;
}

/* Numbers as a cache has them, in rows of a key-value head. */
static void add_keyed(struct bench *m, const struct wn_score_kind *kind, int64_t gates, int64_t row) {
  struct wn_attention *a = &m->a;
  struct wn_score_map *t = &a->map[a->maps];
  *t = (struct wn_score_map){
      .kind = kind, .number = {9}, .key = m->numbers + row * a->Tk, .gates = gates, .s_gate = a->Tk};
  t->s_key = (struct wn_stride){a->Hkv * 3 * a->Tk, 1, 3 * a->Tk};
  a->maps++;
}

static void bench_make(struct bench *m, const struct shape *s, enum cache cache, enum term term) {
  const int64_t B = s->B, Tq = s->Tq, Tk = s->Tk, H = s->H, Hkv = s->Hkv, D = s->D, G = term == SELECT_EACH ? Hkv : 1;
  memset(m, 0, sizeof *m);
  m->q = array_of(cache, true, B * Tq * H * D, 1), m->y = array_of(cache, true, B * Tq * H * D, 2);
  m->k = array_of(cache, false, B * Hkv * Tk * D, 3), m->v = array_of(cache, false, B * Hkv * Tk * D, 4);
  m->lse = array_of(FLOATS, true, B * H * Tq, 5), m->dot = array_of(FLOATS, true, B * H * Tq, 6);
  m->sink_k = array_of(FLOATS, true, Hkv * 3 * D, 9), m->sink_v = array_of(FLOATS, true, Hkv * 3 * D, 10);
  m->gates = array_of(FLOATS, true, B * Tq * H * D, 11), m->ungated = array_of(FLOATS, true, B * Tq * H * D, 12);
  m->f = array_of(FLOATS, true, B * G * (Tk + 3), 7), m->z = array_of(FLOATS, true, H, 8);
  m->positions = malloc((size_t)(B * Tk) * sizeof(int32_t)), m->evicted = malloc((size_t)(B * Tk) * sizeof(int32_t));
  for (int64_t i = 0; i < B * G * (Tk + 3); i++) m->f[i] = fabsf(m->f[i]);
  for (int64_t h = 0; h < H; h++) m->z[h] = (float)(h + 1) / (float)(H + 1);
  struct wn_attention *a = &m->a;
  *a = (struct wn_attention){.B = B, .Tq = Tq, .Tk = Tk, .H = H, .Hkv = Hkv, .D = D, .scale = 1 / sqrt((double)D)};
  a->q = m->q, a->k = m->k, a->v = m->v, a->y = m->y, a->lse = m->lse;
  a->s_q = a->s_y = (struct wn_stride){Tq * H * D, H * D, D};
  a->s_k = a->s_v = (struct wn_stride){Hkv * Tk * D, D, Tk * D};
  a->k_type = a->v_type = cache == HALVES ? WN_GGUF_F16 : WN_GGUF_F32;
  a->row_type = cache == BF16 ? WN_BF16 : 0;
  const int64_t own = Tk - Tq;
  for (int64_t b = 0; b < B; b++) /* sequences of different lengths */
    for (int64_t j = 0; j < Tk; j++) {
      const int64_t start = own * b / (B + 1);
      m->evicted[b * Tk + j] = (int32_t)(j < start || (j % 3 == 1 && j < own) ? own : INT32_MAX);
      m->positions[b * Tk + j] =
          (int32_t)(term == DOCUMENTS ? (j < start ? 0 : start) : 2 * (own > 0 && j < own ? own - 1 - j : j));
    }
  if (term == WINDOW) a->window = 37;
  if (term == STRIDED) a->strided = 5;
  if (term == SPAN) a->span.on = true, a->span.limit = 100, a->span.ramp = 16, a->span.z = m->z, a->span.s_z.h = 1;
  if (term == EXCLUSIVE) a->exclusive.on = true, a->exclusive.dot = m->dot;
  if (term == DOCUMENTS) a->doc_start = m->positions;
  if (term == EVICTED) a->slots.evicted_at = m->evicted;
  if (term == POSITIONS) a->slots.at = m->positions, a->window = 300;
  const bool alibi = term == ALIBI_POSITIONS || term == SELECT_MAPPED || term == KEYED;
  if (alibi) a->map[a->maps++] = (struct wn_score_map){.kind = wn_mechanism_alibi.score, .number = {8, (double)H}};
  m->numbers = array_of(FLOATS, true, 3 * B * Hkv * Tk, 13);
  for (int64_t i = 0; i < 3 * B * Hkv * Tk; i++) m->numbers[i] = -0.05f * fabsf(m->numbers[i]);
  if (term == FORGET || term == KEYED) add_keyed(m, wn_mechanism_forget.score, term == FORGET ? 1 : H / Hkv, 0);
  if (term == KEYED || term == SELECT_KEYED) add_keyed(m, wn_mechanism_write.score, 1, 2);
  if (term == SELECT_KEYED) add_keyed(m, wn_mechanism_fade.score, 1, 1);
  if (alibi || term == SOFTCAP)
    a->map[a->maps++] = (struct wn_score_map){.kind = wn_mechanism_softcap.score, .number = {2.5}};
  if (term == ALIBI_POSITIONS || term == KEYED) a->slots.at = m->positions;
  if (term == SINKS || term == GATE) a->sinks.n = 3, a->sinks.k = m->sink_k, a->sinks.v = m->sink_v;
  if (term == GATE || term == GATE_HEAD) {
    a->gate.on = true, a->gate.elementwise = term == GATE, a->gate.g = m->gates, a->gate.ungated = m->ungated;
    a->gate.s_g = (struct wn_stride){Tq * H * D, H * D, term == GATE ? D : 1};
  }
  if (term == GATE_HEAD) a->exclusive.on = true;
  if (term >= SELECT) {
    a->sel.on = a->sel.relu = a->sel.protect_first = a->sel.protect_self = a->sel.shift = true;
    a->sel.groups = G, a->sel.head = G > 1 ? (int)(H / Hkv) - 1 : (int)H - 1;
    a->sel.f_in = a->sel.f_out = m->f, a->sel.f_stride = Tk + 3;
  }
}
/* For the reference: the floats that the halves stand for. */
static void *floats_of(void *halves, int64_t n) {
  float *x = malloc((size_t)n * sizeof *x);
  assert_non_null(x);
  wn_gguf_decode(WN_GGUF_F16, halves, 0, n, x);
  free(halves);
  return x;
}
static void bench_widen(struct bench *m) {
  struct wn_attention *a = &m->a;
  if (!a->k_type) return;
  a->k_type = a->v_type = WN_GGUF_F32;
  a->k = m->k = floats_of(m->k, a->B * a->Hkv * a->Tk * a->D),
  a->v = m->v = floats_of(m->v, a->B * a->Hkv * a->Tk * a->D);
}
static void bench_clear(struct bench *m) {
  free(m->q), free(m->y), free(m->k), free(m->v), free(m->lse), free(m->dot), free(m->f), free(m->z);
  free(m->positions), free(m->evicted);
  free(m->sink_k), free(m->sink_v), free(m->gates), free(m->ungated), free(m->numbers);
}

static void run(const struct wn_backend *backend, const struct bench *m) {
  struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = 1, .dtype = WN_F32};
  e.scratch_bytes = wn_op_attention_scratch(&e, &m->a, false);
  e.scratch = aligned_alloc(64, e.scratch_bytes / 64 * 64 + 64);
  assert_non_null(e.scratch);
  memset(e.scratch, 0xff, e.scratch_bytes);
  assert_ok(ctx, wn_op_attention_forward(&e, &m->a));
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s", error);
  free(e.scratch);
}

static void near(const char *what, const void *got, const void *want, wn_dtype type, int64_t n, double limit) {
  for (int64_t i = 0; i < n; i++) {
    const double x = wn_number(got, i, type), y = wn_number(want, i, type);
    if (!(fabs(x - y) <= limit * fmax(1, fabs(y)))) fail_msg("%s[%lld]: %.9g, expected %.9g", what, (long long)i, x, y);
  }
}

static void same(const struct bench *x, const struct bench *y) {
  const struct wn_attention *a = &x->a;
  const int64_t rows = a->B * a->Tq * a->H;
  assert_memory_equal(x->y, y->y, (size_t)(rows * a->D) * (a->row_type == WN_BF16 ? 2 : 4));
  assert_memory_equal(x->lse, y->lse, (size_t)rows * sizeof(float));
  if (a->sel.on) assert_memory_equal(x->f, y->f, (size_t)(a->B * wn_selection_groups(a) * (a->Tk + 3)) * sizeof(float));
}

static void check(const struct shape *s, enum cache cache, enum term term, int orders) {
  struct bench want, got[3];
  bench_make(&want, s, cache, term);
  bench_widen(&want);
  run(wn_backend_ref(), &want);
  for (int i = 0; i < orders; i++) {
    bench_make(&got[i], s, cache, term);
    wn_emulate_seed((uint64_t)i * 7);
    const uint64_t before = wn_emulate_launches();
    run(cuda_halves(), &got[i]);
    if (wn_emulated()) assert_int_equal(wn_emulate_launches() - before, 2);
    same(&got[0], &got[i]);
  }
  const int64_t rows = s->B * s->Tq * s->H;
  const wn_dtype type = cache == BF16 ? WN_BF16 : WN_F32;
  near("y", got[0].y, want.y, type, rows * s->D, cache == BF16 ? 8e-3 : 3e-6);
  near("lse", got[0].lse, want.lse, WN_F32, rows, 3e-6);
  if (got[0].a.gate.on) near("ungated", got[0].ungated, want.ungated, WN_F32, rows * s->D, 3e-6);
  if (term == EXCLUSIVE) near("dot", got[0].dot, want.dot, WN_F32, rows, cache == BF16 ? 8e-3 : 3e-6);
  if (want.a.sel.on) near("F", got[0].f, want.f, WN_F32, s->B * wn_selection_groups(&want.a) * (s->Tk + 3), 3e-6);
  bench_clear(&want);
  for (int i = 0; i < orders; i++) bench_clear(&got[i]);
}

static bool goes_with(enum cache cache, enum term term) {
  return cache != HALVES || (term != STRIDED && term != EXCLUSIVE && term != GATE_HEAD);
}

/* Groups of 1 to 9 heads, widths that do not fill a warp, one key, and more than 64 splits of 64. */
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 8},    {2, 1, 130, 6, 2, 64}, {1, 1, 70, 9, 1, 33},  {3, 1, 203, 4, 4, 20},
    {1, 1, 65, 7, 1, 128}, {1, 1, 90, 16, 2, 96}, {2, 1, 100, 2, 1, 40},
};
static void test_shapes(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++)
    for (int cache = 0; cache < CACHES; cache++)
      check(&shapes[n], (enum cache)cache, n % 2 ? SELECT : NONE, 1 + (n < 2) * 2);
  check(&(struct shape){1, 1, 4200, 1, 1, 8}, HALVES, SELECT, 1);
}
static void test_terms(void **state) {
  (void)state;
  static const struct shape s = {3, 1, 203, 4, 2, 24};
  for (int cache = 0; cache < CACHES; cache++)
    for (int term = 0; term < TERMS; term++)
      if (goes_with((enum cache)cache, (enum term)term)) check(&s, (enum cache)cache, (enum term)term, 2);
}
static void test_rows(void **state) {
  (void)state;
  for (int term = 0; term < SELECT; term++) {
    check(&(struct shape){2, 3, 140, 4, 2, 16}, FLOATS, (enum term)term, 2);
    check(&(struct shape){1, 8, 71, 3, 1, 64}, BF16, (enum term)term, 1);
  }
  check(&(struct shape){1, 5, 5, 2, 2, 16}, FLOATS, NONE, 1);
}

/* The content of a key that no row sees does not matter. */
static void test_not_read(void **state) {
  (void)state;
  static const struct shape s = {2, 1, 203, 4, 2, 24};
  static const enum term terms[] = {EVICTED, DOCUMENTS, WINDOW};
  for (int n = 0; n < 3; n++) {
    struct bench m[2];
    for (int i = 0; i < 2; i++) {
      bench_make(&m[i], &s, FLOATS, terms[n]);
      int64_t unseen = 0;
      for (int64_t b = 0; b < s.B; b++)
        for (int64_t j = 0; j < s.Tk; j++) {
          const int64_t own = s.Tk - 1;
          const bool seen = terms[n] == EVICTED     ? m[i].evicted[b * s.Tk + j] > own
                            : terms[n] == DOCUMENTS ? j >= m[i].positions[b * s.Tk + own]
                                                    : own - j < 37;
          unseen += !seen;
          for (int64_t h = 0; h < s.Hkv && !seen && i; h++)
            for (int64_t d = 0; d < s.D; d++) {
              ((float *)m[i].k)[((b * s.Hkv + h) * s.Tk + j) * s.D + d] = NAN;
              ((float *)m[i].v)[((b * s.Hkv + h) * s.Tk + j) * s.D + d] = NAN;
            }
        }
      assert_true(unseen > 40);
      run(wn_backend_cuda_table(), &m[i]);
    }
    same(&m[0], &m[1]);
    bench_clear(&m[0]), bench_clear(&m[1]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_terms),
                                     cmocka_unit_test(test_rows), cmocka_unit_test(test_not_read)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
