/* Looking at attention weights: on every backend the rows shown, and the counts of keys that shares of the weight need,
 * agree with a plain computation of the whole matrix in double; and attention's own result keeps the same bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "isa.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "ops/attention.h"
#include "ops/isa_context.h"

enum { B = 2, H = 4, HKV = 2, D = 24, TAUS = 7, T_MAX = 300 };
static const double taus[TAUS] = {0.05, 0.3, 0.5, 0.75, 0.95, 0.999, 1};

struct example {
  const char *name;
  int64_t Tq, Tk, window;
  bool documents, control, select, span, sinks, threshold;
  double spread; /* of q: larger values give more peaked rows */
  int64_t every; /* every so many keys one is a control token; 0: 17 */
};
static const struct example examples[] = {
    {.name = "dense", .Tq = 150, .Tk = 150, .spread = 1},
    {.name = "one row", .Tq = 1, .Tk = 70, .spread = 1},
    {.name = "flat: all weights equal", .Tq = 130, .Tk = 130, .spread = 0},
    {.name = "peaked", .Tq = 140, .Tk = 140, .spread = 8},
    {.name = "a chunk, control tokens", .Tq = 40, .Tk = 300, .control = true, .spread = 1},
    {.name = "many control tokens", .Tq = 300, .Tk = 300, .control = true, .spread = 1, .every = 2},
    {.name = "documents, window", .Tq = 200, .Tk = 200, .documents = true, .window = 37, .control = true, .spread = 1},
    {.name = "selections", .Tq = 150, .Tk = 150, .select = true, .documents = true, .spread = 1},
    {.name = "spans and sinks", .Tq = 150, .Tk = 150, .span = true, .sinks = true, .spread = 1},
    {.name = "a threshold of its own", .Tq = 150, .Tk = 150, .threshold = true, .control = true, .spread = 1},
};

static float q[B * T_MAX * H * D], k[B * T_MAX * HKV * D], v[B * T_MAX * HKV * D], sinks[2 * HKV * 3 * D], z[H];
static int32_t doc[B * T_MAX];
static uint8_t control[B * T_MAX];

/* What a call writes. */
struct result {
  float y[B * T_MAX * H * D], lse[B * H * T_MAX];
  float w[B * H * T_MAX * T_MAX]; /* [B,H,Tq,Tk] */
  uint8_t shown[B * H * T_MAX];
  int32_t count[B * H * T_MAX * TAUS];
};

static void on_rows(void *user, const struct wn_attention_view *s) {
  struct result *r = user;
  for (int64_t i = 0; i < s->rows; i++) {
    const int64_t row = (s->b * H + s->h) * s->a->Tq + s->r + i;
    __atomic_fetch_add(&r->shown[row], 1, __ATOMIC_RELAXED);
    for (int64_t j = 0; j < s->columns; j++) r->w[row * s->a->Tk + j] = s->w[i * s->stride + j];
  }
}

static void random_floats(float *x, int64_t n, uint64_t seed, double scale) {
  for (int64_t i = 0; i < n; i++) x[i] = (float)(scale * wn_random_normal(seed, WN_STREAM_TEST, 5, (uint64_t)i));
}

