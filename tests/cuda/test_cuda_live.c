/* Dead-key skipping in the CUDA backend's attention, emulated or on a device. Inputs that forget quickly, slowly and
 * nothing stay within the tolerance rule. Exactly the keys that the rule calls dead are skipped, forward and backward:
 * values of keys are set to NaN, which shows in every row that reads them. */
#include "cuda/attention_orders.h"

enum { WINDOW = 256, PROCESSORS = 3 };

static int setup_device(void **state) {
  window_rows = WINDOW;
  if (setup(state) != 0) return -1;
  wn_emulate_device(9, PROCESSORS);
  emulated.backend = &windows;
  return 0;
}

static struct mech_case *the_case(const char *one, const char *other) {
  mech_count = 0;
  mech_add(one, other, 0);
  return &mech_cases[0];
}

static bool all_F; /* calls ask for F after their last row */

static void make(const struct mech_setup *s, struct mech_bench *m) {
  mech_make(m, s, WN_F32);
  m->op.sel.F = NULL;
  m->a[mech_find(m, "F")].role = MECH_FIXED;
  if (all_F) return;
  m->op.sel.f_out = NULL;
  m->a[mech_find(m, "f_out")].role = MECH_FIXED;
}
static void once(const struct mech_setup *s, uint64_t seed, struct mech_bench *m) {
  make(s, m);
  wn_emulate_seed(seed);
  mech_both(&emulated, m);
  assert_null(wn_emulate_error());
}

static const struct {
  const char *terms, *other;
  int B, T, H, Hkv, D, seeds, documents; /* documents: tokens in each, or 0 */
  bool all_F;
} cases[] = {
    {"{\"selective\":{}}", "{}", 1, 600, 2, 1, 64, 2, 0, false},                /* nearly all die */
    {"{\"selective\":{}}", "{\"scale\":0.03}", 2, 515, 1, 1, 64, 1, 0, true},   /* some die */
    {"{\"selective\":{}}", "{\"scale\":0.003}", 1, 530, 2, 2, 64, 1, 0, false}, /* none */
    {"{\"selective\":{\"per_kv_head\":true,\"head\":1}}", "{\"scale\":0.04}", 1, 520, 4, 2, 64, 1, 0, false},
    {"{\"selective\":{\"protect_first\":false},\"exclusive\":true}", "{\"scale\":0.03}", 1, 520, 2, 1, 128, 1, 0,
     false},
    {"{\"selective\":{}}", "{}", 1, 600, 2, 1, 64, 1, 400, false}, /* and start before a chunk */
    {"{\"selective\":{\"mem\":{\"tau\":0.01},\"per_kv_head\":true}}", "{\"scale\":0.05}", 2, 600, 4, 2, 64, 1, 330,
     false},
};
enum { ALL_DIE, NONE_DIES = 2, GROUPS, EXCLUSIVE };
/* Under the sanitizers, where fibers are slow, every third case. */
#ifdef __SANITIZE_ADDRESS__
enum { EACH = 3 };
#else
enum { EACH = 1 };
#endif

static struct mech_setup setup_of(size_t n) {
  struct mech_setup s = {.B = cases[n].B, .Tq = cases[n].T, .Tk = cases[n].T, .H = cases[n].H, .Hkv = cases[n].Hkv};
  s.D = cases[n].D, s.documents = cases[n].documents > 0, s.document_tokens = cases[n].documents,
  s.wide_gap = s.bf16 = true, s.seed = 46 + n;
  s.c = the_case(cases[n].terms, cases[n].other);
  return s;
}
static void test_law(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n += EACH) {
    const struct mech_setup s = setup_of(n);
    all_F = cases[n].all_F;
    check_orders(&s, EACH > 1 ? 1 : cases[n].seeds);
  }
  all_F = false;
}

/* ---- the rule, in double ---- */

static double at(const struct mech_bench *m, const char *name, int64_t b, int64_t t, int64_t h, int64_t d) {
  const int which = mech_find(m, name);
  const struct wn_stride s = !strcmp(name, "q") ? m->op.s_q : m->op.s_k;
  return mech_get(m, which, b * s.b + t * s.t + h * s.h + d);
}
static double dot(const struct mech_bench *m, const char *x, int64_t i, int64_t h, const char *y, int64_t j,
                  int64_t kv) {
  double sum = 0;
  for (int64_t d = 0; d < m->s.D; d++) sum += at(m, x, 0, i, h, d) * at(m, y, 0, j, kv, d);
  return sum;
}
/* How far key j of selection g is from dying at `row` of the first sequence: alive if above 0. The backward pass knows
 * the lse of later rows, which the forward pass left in m. */
