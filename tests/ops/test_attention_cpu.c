/* The cpu backend's fused attention against the reference: forward, backward, chunked prefill and decoding, with every
 * instruction set of this machine, for many shapes, strides, groupings, documents and all options of selection. */
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
#include "ops/attention.h"
#include "ops/isa_context.h"

/* --- a case: shape and options, inputs, and one backend's results --- */

struct shape {
  int64_t B, Tq, Tk, H, Hkv, D;
  bool fused_strides; /* q, k, v interleaved, as a fused projection gives them */
  bool documents, select, relu, protect_first, protect_self, shift, bilinear, mem, leave_out;
  int head;
  uint64_t seed;
};

struct result {
  float *y, *lse, *F, *M, *f_out, *dq, *dk, *dv, *dsq, *dsk;
};

struct data {
  struct shape s;
  struct wn_attention a; /* the inputs, and the current run's outputs */
  float *qkv, *sq, *sk, *dy, *dM;
  int32_t *doc;
};

static uint64_t counter;
static int64_t pick(uint64_t seed, int64_t n) {
  uint64_t x = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15) + ++counter * UINT64_C(0xD1B54A32D192ED03);
  x ^= x >> 29;
  x *= UINT64_C(0xBF58476D1CE4E5B9);
  return (int64_t)((x >> 33) % (uint64_t)n);
}