static struct wn_attention operation(const struct example *e, uint64_t seed) {
  const int64_t Tq = e->Tq, Tk = e->Tk, every = e->every > 0 ? e->every : 17;
  random_floats(q, B * Tq * H * D, seed, e->spread * 2);
  random_floats(k, B * Tk * HKV * D, seed + 1, 1);
  random_floats(v, B * Tk * HKV * D, seed + 2, 1);
  random_floats(sinks, 2 * HKV * 3 * D, seed + 3, 1);
  for (int h = 0; h < H; h++) z[h] = 0.25f * (float)(h + 1);
  for (int64_t i = 0; i < B * Tk; i++) {
    doc[i] = (int32_t)(i % Tk >= 61 ? i % Tk >= 133 ? 133 : 61 : 0);
    control[i] = i % Tk < 2 || i % every == 3 % every;
  }
  struct wn_attention a = {.B = B, .Tq = Tq, .Tk = Tk, .H = H, .Hkv = HKV, .D = D, .scale = 1 / sqrt(D)};
  a.q = q, a.k = k, a.v = v;
  a.s_q = a.s_y = (struct wn_stride){Tq * H * D, H * D, D};
  a.s_k = a.s_v = (struct wn_stride){Tk * HKV * D, HKV * D, D};
  a.window = e->window;
  if (e->documents) a.doc_start = doc;
  if (e->select)
    a.sel.on = a.sel.relu = a.sel.protect_first = a.sel.protect_self = a.sel.shift = true, a.sel.mem_tau = 1;
  if (e->span) a.span.on = true, a.span.limit = 100, a.span.ramp = 16, a.span.z = z, a.span.s_z.h = 1;
  if (e->sinks) a.sinks.n = 3, a.sinks.k = sinks, a.sinks.v = sinks + HKV * 3 * D;
  if (e->threshold) a.threshold.on = true, a.threshold.tau = 0.6, a.threshold.control = control;
  return a;
}

