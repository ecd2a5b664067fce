/* The fused cpu attention's terms other than selection, against the reference: forward, backward and decoding, alone
 * and together, with every instruction set of this machine. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "attention/registry.h"
#include "ops/attention.h"
#include "ops/isa_context.h"

enum {
  WINDOW = 1,
  STRIDED = 2,
  ROOT = 4,
  EXCLUSIVE = 8,
  GROUPS = 16,
  SELECT = 32,
  SPAN = 64,
  DYNAMIC = 128,
  ITSELF = 256,
  SINKS = 512,
  RELATIVE = 1024,
  DROP = 2048,
  THRESHOLD = 4096,
  DOCUMENTS = 8192,
  SEGMENT = 16384,
  DECODE = 32768,
  BIAS = 65536,
  LEAVE = 131072, /* hidden keys may be skipped */
  GONE = 262144
};

static uint64_t draws;
static int64_t shortest = 1; /* of a sequence */
static int64_t pick(uint64_t seed, int64_t n) {
  return (int64_t)wn_random_below(seed, WN_STREAM_TEST, 77, draws++, (uint64_t)n);
}

#define ARRAYS_MAX 48
static void *arrays[ARRAYS_MAX];
static int arrays_used;
static void *array(int64_t n, size_t size) {
  assert_true(arrays_used < ARRAYS_MAX);
  void *x = calloc((size_t)n, size);
  assert_non_null(x);
  return arrays[arrays_used++] = x;
}
static float *normal(int64_t n, uint64_t seed, uint64_t place) {
  float *x = array(n, sizeof *x);
  for (int64_t i = 0; i < n; i++) x[i] = (float)wn_random_normal(seed, WN_STREAM_TEST, place, (uint64_t)i);
  return x;
}

/* Gradients of M in one row of 37: in all rows, some F would be so near tau that rounding decides which side it is on.
 */
static float *few(int64_t n, uint64_t seed, uint64_t place) {
  float *x = normal(n, seed, place);
  for (int64_t i = 0; i < n; i++)
    if (i % 37) x[i] = 0;
  return x;
}