static double margin(const struct mech_bench *m, bool backward, int64_t g, int64_t row, int64_t j) {
  const struct wn_attention *op = &m->op;
  const int64_t G = wn_selection_groups(op), share = m->s.H / G, per = m->s.H / m->s.Hkv;
  const int64_t selects = g * share + op->sel.head;
  double F = 0, most = -INFINITY;
  for (int64_t i = j + 1; i < row; i++)
    if (!(op->sel.protect_first && j == 0)) F += op->scale * fmax(0, dot(m, "q", i, selects, "k", j, selects / per));
  for (int64_t h = g * share; h < (g + 1) * share; h++) {
    double norm = 0, low = INFINITY;
    for (int64_t i = row; i < m->s.Tk; i++) {
      norm = fmax(norm, sqrt(dot(m, "q", i, h, "q", i, h)));
      low = fmin(low, backward ? (double)((const float *)op->lse)[h * m->s.Tq + i]
                               : op->scale * dot(m, "q", i, h, "k", i, h / per));
    }
    most = fmax(most, op->scale * norm * sqrt(dot(m, "k", j, h / per, "k", j, h / per)) - low);
  }
  return most - F - log(op->sel.dead_share / (double)m->s.Tk);
}

/* Sets the values of key j to NaN, in all heads of selection g. */
static void poison(struct mech_bench *m, int64_t g, int64_t j) {
  const int64_t heads = m->s.Hkv / wn_selection_groups(&m->op);
  uint16_t *v = m->a[mech_find(m, "v")].data;
  for (int64_t kv = g * heads; kv < (g + 1) * heads; kv++)
    for (int64_t d = 0; d < m->s.D; d++) v[j * m->op.s_v.t + kv * m->op.s_v.h + d] = 0x7fc0;
}
/* Counts the rows of y (backward: dq) from `first` to `end` - 1 whose first element, in a head of selection g, is NaN.
 */
static int64_t spoilt(const struct mech_bench *m, bool backward, int64_t g, int64_t first, int64_t end) {
  const int64_t share = m->s.H / wn_selection_groups(&m->op);
  const void *x = backward ? m->op.dq : m->op.y;
  const struct wn_stride s = backward ? m->op.s_q : m->op.s_y;
  int64_t n = 0;
  for (int64_t h = g * share; h < (g + 1) * share; h++)
    for (int64_t i = first; i < end; i++) n += isnan(wn_number(x, i * s.t + h * s.h, WN_BF16));
  return n;
}

static void run(struct mech_bench *m, bool backward) {
  assert_ok(reference.ctx, mech_op(&emulated, m, &m->op, backward));
  assert_null(wn_emulate_error());
}

static void check_left_out(size_t n, bool backward) {
  const struct mech_setup s = setup_of(n);
  enum { ROW = WINDOW };
  struct mech_bench clean, m, one;
  make(&s, &clean), make(&s, &m);
  run(&clean, false);
  if (backward) run(&m, false); /* forward still reads some keys that backward skips, so y stays clean */
  const int64_t G = wn_selection_groups(&m.op), share = s.H / G;
  for (int64_t g = 0; g < G; g++) {
    int64_t dead = 0, least = -1;
    double by = INFINITY;
    for (int64_t j = 0; j < ROW; j++) {
      const double x = margin(&clean, backward, g, ROW, j);
      if (x < -0.02) poison(&m, g, j), dead++;
      if (x > 0.02 && x < by) by = x, least = j;
    }
    /* The case is sharp: a rule that is off by a tenth would call other keys dead. */
    assert_true(dead > ROW / 4 && least >= 0 && by < 1);
    make(&s, &one);
    if (backward) run(&one, false);
    poison(&one, g, least);
    run(&one, backward);
    const int64_t in = spoilt(&one, backward, g, ROW, 2 * ROW);
    if (in != share * ROW)
      fail_msg("%s: key %lld, alive by %g, is heard in %lld rows of the next window, expected %lld", mech_name(&one),
               (long long)least, by, (long long)in, (long long)(share * ROW));
    mech_clear(&one);
  }
  run(&m, backward);
  for (int64_t g = 0; g < G; g++) {
    assert_true(spoilt(&m, backward, g, 0, ROW) > 0); /* they were read before they died */
    if (spoilt(&m, backward, g, ROW, s.Tk))
      fail_msg("%s: %lld rows read values of dead keys", mech_name(&m), (long long)spoilt(&m, backward, g, ROW, s.Tk));
  }
  mech_clear(&clean), mech_clear(&m);
}
static void test_left_out(void **state) {
  (void)state;
  for (int backward = 0; backward < 2; backward++) {
    check_left_out(ALL_DIE, backward);
    check_left_out(GROUPS, backward);
    check_left_out(EXCLUSIVE, backward);
  }
}