static void call(struct wn_attention a, const struct example *e, int isa, int threads, bool look, struct result *r) {
  memset(r, 0, sizeof *r);
  a.y = r->y, a.lse = r->lse;
  if (look) {
    a.look.n = TAUS, a.look.tau = taus, a.look.count = r->count;
    a.look.control = e->control ? control : NULL;
    a.look.rows = on_rows, a.look.user = r;
  }
  struct wn_exec exec = {.ctx = ctx,
                         .backend = isa < 0 ? wn_backend_ref() : wn_backend_cpu((enum wn_isa)isa),
                         .threads = threads,
                         .dtype = WN_F32};
  exec.scratch_bytes = wn_op_attention_scratch(&exec, &a, false);
  exec.scratch = aligned_alloc(WN_ALIGN, (exec.scratch_bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN + WN_ALIGN);
  assert_non_null(exec.scratch);
  memset(exec.scratch, 0xff, exec.scratch_bytes);
  if (wn_op_attention_forward(&exec, &a) != WN_OK) fail_msg("%s: %s", e->name, wn_context_error(ctx));
  free(exec.scratch);
}

static int falling(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

/* The number of largest w[n] that reach tau of their sum. */
static int64_t needed(const double *sorted, int64_t n, double total, double tau) {
  int64_t kept = 0;
  double before = 0;
  if (tau >= 1) return n;
  while (kept < n && before < tau * total) before += sorted[kept++];
  return kept;
}

/* The attention weights of the whole matrix, computed from q and k alone: dense, windows, documents. */
static void whole(const struct wn_attention *a, double *w) {
  for (int64_t n = 0; n < B * H * a->Tq; n++) {
    const int64_t b = n / (H * a->Tq), h = n / a->Tq % H, r = n % a->Tq, i = r + a->Tk - a->Tq, g = h / (H / HKV);
    double *row = w + n * a->Tk, total = 0, top = -INFINITY;
    for (int64_t j = 0; j < a->Tk; j++) {
      row[j] = -INFINITY;
      if (j > i || (a->doc_start && j < doc[b * a->Tk + i]) || (a->window && i - j >= a->window)) continue;
      row[j] = 0;
      for (int d = 0; d < D; d++)
        row[j] +=
            a->scale * (double)q[((b * a->Tq + r) * H + h) * D + d] * (double)k[((b * a->Tk + j) * HKV + g) * D + d];
      top = fmax(top, row[j]);
    }
    for (int64_t j = 0; j < a->Tk; j++) total += row[j] = exp(row[j] - top);
    for (int64_t j = 0; j < a->Tk; j++) row[j] /= total;
  }
}

/* Compares the counts [B,H,Tq,TAUS] of r with the weights: exactly, or up to a share that rounding may move by `slack`.
 */
static void check_counts(const struct example *e, const double *w, const struct result *r, double slack,
                         const char *who) {
  double row[T_MAX];
  int64_t large = 0;
  for (int64_t n = 0; n < B * H * e->Tq; n++) {
    const int64_t b = n / (H * e->Tq);
    int64_t m = 0;
    double total = 0;
    for (int64_t j = 0; j < e->Tk; j++) {
      if (!(w[n * e->Tk + j] > 0) || (e->control && control[b * e->Tk + j])) continue;
      total += row[m++] = w[n * e->Tk + j];
    }
    qsort(row, (size_t)m, sizeof *row, falling);
    for (int t = 0; t < TAUS; t++) {
      const int64_t found = r->count[n * TAUS + t];
      const int64_t low = needed(row, m, total, taus[t] < 1 ? taus[t] - slack : 1),
                    high = needed(row, m, total, taus[t] < 1 ? fmin(taus[t] + slack, 1 - 1e-15) : 1);
      if (found < low || found > high)
        fail_msg("%s, %s: row %d of %d keys, tau %g: %d, expected %d to %d", e->name, who, (int)n, (int)m, taus[t],
                 (int)found, (int)low, (int)high);
      large += found > 20;
    }
  }
  if (e->Tq > 100 && e->spread < 2 && !e->window) assert_true(large > 100); /* rows are long enough to be a test */
}

static double *weights_of(const struct example *e, const struct result *r) {
  double *w = malloc((size_t)(B * H * e->Tq * e->Tk) * sizeof *w);
  assert_non_null(w);
  for (int64_t i = 0; i < B * H * e->Tq * e->Tk; i++) w[i] = (double)r->w[i];
  return w;
}

static void check_shown(const struct example *e, const double *w, const struct result *r, double slack,
                        const char *who) {
  for (int64_t n = 0; n < B * H * e->Tq; n++) {
    assert_int_equal(r->shown[n], 1);
    for (int64_t j = 0; j < e->Tk; j++)
      if (!(fabs(w[n * e->Tk + j] - (double)r->w[n * e->Tk + j]) <= slack))
        fail_msg("%s, %s: row %d key %d: %g, expected %g", e->name, who, (int)n, (int)j, (double)r->w[n * e->Tk + j],
                 w[n * e->Tk + j]);
  }
}

static void test_examples(void **unused) {
  (void)unused;
  struct result *ref = malloc(sizeof *ref), *cpu = malloc(sizeof *cpu), *plain = malloc(sizeof *plain);
  assert_true(ref && cpu && plain);
  for (size_t n = 0; n < sizeof examples / sizeof *examples; n++) {
    const struct example *e = &examples[n];
    const struct wn_attention a = operation(e, 100 + n);
    call(a, e, -1, 2, true, ref);
    call(a, e, -1, 2, false, plain);
    assert_memory_equal(ref->y, plain->y, sizeof ref->y);
    double *w = weights_of(e, ref);
    const bool simple = !e->select && !e->span && !e->sinks && !e->threshold;
    if (simple) {
      whole(&a, w);
      check_shown(e, w, ref, 1e-7, "ref");
      check_counts(e, w, ref, 1e-12, "ref");
    } else if (!e->threshold) { /* the rows shown give the counts */
      check_counts(e, w, ref, 1e-6, "ref");
    }
    for (int isa = WN_ISA_AVX2; isa <= (int)best; isa++)
      for (int threads = 1; threads <= 3; threads += 2) {
        const char *who = isa == WN_ISA_AVX2 ? ISA_OF_EIGHT : "avx512";
        call(a, e, isa, threads, true, cpu);
        call(a, e, isa, threads, false, plain);
        if (e->span) /* here the mask is added to logits, not multiplied: rounding */
          for (int64_t i = 0; i < B * e->Tq * H * D; i++) assert_true(fabsf(cpu->y[i] - plain->y[i]) < 1e-5f);
        else if (e->Tq > 1) { /* single rows use other code without a look */
          assert_memory_equal(cpu->lse, plain->lse, sizeof cpu->lse);
          assert_memory_equal(cpu->y, plain->y, sizeof cpu->y);
        }
        check_shown(e, w, cpu, 1e-5, who);
        if (e->threshold)
          for (int64_t i = 0; i < B * H * e->Tq * TAUS; i++) assert_true(abs(cpu->count[i] - ref->count[i]) <= 1);
        else
          check_counts(e, w, cpu, 1e-5, who);
      }
    free(w);
  }
  free(ref), free(cpu), free(plain);
}

/* With equal logits of any size, shares of the keys are shares of the weight, and each row's attention weights sum to
 * 1. */
static void test_equal_logits(void **unused) {
  (void)unused;
  static const float logits[] = {0, 300, 1e4f, 1e6f, 1e8f};
  static const struct example e = {.name = "equal logits", .Tq = 70, .Tk = 70};
  struct result *r = malloc(sizeof *r);
  assert_non_null(r);
  for (size_t n = 0; n < sizeof logits / sizeof *logits; n++) {
    struct wn_attention a = operation(&e, 3);
    a.scale = 1;
    for (int64_t i = 0; i < B * e.Tq * H * D; i++) q[i] = i % D == 0;
    for (int64_t i = 0; i < B * e.Tk * HKV * D; i++) k[i] = i % D == 0 ? logits[n] : 0;
    for (int isa = -1; isa <= (int)best; isa++) {
      if (isa == WN_ISA_REF) continue;
      call(a, &e, isa, 1, true, r);
      for (int64_t row = 0; row < B * H * e.Tq; row++) {
        const int64_t keys = row % e.Tq + 1;
        double sum = 0;
        for (int64_t j = 0; j < e.Tk; j++) sum += (double)r->w[row * e.Tk + j];
        if (!(fabs(sum - 1) < 1e-5))
          fail_msg("isa %d, logits of %g: weights of %g in all", isa, (double)logits[n], sum);
        const int64_t more = r->count[row * TAUS + 2] - (keys + 1) / 2; /* 1 if the float weights fall short of it */
        if (more < 0 || more > 1)
          fail_msg("isa %d, logits of %g: %d of %d keys for a half", isa, (double)logits[n], r->count[row * TAUS + 2],
                   (int)keys);
      }
    }
  }
  free(r);
}

/* A threshold's own count equals what a look finds for its tau. */
static void test_threshold(void **unused) {
  (void)unused;
  struct result *r = malloc(sizeof *r);
  assert_non_null(r);
  const struct example *e = &examples[0];
  struct wn_attention a = operation(e, 7);
  static int32_t kept[B * H * T_MAX];
  a.threshold.on = true, a.threshold.tau = taus[3], a.threshold.count = kept;
  for (int isa = -1; isa <= (int)best; isa++) {
    if (isa == WN_ISA_REF) continue;
    call(a, e, isa, 1, true, r);
    int64_t other = 0;
    for (int64_t i = 0; i < B * H * e->Tq; i++) other += kept[i] != r->count[i * TAUS + 3];
    assert_true(other <= (isa < 0 ? 0 : 2)); /* float exponentials against double */
  }
  free(r);
}

static void test_refused(void **unused) {
  (void)unused;
  struct wn_attention a = operation(&examples[0], 1);
  static float y[B * T_MAX * H * D];
  static int32_t count[B * H * T_MAX * 2];
  struct wn_exec exec = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F32};
  const double falls[2] = {0.5, 0.4}, beyond[2] = {0.5, 1.5};
  a.y = y;
  a.look.n = 2, a.look.tau = falls, a.look.count = count;
  assert_int_equal(wn_op_attention_forward(&exec, &a), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "look.tau"));
  a.look.tau = beyond;
  assert_int_equal(wn_op_attention_forward(&exec, &a), WN_ERR_ARGUMENT);
  a.look.tau = taus, a.look.count = NULL;
  assert_int_equal(wn_op_attention_forward(&exec, &a), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "look.count"));
  a.look.count = count, a.open = true;
  assert_int_equal(wn_op_attention_forward(&exec, &a), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "look"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples), cmocka_unit_test(test_threshold),
                                     cmocka_unit_test(test_equal_logits), cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