static void call(const struct wn_attention *a, int isa, int threads, bool backward) { /* isa -1: reference */
  struct wn_exec exec = {.ctx = ctx,
                         .backend = isa < 0 ? wn_backend_ref() : wn_backend_cpu((enum wn_isa)isa),
                         .threads = threads,
                         .dtype = WN_F32};
  exec.scratch_bytes = wn_op_attention_scratch(&exec, a, backward);
  exec.scratch = aligned_alloc(WN_ALIGN, (exec.scratch_bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN + WN_ALIGN);
  assert_non_null(exec.scratch);
  memset(exec.scratch, 0xff, exec.scratch_bytes);
  const wn_status status = backward ? wn_op_attention_backward(&exec, a) : wn_op_attention_forward(&exec, a);
  if (status != WN_OK) fail_msg("%s", wn_context_error(ctx));
  free(exec.scratch);
}

enum { OUTPUTS = 20 };
struct outputs {
  float *x[OUTPUTS];
  int64_t n[OUTPUTS];
};
static const char *const names[OUTPUTS] = {"y",   "lse",   "M",   "f_out", "dq",    "dk",       "dv",
                                           "dsq", "dsk",   "dot", "dgate", "dz",    "dsink k",  "dsink v",
                                           "dp",  "count", "F",   "cut",   "dbias", "dstrength"};

static void outputs_set(struct wn_attention *a, struct outputs *o) {
  const int64_t G = wn_selection_groups(a), q = a->B * a->Tq * a->H * a->D, k = a->B * a->Tk * a->Hkv * a->D;
  const int64_t rows = a->B * a->H * a->Tq, n[OUTPUTS] = {q,
                                                          rows,
                                                          a->B * G * a->Tq,
                                                          a->B * G * a->Tk,
                                                          q,
                                                          k,
                                                          k,
                                                          a->B * a->Tq * G * a->D,
                                                          a->B * a->Tk * G * a->D,
                                                          rows,
                                                          a->H,
                                                          rows,
                                                          a->Hkv * a->sinks.n * a->D + 1,
                                                          a->Hkv * a->sinks.n * a->D + 1,
                                                          a->relative.P * a->D + 1,
                                                          rows,
                                                          a->B * G * a->Tq * a->Tk,
                                                          4 * rows,
                                                          a->map[0].n * a->H + 1,
                                                          G};
  for (int i = 0; i < OUTPUTS; i++) {
    o->n[i] = n[i];
    if (!o->x[i]) o->x[i] = calloc((size_t)n[i], sizeof(float));
    assert_non_null(o->x[i]);
  }
  float **x = o->x;
  a->y = x[0], a->lse = x[1], a->sel.M = a->sel.mem ? x[2] : NULL, a->sel.f_out = a->sel.on ? x[3] : NULL;
  a->dq = x[4], a->dk = x[5], a->dv = x[6];
  if (a->sel.bilinear) a->dsq = x[7], a->dsk = x[8];
  a->exclusive.dot = x[9], a->exclusive.dgate = x[10], a->span.dz = x[11], a->sinks.dk = x[12], a->sinks.dv = x[13];
  a->relative.dp = x[14], a->threshold.count = (int32_t *)(void *)x[15],
  a->sel.F = a->sel.on && a->sel.dead_share == 0 ? x[16] : NULL;
  a->threshold.cut = (double *)(void *)x[17];
  if (a->maps > 0) a->map[0].dtheta = x[18];
  if (a->sel.strength) a->sel.dstrength = x[19];
}

static void outputs_free(struct outputs *o) {
  for (int i = 0; i < OUTPUTS; i++) free(o->x[i]);
}

/* A threshold's choice is discontinuous: moves tau until no row is within a few roundings of it. */
static void clear_of_steps(struct wn_attention *a) {
  const size_t bytes = (size_t)(a->B * a->H * a->Tq) * sizeof(int32_t);
  int32_t *below = malloc(bytes);
  assert_non_null(below);
  for (int tries = 0;; tries++) {
    assert_true(tries < 200);
    const double tau = a->threshold.tau, near = 1e-6;
    a->threshold.tau = tau * (1 - near);
    call(a, -1, 2, false);
    memcpy(below, a->threshold.count, bytes);
    a->threshold.tau = tau * (1 + near);
    call(a, -1, 2, false);
    a->threshold.tau = tau;
    if (memcmp(below, a->threshold.count, bytes) == 0) break;
    a->threshold.tau = tau * 0.999;
  }
  free(below);
}

/* Calls whose bits differ from those with all keys, which shows that some were skipped. */
static int left_out;
static void count_left_out(const struct wn_attention *a, const float *y) {
  struct outputs all = {{0}, {0}};
  struct wn_attention b = *a;
  b.sel.dead_share = 0;
  outputs_set(&b, &all);
  b.sel.F = NULL;
  call(&b, (int)best, 3, false);
  left_out += memcmp(y, all.x[0], (size_t)all.n[0] * sizeof(float)) != 0;
  outputs_free(&all);
}

static void run_case(uint64_t seed, unsigned terms, int64_t longest) {
  static const int64_t heads[][2] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}, {6, 3}, {4, 4}};
  static const int64_t sizes[] = {8, 16, 24, 64, 33, 80, 128, 48};
  draws = 0;
  const int64_t *of = heads[pick(seed, 6)];
  struct wn_attention a = {.B = 1 + pick(seed, 3),
                           .H = of[0],
                           .Hkv = of[1],
                           .D = sizes[pick(seed, terms & LEAVE ? 3 : 8)],
                           .Tk = shortest + pick(seed, longest - shortest + 1)};
  const int64_t H = a.H, D = a.D;
  a.Tq = terms & DECODE ? 1 : terms & SEGMENT ? 1 + pick(seed, a.Tk) : a.Tk;
  a.scale = 1 / sqrt((double)D);
  a.s_q = a.s_y = (struct wn_stride){a.Tq * H * D, H * D, D};
  a.s_k = a.s_v = (struct wn_stride){a.Tk * a.Hkv * D, a.Hkv * D, D};
  a.q = normal(a.B * a.Tq * H * D, seed, 1);
  a.k = normal(a.B * a.Tk * a.Hkv * D, seed, 2);
  a.v = normal(a.B * a.Tk * a.Hkv * D, seed, 3);
  a.dy = normal(a.B * a.Tq * H * D, seed, 4);
  if (terms & DOCUMENTS) {
    int32_t *doc = array(a.B * a.Tk, sizeof *doc);
    for (int64_t b = 0; b < a.B; b++)
      for (int64_t t = 0, start = 0; t < a.Tk; t++) {
        if (pick(seed, 40) == 0) start = t;
        doc[b * a.Tk + t] = (int32_t)start;
      }
    a.doc_start = doc;
  }
  if (terms & WINDOW) a.window = 1 + pick(seed, 2 * a.Tk);
  if (terms & STRIDED) a.strided = 1 + pick(seed, 20);
  if (terms & ROOT) a.root.on = true, a.root.buffer = 1 + pick(seed, 9), a.root.density = pick(seed, 2) ? 1 : 1.7;
  if (terms & (SELECT | GROUPS)) {
    a.sel.on = true;
    a.sel.groups = terms & GROUPS ? a.Hkv : 1;
    const int64_t G = a.sel.groups;
    a.sel.head = (int)pick(seed, H / G);
    a.sel.relu = pick(seed, 4) > 0, a.sel.protect_first = pick(seed, 3) > 0, a.sel.protect_self = pick(seed, 3) > 0;
    a.sel.shift = pick(seed, 3) > 0, a.sel.bilinear = pick(seed, 3) == 0, a.sel.mem = pick(seed, 2);
    a.sel.mem_tau = 1.5, a.sel.dM = a.sel.mem ? few(a.B * G * a.Tq, seed, 15) : NULL;
    if (a.sel.bilinear) {
      a.sel.sq = normal(a.B * a.Tq * G * D, seed, 5), a.sel.sk = normal(a.B * a.Tk * G * D, seed, 6);
      a.sel.s_sq = (struct wn_stride){a.Tq * G * D, G * D, D}, a.sel.s_sk = (struct wn_stride){a.Tk * G * D, G * D, D};
    }
    if (a.Tq < a.Tk) {
      float *f = normal(a.B * G * a.Tk, seed, 7);
      for (int64_t i = 0; i < a.B * G * a.Tk; i++) f[i] = fabsf(f[i]);
      a.sel.f_in = f;
    }
  }
  if (terms & LEAVE) {
    a.sel.dead_share = 0x1p-24;
    a.sel.relu = pick(seed, 8) > 0;
    if (pick(seed, 4) > 0) {
      float *strength = normal(wn_selection_groups(&a), seed, 14);
      for (int64_t g = 0; g < wn_selection_groups(&a); g++) strength[g] = 0.5f * fabsf(strength[g]) + 1;
      if (pick(seed, 8) == 0) strength[0] = -0.5f;
      a.sel.strength = strength;
    }
  }
  if (terms & GONE) {
    int32_t *evicted_at = array(a.B * a.Tk, sizeof *evicted_at);
    for (int64_t i = 0; i < a.B * a.Tk; i++)
      evicted_at[i] = pick(seed, 2) ? INT32_MAX : (int32_t)(i % a.Tk + 1 + pick(seed, a.Tk));
    a.slots.evicted_at = evicted_at;
  }
  if (terms & SEGMENT) a.dk_from = pick(seed, a.Tk - a.Tq + 1);
  if (terms & EXCLUSIVE) {
    a.exclusive.on = true;
    if (pick(seed, 2)) a.exclusive.gate = normal(H, seed, 8);
  }
  if (terms & (SPAN | ITSELF)) {
    a.span.on = true, a.span.dynamic = terms & DYNAMIC, a.span.exclude_self = terms & ITSELF;
    a.span.limit = (double)(2 + pick(seed, 150)), a.span.ramp = (double)(1 + pick(seed, 40));
    float *z = normal(a.B * a.Tq * H, seed, 9);
    for (int64_t i = 0; i < a.B * a.Tq * H; i++) z[i] = fminf(fabsf(z[i]) * 0.5f, 1);
    a.span.z = z;
    a.span.s_z = (struct wn_stride){a.Tq * H, H, 1};
  }
  if (terms & RELATIVE) a.relative.P = a.Tk + pick(seed, 3), a.relative.p = normal(a.relative.P * D, seed, 10);
  if (terms & BIAS) {
    const int64_t n = 4 + 2 * pick(seed, 8);
    a.map[a.maps++] = (struct wn_score_map){
        .kind = wn_mechanism_buckets.score, .number = {30}, .n = n, .stride = H, .theta = normal(n * H, seed, 13)};
  }
  if (terms & SINKS) {
    a.sinks.n = pick(seed, 5) ? 1 + pick(seed, 4) : 1 + pick(seed, 80);
    a.sinks.k = normal(a.Hkv * a.sinks.n * D, seed, 11), a.sinks.v = normal(a.Hkv * a.sinks.n * D, seed, 12);
  }
  if (terms & DROP) a.dropout.p = 0.3, a.dropout.seed = seed, a.dropout.stream = 5;
  if (terms & THRESHOLD) {
    a.threshold.on = true, a.threshold.tau = 0.8;
    if (pick(seed, 2)) {
      uint8_t *control = array(a.B * a.Tk, 1);
      for (int64_t i = 0; i < a.B * a.Tk; i++) control[i] = pick(seed, 6) == 0;
      a.threshold.control = control;
    }
  }
  struct outputs expected = {{0}, {0}};
  outputs_set(&a, &expected);
  if (terms & THRESHOLD) clear_of_steps(&a);
  call(&a, -1, 2, false);
  if (!(terms & DECODE)) call(&a, -1, 2, true);
  for (int isa = WN_ISA_AVX2; isa <= (int)best; isa++)
    for (int threads = 1; threads <= 3; threads += 2) {
      struct outputs got = {{0}, {0}};
      outputs_set(&a, &got);
      call(&a, isa, threads, false);
      if (!(terms & DECODE)) call(&a, isa, threads, true);
      if (terms & LEAVE && isa == (int)best && threads == 3) count_left_out(&a, got.x[0]);
      for (int i = 0; i < OUTPUTS; i++) {
        if (!strcmp(names[i], "cut")) continue; /* internal to a backend */
        if (!strcmp(names[i], "count")) {
          if (memcmp(expected.x[i], got.x[i], (size_t)got.n[i] * sizeof(float))) fail_msg("counts differ: %#x", terms);
          continue;
        }
        double difference = 0, norm = 0;
        for (int64_t n = 0; n < got.n[i]; n++) {
          const double x = (double)expected.x[i][n], y = (double)got.x[i][n];
          if (isinf(x) && x == y) continue;
          difference += (x - y) * (x - y), norm += x * x;
        }
        /* dstrength is a single sum over all pairs, which mostly cancel. F in the hundreds has roundings of its own. */
        const bool one = !strcmp(names[i], "dstrength");
        const double each = one ? 5e-5 : terms & LEAVE ? 2e-5 : 5e-6;
        if (!(sqrt(difference) <= each * sqrt(norm) + (one ? 1e-3 : 2e-6) * sqrt((double)got.n[i])))
          fail_msg("%s is off by %.3g of its norm %.3g: terms %#x seed %llu isa %s threads %d B %lld Tq %lld Tk %lld "
                   "H %lld Hkv %lld D %lld",
                   names[i], sqrt(difference / (norm > 0 ? norm : 1)), sqrt(norm), terms, (unsigned long long)seed,
                   wn_isa_name((enum wn_isa)isa), threads, (long long)a.B, (long long)a.Tq, (long long)a.Tk,
                   (long long)H, (long long)a.Hkv, (long long)D);
      }
      outputs_free(&got);
    }
  outputs_free(&expected);
  while (arrays_used > 0) free(arrays[--arrays_used]);
}