static int64_t least(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static float *normal(int64_t n, uint64_t seed, uint64_t place, double scale) {
  float *x = malloc((size_t)n * sizeof *x);
  assert_non_null(x);
  for (int64_t i = 0; i < n; i++) x[i] = (float)(scale * wn_random_normal(seed, WN_STREAM_TEST, place, (uint64_t)i));
  return x;
}

static void data_init(struct data *d, const struct shape *s) {
  memset(d, 0, sizeof *d);
  d->s = *s;
  const int64_t B = s->B, Tq = s->Tq, Tk = s->Tk, H = s->H, Hkv = s->Hkv, D = s->D;
  struct wn_attention *a = &d->a;
  *a = (struct wn_attention){.B = B, .Tq = Tq, .Tk = Tk, .H = H, .Hkv = Hkv, .D = D, .scale = 1.0 / sqrt((double)D)};
  const int64_t row = s->fused_strides ? (H + 2 * Hkv) * D : 0;
  a->s_q = row ? (struct wn_stride){Tk * row, row, D} : (struct wn_stride){Tk * H * D, D, Tk * D};
  a->s_k = row ? a->s_q : (struct wn_stride){Tk * Hkv * D, D, Tk * D};
  a->s_v = a->s_k;
  a->s_y = (struct wn_stride){Tq * H * D, H * D, D};
  d->qkv = normal(B * Tk * (H + 2 * Hkv) * D, s->seed, 1, 1.0);
  /* Queries are the last Tq rows of the whole q. */
  a->q = d->qkv + (Tk - Tq) * a->s_q.t;
  a->k = d->qkv + (row ? H * D : B * Tk * H * D);
  a->v = d->qkv + (row ? (H + Hkv) * D : B * Tk * (H + Hkv) * D);
  d->dy = normal(B * Tq * H * D, s->seed, 2, 1.0);
  if (s->documents) {
    d->doc = malloc((size_t)(B * Tk) * sizeof *d->doc);
    assert_non_null(d->doc);
    for (int64_t b = 0; b < B; b++)
      for (int64_t t = 0, start = 0; t < Tk; t++) {
        if (pick(s->seed, 60) == 0) start = t;
        d->doc[b * Tk + t] = (int32_t)start;
      }
    a->doc_start = d->doc;
  }
  if (!s->select) return;
  a->sel.on = true;
  a->sel.relu = s->relu;
  a->sel.protect_first = s->protect_first;
  a->sel.protect_self = s->protect_self;
  a->sel.shift = s->shift;
  a->sel.bilinear = s->bilinear;
  a->sel.head = s->head;
  a->sel.mem = s->mem;
  a->sel.mem_tau = 1.5;
  a->sel.dead_share = s->leave_out ? 0x1p-24 : 0;
  d->dM = normal(B * Tq, s->seed, 5, 0.3);
  /* One row in 37: with all rows, some F would be so near tau that rounding decides which side it is on. */
  for (int64_t i = 0; i < B * Tq; i++)
    if (i % 37) d->dM[i] = 0;
  a->sel.dM = s->mem ? d->dM : NULL;
  d->sq = normal(B * Tk * D, s->seed, 3, 1.0);
  d->sk = normal(B * Tk * D, s->seed, 4, 1.0);
  a->sel.s_sq = a->sel.s_sk = (struct wn_stride){Tk * D, D, 0};
  a->sel.sq = d->sq + (Tk - Tq) * D;
  a->sel.sk = d->sk;
}

static void data_clear(struct data *d) {
  free(d->qkv);
  free(d->dy);
  free(d->doc);
  free(d->dM);
  free(d->sq);
  free(d->sk);
}

static float *zeros(int64_t n) {
  float *x = calloc((size_t)n, sizeof *x);
  assert_non_null(x);
  return x;
}

static void result_init(struct result *r, const struct shape *s) {
  const int64_t wide = s->B * s->Tk * (s->H + 2 * s->Hkv) * s->D; /* gradients have the inputs' strides */
  r->y = zeros(s->B * s->Tq * s->H * s->D);
  r->lse = zeros(s->B * s->H * s->Tq);
  r->F = zeros(s->B * s->Tq * s->Tk);
  r->M = zeros(s->B * s->Tq);
  r->f_out = zeros(s->B * s->Tk);
  r->dq = zeros(wide);
  r->dk = zeros(wide);
  r->dv = zeros(wide);
  r->dsq = zeros(s->B * s->Tk * s->D);
  r->dsk = zeros(s->B * s->Tk * s->D);
}

static void result_clear(struct result *r) {
  float *all[] = {r->y, r->lse, r->F, r->M, r->f_out, r->dq, r->dk, r->dv, r->dsq, r->dsk};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static bool scarce; /* scratch only as for a call with all keys */
static void call(const struct wn_attention *a, int isa, int threads, bool backward) { /* isa -1: reference */
  struct wn_exec exec = {.ctx = ctx,
                         .backend = isa < 0 ? wn_backend_ref() : wn_backend_cpu((enum wn_isa)isa),
                         .threads = threads,
                         .dtype = WN_F32};
  struct wn_attention measured = *a;
  if (scarce) measured.sel.dead_share = 0;
  exec.scratch_bytes = wn_op_attention_scratch(&exec, &measured, backward);
  /* Exactly the size requested, at the end of the allocation, so that the address sanitizer detects an overrun. Filled
   * with NaN, since its content must not matter. */
  exec.scratch = aligned_alloc(WN_ALIGN, (exec.scratch_bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN + WN_ALIGN);
  assert_non_null(exec.scratch);
  memset(exec.scratch, 0xff, exec.scratch_bytes);
  wn_status status = backward ? wn_op_attention_backward(&exec, a) : wn_op_attention_forward(&exec, a);
  if (status != WN_OK) fail_msg("%s", wn_context_error(ctx));
  free(exec.scratch);
}

static void run(const struct data *d, int isa, int threads, bool backward, bool inspect, struct result *r) {
  struct wn_attention a = d->a;
  a.y = r->y;
  a.lse = r->lse;
  if (a.sel.on) {
    a.sel.F = inspect ? r->F : NULL;
    a.sel.M = a.sel.mem ? r->M : NULL;
    a.sel.f_out = r->f_out;
  }
  call(&a, isa, threads, false);
  if (!backward) return;
  a.dy = d->dy;
  a.dq = r->dq;
  /* In a fused array the three gradients share a row. Here each has its own array with the same strides. */
  a.dk = r->dk;
  a.dv = r->dv;
  if (a.sel.bilinear) a.dsq = r->dsq, a.dsk = r->dsk;
  call(&a, isa, threads, true);
}

static char label[400];
static const char *describe(const struct shape *s, int isa, int threads) {
  snprintf(label, sizeof label,
           "isa %s threads %d B %lld Tq %lld Tk %lld H %lld Hkv %lld D %lld fused %d docs %d sel %d relu %d first %d "
           "self %d shift %d bilinear %d mem %d head %d seed %llu",
           wn_isa_name((enum wn_isa)isa), threads, (long long)s->B, (long long)s->Tq, (long long)s->Tk, (long long)s->H,
           (long long)s->Hkv, (long long)s->D, s->fused_strides, s->documents, s->select, s->relu, s->protect_first,
           s->protect_self, s->shift, s->bilinear, s->mem, s->head, (unsigned long long)s->seed);
  return label;
}

/* The norm of the difference relative to the reference's norm. Where the reference cancels to nothing, an absolute
 * limit holds. */
static void near(const char *what, const float *expected, const float *found, int64_t n, double tolerance) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = (double)expected[i] - (double)found[i];
    difference += d * d;
    norm += (double)expected[i] * (double)expected[i];
  }
  if (!(sqrt(difference) <= tolerance * sqrt(norm) + 1e-6 * sqrt((double)n)))
    fail_msg("%s is off by %.3g of its norm %.3g: %s", what, sqrt(difference / (norm > 0 ? norm : 1)), sqrt(norm),
             label);
}

static const double TOLERANCE = 2e-6;

static void compare(const struct shape *s, const struct result *x, const struct result *y, bool backward,
                    bool inspect) {
  const int64_t wide = s->B * s->Tk * (s->H + 2 * s->Hkv) * s->D;
  near("y", x->y, y->y, s->B * s->Tq * s->H * s->D, TOLERANCE);
  near("lse", x->lse, y->lse, s->B * s->H * s->Tq, TOLERANCE);
  if (s->select) {
    if (inspect) near("F", x->F, y->F, s->B * s->Tq * s->Tk, TOLERANCE);
    near("f_out", x->f_out, y->f_out, s->B * s->Tk, TOLERANCE);
    if (s->mem) near("M", x->M, y->M, s->B * s->Tq, TOLERANCE);
  }
  if (!backward) return;
  near("dq", x->dq, y->dq, wide, 2 * TOLERANCE);
  near("dk", x->dk, y->dk, wide, 2 * TOLERANCE);
  near("dv", x->dv, y->dv, wide, 2 * TOLERANCE);
  if (s->select && s->bilinear) {
    near("dsq", x->dsq, y->dsq, s->B * s->Tk * s->D, 2 * TOLERANCE);
    near("dsk", x->dsk, y->dsk, s->B * s->Tk * s->D, 2 * TOLERANCE);
  }
}

static void against_reference(const struct shape *s, bool inspect) {
  struct data d;
  struct result expected, found;
  const bool backward = s->Tq == s->Tk;
  data_init(&d, s);
  result_init(&expected, s);
  run(&d, -1, 2, backward, inspect, &expected);
  for (int isa = WN_ISA_AVX2; isa <= (int)best; isa++)
    for (int threads = 1; threads <= 3; threads++) {
      result_init(&found, s);
      run(&d, isa, threads, backward, inspect, &found);
      describe(s, isa, threads);
      compare(s, &expected, &found, backward, inspect);
      result_clear(&found);
    }
  result_clear(&expected);
  data_clear(&d);
}

/* --- tests --- */

static struct shape random_shape(uint64_t seed, int64_t longest) {
  static const int64_t groups[][2] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}, {6, 3}, {3, 3}};
  static const int64_t sizes[] = {8, 16, 24, 64, 33, 80, 128, 48, 1, 72};
  const int64_t *g = groups[pick(seed, 6)];
  struct shape s = {.seed = seed,
                    .B = 1 + pick(seed, 3),
                    .H = g[0],
                    .Hkv = g[1],
                    .D = sizes[pick(seed, 10)],
                    .Tk = 1 + pick(seed, longest),
                    .fused_strides = pick(seed, 2),
                    .documents = pick(seed, 3) == 0,
                    .select = pick(seed, 4) > 0,
                    .relu = pick(seed, 4) > 0,
                    .protect_first = pick(seed, 3) > 0,
                    .protect_self = pick(seed, 3) > 0,
                    .shift = pick(seed, 3) > 0,
                    .bilinear = pick(seed, 3) == 0,
                    .mem = pick(seed, 2)};
  s.Tq = s.Tk;
  s.head = (int)pick(seed, s.H);
  return s;
}