/* Where no key dies, results are those without the rule, to the bit. */
static void test_none(void **state) {
  (void)state;
  const struct mech_setup s = setup_of(NONE_DIES);
  struct mech_bench m[2];
  for (int off = 0; off < 2; off++) {
    make(&s, &m[off]);
    if (off) m[off].op.sel.dead_share = 0;
    run(&m[off], false), run(&m[off], true);
  }
  for (int backward = 0; backward < 2; backward++)
    for (int64_t j = 0; j < WINDOW; j++) assert_true(margin(&m[0], backward, 0, WINDOW, j) > 0);
  assert_true(law_same_bits(&m[0], &m[1]));
  mech_clear(&m[0]), mech_clear(&m[1]);
}

/* With share 0 no key is dead and none is skipped. */
static void test_off(void **state) {
  (void)state;
  const struct mech_setup s = setup_of(0);
  struct mech_bench m;
  make(&s, &m);
  poison(&m, 0, 1);
  for (int off = 0; off < 2; off++) {
    m.op.sel.dead_share = off ? 0 : 0x1p-24;
    run(&m, false), run(&m, true);
    for (int backward = 0; backward < 2; backward++)
      assert_int_equal(spoilt(&m, backward, 0, WINDOW, s.Tk), off ? (s.Tk - WINDOW) * s.H : 0);
  }
  mech_clear(&m);
}

/* The default chunks: 2,048 rows for few heads. */
static void test_windows(void **state) {
  (void)state;
  enum { ROW = 2048 };
  struct mech_setup s = setup_of(0);
  struct mech_bench m;
  s.Tq = s.Tk = ROW + 70, s.H = 1;
  make(&s, &m);
  poison(&m, 0, 1);
  window_rows = 0;
  assert_ok(reference.ctx, mech_op(&emulated, &m, &m.op, false));
  window_rows = WINDOW;
  assert_int_equal(spoilt(&m, false, 0, 1, ROW), ROW - 1);
  assert_int_equal(spoilt(&m, false, 0, ROW, s.Tk), 0);
  mech_clear(&m);
}

/* L_mem counts keys up to tau, even if tau is so large that the rule alone would call them dead earlier. */
static void test_memory(void **state) {
  (void)state;
  struct mech_setup s = setup_of(0);
  struct mech_bench m;
  float M[2][600];
  s.c = the_case("{\"selective\":{\"mem\":{\"tau\":150}}}", "{}");
  make(&s, &m);
  for (int off = 0; off < 2; off++) {
    m.op.sel.dead_share = off ? 0 : 0x1p-24;
    assert_ok(reference.ctx, mech_op(&emulated, &m, &m.op, false));
    memcpy(M[off], m.op.sel.M, (size_t)s.Tk * sizeof(float));
  }
  mech_clear(&m);
  for (int64_t i = 0; i < s.Tk; i++)
    if (!(fabsf(M[0][i] - M[1][i]) <= 1e-5f * M[1][i]))
      fail_msg("M of row %lld is %g, expected %g", (long long)i, (double)M[0][i], (double)M[1][i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_law), cmocka_unit_test(test_left_out), cmocka_unit_test(test_none),
      cmocka_unit_test(test_off), cmocka_unit_test(test_windows),  cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, setup_device, teardown);
}