/* A term alone; with selection; for rows after cached keys; in decoding; in documents. */
static void run_term(uint64_t seed, unsigned term) {
  static const unsigned with[] = {0, SELECT, SEGMENT, SELECT | SEGMENT, DECODE, SELECT | DECODE, SELECT | DOCUMENTS};
  for (size_t i = 0; i < sizeof with / sizeof *with; i++)
    for (uint64_t n = 0; n < 2; n++) run_case(seed + 10 * i + n, term | with[i], i == 1 && n == 1 ? 300 : 100);
}

static void nothing(void **unused) {
  (void)unused;
  run_term(100, 0);
}
static void window(void **unused) {
  (void)unused;
  run_term(200, WINDOW);
}
static void strided(void **unused) {
  (void)unused;
  run_term(300, STRIDED);
}
static void square_root(void **unused) {
  (void)unused;
  run_term(400, ROOT);
  run_term(450, ROOT | WINDOW);
}
/* Rows so long that sparse keep rules process keys by distance (cpu/attention/sparse.h), with everything that can occur
 * in such rows. */
static void apart(void **unused) {
  (void)unused;
  static const unsigned with[] = {0,
                                  SELECT,
                                  GROUPS | SEGMENT,
                                  SELECT | DOCUMENTS,
                                  RELATIVE | SINKS | EXCLUSIVE,
                                  WINDOW | SEGMENT | DOCUMENTS,
                                  SELECT | RELATIVE,
                                  DECODE | SELECT | RELATIVE | SINKS,
                                  DECODE | DOCUMENTS | WINDOW | GROUPS,
                                  DROP | SPAN,
                                  BIAS | SELECT | DOCUMENTS,
                                  BIAS | DECODE | GROUPS};
  static const unsigned rules[] = {ROOT, STRIDED, ROOT | STRIDED};
  shortest = 140;
  for (size_t i = 0; i < sizeof with / sizeof *with; i++) run_case(2000 + i, with[i] | rules[i % 3], 240);
  shortest = 1;
}
static void exclusive(void **unused) {
  (void)unused;
  run_term(500, EXCLUSIVE);
  run_term(550, EXCLUSIVE | WINDOW);
}
static void selection_groups(void **unused) {
  (void)unused;
  run_term(600, GROUPS);
  run_term(650, GROUPS | WINDOW | EXCLUSIVE);
}