static void whole_sequences(void **unused) {
  (void)unused;
  for (uint64_t seed = 0; seed < 40; seed++) {
    struct shape s = random_shape(seed, seed < 30 ? 90 : 300);
    against_reference(&s, seed % 2);
  }
}

/* Enough keys and values for several blocks of rows or columns to be processed together. */
static void wide_heads(void **unused) {
  (void)unused;
  struct shape s = {.B = 1,
                    .Tq = 130,
                    .Tk = 130,
                    .H = 8,
                    .Hkv = 8,
                    .D = 1024,
                    .select = true,
                    .relu = true,
                    .protect_first = true,
                    .protect_self = true,
                    .shift = true,
                    .mem = true,
                    .head = 3,
                    .seed = 400};
  against_reference(&s, false);
}

/* Selections that soon hide keys: results agree with the reference, which uses all keys, but their bits differ from a
 * run with all keys, which shows that some were skipped. Documents start inside tiles and span several. */
static void keys_left_out(void **unused) {
  (void)unused;
  int different = 0;
  for (uint64_t seed = 500; seed < 524; seed++) {
    struct shape s = random_shape(seed, 90);
    s.Tk = s.Tq = 200 + pick(seed, 230);
    s.B = 1 + pick(seed, 2);
    s.select = s.relu = s.leave_out = true;
    if (s.D == 1 || s.D == 128) s.D = 40;
    struct data d;
    struct result all, expected, found;
    data_init(&d, &s);
    for (int64_t i = 0, n = s.B * s.Tk; d.doc && i < n; i++) d.doc[i] = i % s.Tk < 150 ? 0 : i % s.Tk < 170 ? 150 : 170;
    result_init(&expected, &s);
    run(&d, -1, 2, true, false, &expected);
    d.a.sel.dead_share = 0;
    result_init(&all, &s);
    run(&d, (int)best, 1, true, false, &all);
    d.a.sel.dead_share = 0x1p-24;
    for (int isa = WN_ISA_AVX2; isa <= (int)best; isa++)
      for (int threads = 1; threads <= 3; threads++) {
        result_init(&found, &s);
        run(&d, isa, threads, true, false, &found);
        describe(&s, isa, threads);
        compare(&s, &expected, &found, true, false);
        if (isa == (int)best && threads == 1) {
          const size_t bytes = (size_t)(s.B * s.Tq * s.H * s.D) * sizeof(float);
          different += memcmp(all.y, found.y, bytes) != 0;
          if (s.protect_self || s.shift) /* the caller goes on with the selections */
            assert_memory_equal(all.f_out, found.f_out, (size_t)(s.B * s.Tk) * sizeof(float));
        }
        result_clear(&found);
      }
    result_clear(&expected);
    result_clear(&all);
    data_clear(&d);
  }
  assert_true(different > 12);
}

