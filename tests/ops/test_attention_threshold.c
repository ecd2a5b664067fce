/* A threshold's choice on rows with given logits: equal ones, few and many, huge ones, control tokens, keys in any
 * order, learned sinks, shares from almost nothing to everything. Counts, results and the array saved for the backward
 * pass, on every backend, against a plain sort in double. */
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

enum { D = 8, N_MAX = 3000 };

static float q[N_MAX * D], k[N_MAX * D], v[N_MAX * D], y[N_MAX * D], lse[N_MAX], sink_k[D], sink_v[D];
static uint8_t control[N_MAX];
static int32_t count[N_MAX], place[N_MAX];
static double cut[2 * N_MAX];

static double normal(int64_t j) {
  return wn_random_normal(11, WN_STREAM_TEST, 5, (uint64_t)j);
}
static float equal(int64_t j) {
  (void)j;
  return -3.5f;
}
static float two(int64_t j) {
  return j % 3 == 1 ? 2.25f : -1;
}
static float spread(int64_t j) {
  return (float)(2 * normal(j));
}
static float peaked(int64_t j) {
  return (float)(20 * normal(j));
}
static float steps(int64_t j) { /* a few logits, each many times */
  return roundf((float)(2 * normal(j))) / 2;
}
static float close_by(int64_t j) { /* neighbouring floats */
  return 100 + (float)(j * 7 % 50) * 0x1p-17f;
}
static float far_apart(int64_t j) { /* their exponentials underflow */
  return (float)(j % 5) * -100;
}
static float rising(int64_t j) {
  return (float)j * 0.01f;
}
static float zero(int64_t j) {
  (void)j;
  return 0;
}
static float huge(int64_t j) { /* neighbouring floats, 2 apart */
  return 3e7f + (float)(j * 3 % 5 * 2);
}
static float huge_spread(int64_t j) {
  return -4e7f + 4 * roundf((float)(3 * normal(j)));
}
static float lowest(int64_t j) {
  (void)j;
  return -1e9f;
}

static const struct {
  const char *name;
  float (*logit)(int64_t j);
} kinds[] = {{"equal", equal},
             {"two", two},
             {"spread", spread},
             {"peaked", peaked},
             {"steps", steps},
             {"close by", close_by},
             {"far apart", far_apart},
             {"rising", rising},
             {"zero", zero},
             {"huge", huge},
             {"huge, spread", huge_spread},
             {"lowest", lowest}};

/* Options of a row. */
struct variant {
  const char *name;
  bool controls, order, sink;
};
static const struct variant variants[] = {{.name = "alone"},
                                          {.name = "control tokens", .controls = true},
                                          {.name = "keys in another order", .order = true},
                                          {.name = "a sink", .sink = true},
                                          {.name = "all", .controls = true, .order = true, .sink = true}};

struct key {
  double logit, weight;
  int64_t j;
  int32_t place;
};

static int heavier(const void *x, const void *y_) {
  const struct key *p = x, *r = y_;
  return p->logit != r->logit ? (p->logit > r->logit ? -1 : 1) : p->place < r->place ? -1 : 1;
}

/* For a row of `n` keys: want[D] is the result; *least and *most bound the count where a sum's rounding decides;
 * *others: whether more than the content is seen. */
static void expected(int64_t n, const struct variant *with, double tau, double *want, int64_t *least, int64_t *most,
                     bool *others) {
  static struct key order[N_MAX];
  static bool kept[N_MAX];
  int64_t m = 0;
  double top = with->sink ? (double)sink_k[0] : -INFINITY, content = 0, before = 0, total = 0;
  *others = with->sink;
  for (int64_t j = 0; j < n; j++) top = fmax(top, (double)k[j * D]);
  for (int64_t j = 0; j < n; j++) {
    kept[j] = with->controls && control[j];
    *others |= kept[j];
    if (!kept[j]) order[m++] = (struct key){(double)k[j * D], 0, j, with->order ? place[j] : (int32_t)j};
  }
  qsort(order, (size_t)m, sizeof *order, heavier);
  for (int64_t i = 0; i < m; i++) content += order[i].weight = exp(order[i].logit - order[0].logit);
  *least = *most = 0;
  /* With equal weights, a half is exact. */
  const double slack = tau == 0.5 && m > 0 && order[0].logit == order[m - 1].logit ? 0 : 1e-6;
  for (int64_t i = 0; i < m; i++) {
    if (tau >= 1 || before < tau * content * (1 - slack)) *least = i + 1;
    if (tau >= 1 || before < tau * content * (1 + slack)) *most = i + 1;
    before += order[i].weight;
  }
  for (int64_t i = 0; i < *most; i++) kept[order[i].j] = true;
  for (int d = 0; d < D; d++) want[d] = 0;
  for (int64_t j = -1; j < n; j++) {
    if (j < 0 ? !with->sink : !kept[j]) continue;
    const float *key = j < 0 ? sink_k : k + j * D, *value = j < 0 ? sink_v : v + j * D;
    const double w = exp((double)key[0] - top);
    total += w;
    for (int d = 0; d < D; d++) want[d] += w * (double)value[d];
  }
  for (int d = 0; d < D; d++) want[d] /= total;
}