static void spans(void **unused) {
  (void)unused;
  run_term(700, SPAN);
  run_term(720, SPAN | DYNAMIC);
  run_term(740, SPAN | DYNAMIC | ITSELF | EXCLUSIVE);
}
static void sinks(void **unused) {
  (void)unused;
  run_term(800, SINKS);
  run_term(850, SINKS | EXCLUSIVE | ITSELF | WINDOW);
}
static void weight_dropout(void **unused) {
  (void)unused;
  run_term(900, DROP);
  run_term(950, DROP | SINKS | EXCLUSIVE | SPAN);
}

static void relative_positions(void **unused) {
  (void)unused;
  run_term(1000, RELATIVE);
  run_term(1050, RELATIVE | SINKS | SPAN | GROUPS);
}

static void position_biases(void **unused) {
  (void)unused;
  run_term(1250, BIAS);
}

static void thresholds(void **unused) {
  (void)unused;
  run_term(1100, THRESHOLD);
  run_term(1120, THRESHOLD | WINDOW | SINKS | EXCLUSIVE);
  run_term(1140, THRESHOLD | SPAN | DYNAMIC | ITSELF | RELATIVE | GROUPS);
  run_term(1160, THRESHOLD | DROP);
}

/* Hidden keys are skipped: with features that allow it, and with those that do not. */
static void keys_left_out(void **unused) {
  (void)unused;
  static const unsigned with[] = {SELECT,
                                  GROUPS,
                                  SELECT | DOCUMENTS,
                                  SELECT | SEGMENT,
                                  GROUPS | SEGMENT | SINKS,
                                  SELECT | GONE,
                                  SELECT | GONE | DOCUMENTS | EXCLUSIVE,
                                  SELECT | SINKS | EXCLUSIVE,
                                  GROUPS | DOCUMENTS | EXCLUSIVE | SINKS};
  static const unsigned without[] = {SELECT | WINDOW | GONE, SELECT | SPAN | SINKS, GROUPS | RELATIVE,
                                     SELECT | DROP,          SELECT | THRESHOLD,    SELECT | BIAS | DOCUMENTS,
                                     SELECT | ROOT,          SELECT | DECODE};
  shortest = 300, left_out = 0;
  for (uint64_t n = 0; n < 3; n++)
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) run_case(3000 + 10 * i + n, with[i] | LEAVE, 400);
  assert_true(left_out > 8);
  left_out = 0;
  for (size_t i = 0; i < sizeof without / sizeof *without; i++) run_case(3200 + i, without[i] | LEAVE, 300);
  assert_int_equal(left_out, 0);
  shortest = 1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing),         cmocka_unit_test(window),
      cmocka_unit_test(strided),         cmocka_unit_test(square_root),
      cmocka_unit_test(exclusive),       cmocka_unit_test(selection_groups),
      cmocka_unit_test(spans),           cmocka_unit_test(sinks),
      cmocka_unit_test(weight_dropout),  cmocka_unit_test(relative_positions),
      cmocka_unit_test(thresholds),      cmocka_unit_test(apart),
      cmocka_unit_test(position_biases), cmocka_unit_test(keys_left_out),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