static void lengths_around_tiles(void **unused) {
  (void)unused;
  static const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 193};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    struct shape s = {.B = 1,
                      .Tq = lengths[i],
                      .Tk = lengths[i],
                      .H = 2,
                      .Hkv = 2,
                      .D = 16,
                      .select = true,
                      .relu = true,
                      .protect_first = true,
                      .protect_self = true,
                      .shift = true,
                      .mem = true,
                      .seed = 100 + i};
    against_reference(&s, true);
    s.select = false;
    against_reference(&s, false);
  }
}

/* Scratch measured for a call with all keys suffices for a call that may skip some; it then skips none. */
static void scarce_scratch(void **unused) {
  (void)unused;
  struct shape s = random_shape(540, 90);
  s.B = 2, s.H = s.Hkv = 2, s.Tk = s.Tq = 400, s.D = 16;
  s.select = s.relu = s.shift = true;
  struct data d;
  struct result all, found;
  data_init(&d, &s);
  for (int threads = 1; threads <= 3; threads++) {
    result_init(&all, &s);
    result_init(&found, &s);
    d.a.sel.dead_share = 0;
    run(&d, (int)best, threads, true, false, &all);
    d.a.sel.dead_share = 0x1p-24;
    scarce = true;
    run(&d, (int)best, threads, true, false, &found);
    scarce = false;
    assert_memory_equal(all.y, found.y, (size_t)(s.B * s.Tq * s.H * s.D) * sizeof(float));
    assert_memory_equal(all.dq, found.dq, (size_t)(s.B * s.Tq * s.H * s.D) * sizeof(float));
    result_clear(&all);
    result_clear(&found);
  }
  data_clear(&d);
}