static void check(size_t kind, int64_t T, int64_t n, const struct variant *with, double tau, int isa) {
  struct wn_attention a = {.B = 1, .Tq = T, .Tk = n, .H = 1, .Hkv = 1, .D = D, .scale = 1};
  a.q = q, a.k = k, a.v = v, a.y = y, a.lse = lse;
  a.s_q = a.s_y = (struct wn_stride){T * D, D, D}, a.s_k = a.s_v = (struct wn_stride){n * D, D, D};
  a.threshold.on = true, a.threshold.tau = tau, a.threshold.count = count, a.threshold.cut = cut;
  if (with->controls) a.threshold.control = control;
  if (with->sink) a.sinks.n = 1, a.sinks.k = sink_k, a.sinks.v = sink_v;
  for (int64_t j = 0; j < n; j++) place[j] = (int32_t)(j < n - T ? n - T - 1 - j : j);
  if (with->order) a.slots.at = place;
  struct wn_exec exec = {.ctx = ctx,
                         .backend = isa < 0 ? wn_backend_ref() : wn_backend_cpu((enum wn_isa)isa),
                         .threads = 1,
                         .dtype = WN_F32};
  exec.scratch_bytes = wn_op_attention_scratch(&exec, &a, false);
  exec.scratch = aligned_alloc(WN_ALIGN, (exec.scratch_bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN + WN_ALIGN);
  assert_non_null(exec.scratch);
  memset(exec.scratch, 0xff, exec.scratch_bytes);
  if (wn_op_attention_forward(&exec, &a) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  free(exec.scratch);
  for (int64_t i = 0; i < T; i += i < 70 || i + 7 > T ? 1 : 97) {
    double want[D];
    int64_t least, most;
    bool others;
    char where[160];
    expected(n - T + i + 1, with, tau, want, &least, &most, &others);
    snprintf(where, sizeof where, "%s, %s, %d keys, tau %g, isa %d, row %d", kinds[kind].name, with->name, (int)n, tau,
             isa, (int)i);
    if (count[i] < least || count[i] > most)
      fail_msg("%s: %d kept, not %d to %d", where, (int)count[i], (int)least, (int)most);
    /* An extra half key in the saved cut means that the row keeps only this key. */
    const double *note = cut + 2 * i;
    if (isa >= 0 && (count[i] == 1 && !others) != (note[1] != floor(note[1])))
      fail_msg("%s: %d kept, noted as %g, %g", where, (int)count[i], note[0], note[1]);
    for (int d = 0; least == most && d < D; d++)
      if (!(fabs((double)y[i * D + d] - want[d]) < 2e-5 * (1 + fabs(want[d]))))
        fail_msg("%s: result %g, not %g", where, (double)y[i * D + d], want[d]);
  }
}

static void test_choices(void **unused) {
  (void)unused;
  static const int64_t sizes[][2] = {{1, 1}, {1, 17}, {1, 64}, {1, 200}, {150, 150}, {70, 331}, {1, N_MAX}};
  static const double taus[] = {1e-6, 0.05, 0.3, 0.5, 0.75, 0.95, 0.9999, 1};
  for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
    for (int64_t j = 0; j < N_MAX; j++) {
      for (int d = 0; d < D; d++) q[j * D + d] = d == 0, k[j * D + d] = 0, v[j * D + d] = (float)normal(j * D + d);
      k[j * D] = kinds[kind].logit(j);
      control[j] = j % 64 == 0 || j % 11 == 5;
    }
    for (int d = 0; d < D; d++) sink_k[d] = d == 0 ? k[0] : 0, sink_v[d] = (float)normal(-1 - d);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
      for (size_t t = 0; t < sizeof taus / sizeof *taus; t++)
        for (size_t with = 0; with < sizeof variants / sizeof *variants; with++)
          for (int isa = -1; isa <= (int)best; isa++)
            if (isa != WN_ISA_REF) check(kind, sizes[s][0], sizes[s][1], &variants[with], taus[t], isa);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_choices)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