/* The last rows alone, called as in a session's prefill and decoding, give the last rows of the whole. */
static void chunks_agree(void **unused) {
  (void)unused;
  for (uint64_t seed = 200; seed < 214; seed++) {
    struct shape s = random_shape(seed, 280);
    struct data d;
    struct result whole, part;
    data_init(&d, &s);
    for (int isa = WN_ISA_AVX2; isa <= (int)best; isa++) {
      result_init(&whole, &s);
      run(&d, isa, 2, false, true, &whole);
      float *carry = zeros(s.B * s.Tk), *next = zeros(s.B * s.Tk);
      for (int64_t done = 0; done < s.Tk;) {
        const int64_t step = pick(seed, 2) ? 1 : least(1 + pick(seed, 150), s.Tk - done), Tk = done + step;
        result_init(&part, &s);
        struct wn_attention a = d.a;
        a.Tq = step;
        a.Tk = Tk;
        a.q = (const float *)d.a.q + done * a.s_q.t;
        a.y = part.y;
        a.s_y.b = step * s.H * s.D;
        a.lse = part.lse;
        int32_t *doc = d.doc ? malloc((size_t)(s.B * Tk) * sizeof *doc) : NULL;
        for (int64_t b = 0; doc && b < s.B; b++) memcpy(doc + b * Tk, d.doc + b * s.Tk, (size_t)Tk * sizeof *doc);
        a.doc_start = doc;
        if (s.select) {
          a.sel.sq = (const float *)d.a.sel.sq + done * s.D;
          a.sel.f_in = a.sel.f_out = next; /* [B,Tk] of this step, in place */
          for (int64_t b = 0; b < s.B; b++)
            for (int64_t j = 0; j < Tk; j++) next[b * Tk + j] = j < done ? carry[b * s.Tk + j] : 0;
          a.sel.F = part.F;
          if (s.mem) a.sel.M = part.M;
        }
        call(&a, isa, 2, false);
        describe(&s, isa, 2);
        for (int64_t b = 0; b < s.B; b++) {
          near("y of a chunk", whole.y + b * s.Tk * s.H * s.D + done * s.H * s.D, part.y + b * step * s.H * s.D,
               step * s.H * s.D, TOLERANCE);
          for (int64_t h = 0; h < s.H; h++)
            near("lse of a chunk", whole.lse + (b * s.H + h) * s.Tk + done, part.lse + (b * s.H + h) * step, step,
                 TOLERANCE);
          if (!s.select) continue;
          for (int64_t i = 0; i < step; i++)
            near("F of a chunk", whole.F + (b * s.Tk + done + i) * s.Tk, part.F + (b * step + i) * Tk, Tk, TOLERANCE);
          if (s.mem) near("M of a chunk", whole.M + b * s.Tk + done, part.M + b * step, step, TOLERANCE);
          for (int64_t j = 0; j < Tk; j++) carry[b * s.Tk + j] = next[b * Tk + j];
        }
        free(doc);
        done = Tk;
        result_clear(&part);
      }
      if (s.select) near("F after the last chunk", whole.f_out, carry, s.B * s.Tk, TOLERANCE);
      free(carry);
      free(next);
      result_clear(&whole);
    }
    data_clear(&d);
  }
}

/* Forward results do not depend on the number of threads. Backward results are the same in every run. */
static void runs_repeat(void **unused) {
  (void)unused;
  struct shape s = {.B = 1,
                    .Tq = 290,
                    .Tk = 290,
                    .H = 2,
                    .Hkv = 2,
                    .D = 24,
                    .select = true,
                    .relu = true,
                    .protect_first = true,
                    .protect_self = true,
                    .shift = true,
                    .mem = true,
                    .seed = 7};
  struct data d;
  data_init(&d, &s);
  struct result one, two;
  result_init(&one, &s);
  result_init(&two, &s);
  run(&d, (int)best, 1, false, false, &one);
  run(&d, (int)best, 2, true, false, &two);
  assert_memory_equal(one.y, two.y, (size_t)(s.Tq * s.H * s.D) * sizeof(float));
  assert_memory_equal(one.f_out, two.f_out, (size_t)s.Tk * sizeof(float));
  run(&d, (int)best, 2, true, false, &one);
  assert_memory_equal(one.dq, two.dq, (size_t)(s.Tq * s.H * s.D) * sizeof(float));
  assert_memory_equal(one.dk, two.dk, (size_t)(s.Tq * s.H * s.D) * sizeof(float));
  result_clear(&one);
  result_clear(&two);
  data_clear(&d);
}

/* Forward and backward with every instruction set, each compared with the reference. */
static void on_each_isa(const struct data *d, void (*check)(const struct shape *s, const struct result *expected,
                                                            const struct result *found)) {
  struct result expected, found;
  result_init(&expected, &d->s);
  run(d, -1, 2, true, false, &expected);
  for (int isa = WN_ISA_AVX2; isa <= (int)best; isa++) {
    result_init(&found, &d->s);
    run(d, isa, 2, true, false, &found);
    describe(&d->s, isa, 2);
    check(&d->s, &expected, &found);
    result_clear(&found);
  }
  result_clear(&expected);
}

static void compare_both_ways(const struct shape *s, const struct result *expected, const struct result *found) {
  compare(s, expected, found, true, false);
}

/* Large logits and selections: exponentials underflow, and the running maximum changes often. */
static void extreme_scores(void **unused) {
  (void)unused;
  for (uint64_t seed = 300; seed < 304; seed++) {
    struct shape s = {.B = 1,
                      .Tq = 200,
                      .Tk = 200,
                      .H = 2,
                      .Hkv = 1,
                      .D = 32,
                      .select = seed % 2,
                      .relu = true,
                      .protect_first = true,
                      .protect_self = true,
                      .shift = true,
                      .seed = seed};
    struct data d;
    data_init(&d, &s);
    for (int64_t i = 0; i < s.Tk * (s.H + 2 * s.Hkv) * s.D; i++)
      d.qkv[i] *= i < s.Tk * s.H * s.D ? 6.0f * (float)(i / s.D % s.Tk) / 200.0f : 1.0f;
    on_each_isa(&d, compare_both_ways);
    data_clear(&d);
  }
}

static void compare_finite(const struct shape *s, const struct result *expected, const struct result *found) {
  near("y of huge logits", expected->y, found->y, s->Tq * s->H * s->D, TOLERANCE);
  for (int64_t i = 0; i < s->Tk * s->Hkv * s->D; i++)
    if (!isfinite(found->dv[i])) fail_msg("dv[%lld] of huge logits is no number", (long long)i);
}

static void compare_huge(const struct shape *s, const struct result *expected, const struct result *found) {
  compare_finite(s, expected, found);
  near("dv of huge logits", expected->dv, found->dv, s->Tk * s->Hkv * s->D, 2 * TOLERANCE);
  near("dq of huge logits", expected->dq, found->dq, s->Tq * s->H * s->D, 2 * TOLERANCE);
  near("dk of huge logits", expected->dk, found->dk, s->Tk * s->Hkv * s->D, 2 * TOLERANCE);
}

/* Logits beyond 1e10, where neighbouring floats are thousands apart: every row attends to its largest only, and the
 * others get no gradient. Also selections of 1e36 with equal logits: their sum must not overflow. */
static void huge_scores(void **unused) {
  (void)unused;
  for (int round = 0; round < 3; round++) {
    struct shape s = {.B = 1,
                      .Tq = 200,
                      .Tk = 200,
                      .H = 2,
                      .Hkv = 2,
                      .D = 16,
                      .select = round > 0,
                      .relu = true,
                      .protect_first = round == 1,
                      .protect_self = true,
                      .shift = true,
                      .seed = 310};
    struct data d;
    data_init(&d, &s);
    const int64_t n = s.Tk * s.H * s.D;
    for (int64_t i = 0; i < (round == 2 ? 2 * n : n); i++) d.qkv[i] = round == 2 ? 1e18f : d.qkv[i] * 1e12f;
    on_each_isa(&d, round == 2 ? compare_finite : compare_huge); /* with equal logits the log-sum is lost */
    data_clear(&d);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(keys_left_out), cmocka_unit_test(scarce_scratch),  cmocka_unit_test(lengths_around_tiles),
      cmocka_unit_test(wide_heads),    cmocka_unit_test(whole_sequences), cmocka_unit_test(chunks_agree),
      cmocka_unit_test(runs_repeat),   cmocka_unit_test(extreme_scores),  cmocka_unit_test(huge_scores)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
