/* Attention's kernels for sm_90, emulated (emulate_sm90.h) or on such a device, under the tolerance rule: bf16,
 * standard and selective, heads of 64 and 128, with and without groups, lengths that are not whole tiles, F in chunks
 * of rows. Every order of threads and arrivals gives the same bits. Calls that these kernels do not support go to the
 * others. */
#include "cuda/attention_orders.h"

enum { WINDOW = 256, PROCESSORS = 3 };

static int setup_device(void **state) {
  window_rows = WINDOW;
  if (setup(state) != 0) return -1;
  wn_emulate_device(9, PROCESSORS);
  return 0;
}

static struct mech_case *the_case(const char *one) {
  mech_count = 0;
  mech_add(one, "{}", 0);
  return &mech_cases[0];
}

static void once(const struct mech_setup *s, uint64_t seed, struct mech_bench *m) {
  mech_make(m, s, WN_F32);
  if (m->op.sel.on) { /* these kernels do not write F */
    m->op.sel.F = NULL;
    m->a[mech_find(m, "F")].role = MECH_FIXED;
  }
  wn_emulate_seed(seed);
  assert_true(wn_cuda_attend_sm90(&m->op, false) && wn_cuda_attend_sm90(&m->op, true));
  mech_both(&emulated, m);
  assert_null(wn_emulate_error());
}

static void check(const struct mech_setup *s, int seeds) {
  struct mech_setup aligned = *s;
  aligned.wide_gap = aligned.bf16 = true;
  check_orders(&aligned, seeds);
}

static const struct {
  const char *terms;
  int T, H, Hkv, D, seeds;
  bool heads_first, same_keys, documents;
} cases[] = {
    {"{}", 129, 2, 1, 64, 3, false, false, false},
    {"{}", 300, 1, 1, 128, 1, true, false, false},
    {"{\"selective\":{}}", 129, 3, 1, 64, 3, false, false, false},
    {"{\"selective\":{}}", 300, 2, 2, 64, 1, true, false, false},
    {"{\"selective\":{}}", 192, 2, 1, 128, 3, false, false, false},
    {"{\"selective\":{\"protect_self\":false}}", 128, 2, 2, 128, 1, false, false, false},
    {"{\"selective\":{\"protect_first\":false,\"head\":1}}", 257, 2, 1, 64, 1, false, false, false},
    {"{\"selective\":{\"per_kv_head\":true}}", 150, 4, 2, 64, 1, false, false, false},
    {"{}", 300, 2, 1, 64, 1, false, false, true},
    {"{\"selective\":{}}", 290, 2, 2, 64, 1, false, false, true},
    {"{\"selective\":{\"protect_first\":false}}", 200, 2, 1, 128, 1, false, false, true},
    {"{\"selective\":{}}", 150, 2, 2, 64, 1, false, true, false}, /* gradients cancel */
    {"{\"exclusive\":true}", 200, 4, 2, 64, 3, false, false, false},
    {"{\"exclusive\":{\"gate\":true},\"selective\":{}}", 150, 3, 1, 128, 3, true, false, false},
    {"{\"exclusive\":{\"gate\":true}}", 290, 2, 2, 64, 1, false, false, true},
    {"{\"exclusive\":true}", 150, 1, 1, 128, 1, false, false, true},
    {"{\"selective\":{\"mem\":{}}}", 200, 3, 1, 64, 1, false, false, false},
    {"{\"selective\":{\"mem\":{\"tau\":0.4},\"per_kv_head\":true}}", 170, 4, 2, 64, 3, false, false, true},
    {"{\"selective\":{\"mem\":{\"tau\":3},\"head\":1}}", 257, 2, 1, 128, 1, false, false, false},
};
/* Under the sanitizers, where fibers are slow, one order and every fourth case. */
#ifdef __SANITIZE_ADDRESS__
enum { EACH = 4, SEEDS_MOST = 1 };
#else
enum { EACH = 1, SEEDS_MOST = 3 };
#endif
static void test_law(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n += EACH) {
    struct mech_setup s = {.B = n == 2 ? 2 : 1, .Tq = cases[n].T, .Tk = cases[n].T, .H = cases[n].H};
    s.Hkv = cases[n].Hkv, s.D = cases[n].D, s.heads_first = cases[n].heads_first, s.same_keys = cases[n].same_keys,
    s.documents = cases[n].documents;
    s.c = the_case(cases[n].terms), s.seed = n;
    check(&s, cases[n].seeds < SEEDS_MOST ? cases[n].seeds : SEEDS_MOST);
  }
}

/* F in chunks of 256 rows; the last chunk is shorter. */
static void test_windows(void **state) {
  (void)state;
  emulated.backend = &windows;
  for (int n = EACH > 1; n < 2; n++) {
    struct mech_setup s = {.B = 1, .Tq = n ? 300 : 520, .H = 2, .Hkv = 1, .D = n ? 128 : 64};
    s.Tk = s.Tq, s.seed = (uint64_t)n;
    s.c = the_case(n ? "{\"selective\":{\"mem\":{}}}" : "{\"selective\":{},\"exclusive\":{\"gate\":true}}");
    check(&s, 1);
  }
  emulated.backend = wn_backend_cuda_table();
}

/* F is in half floats, except where L_mem sums it. y stays within the rule either way. */
static void test_halves(void **state) {
  (void)state;
  struct mech_setup s = {.B = 1, .Tq = 200, .Tk = 200, .H = 2, .Hkv = 1, .D = 64, .wide_gap = true, .bf16 = true};
  struct expectation e;
  struct mech_bench m[2];
  s.c = the_case("{\"selective\":{\"mem\":{}}}");
  law_expect(&reference, &s, &e);
  for (int n = 0; n < 2; n++) {
    mech_make(&m[n], &e.s, WN_F32);
    m[n].op.sel.F = NULL;
    if (n) m[n].op.sel.mem = false;
    for (int i = 0; i < m[n].n; i++)
      if (strcmp(m[n].a[i].name, "y")) m[n].a[i].role = MECH_FIXED;
    assert_ok(reference.ctx, mech_op(&emulated, &m[n], &m[n].op, false));
    assert_null(wn_emulate_error());
    law_compare(&emulated, &m[n], &e);
  }
  const int y = mech_find(&m[0], "y");
  assert_memory_not_equal(m[0].a[y].data, m[1].a[y].data, (size_t)m[0].a[y].count * mech_size(&m[0], y));
  mech_clear(&m[0]), mech_clear(&m[1]), mech_clear(&e.want);
}

static bool served(const char *terms, int64_t T, int64_t D, bool wide_gap, bool bf16) {
  struct mech_setup s = {.B = 1, .Tq = T, .Tk = T, .H = 2, .Hkv = 2, .D = D, .wide_gap = wide_gap, .bf16 = bf16};
  struct mech_bench m;
  s.c = the_case(terms);
  mech_make(&m, &s, WN_F32);
  m.op.sel.F = NULL;
  const bool is = wn_cuda_attend_sm90(&m.op, false);
  mech_clear(&m);
  return is;
}
static void test_choice(void **state) {
  (void)state;
  assert_true(served("{\"selective\":{}}", 128, 64, true, true));
  assert_false(served("{\"selective\":{}}", 127, 64, true, true));
  assert_false(served("{\"selective\":{}}", 128, 80, true, true));
  assert_false(served("{\"selective\":{}}", 128, 64, false, true)); /* no tensor map fits these rows */
  assert_false(served("{\"selective\":{}}", 128, 64, true, false));
  assert_false(served("{\"window\":17}", 128, 64, true, true));
  assert_false(served("{\"selective\":{\"shift\":false}}", 128, 64, true, true));
  assert_true(served("{\"selective\":{\"mem\":{}}}", 128, 64, true, true));
  assert_true(served("{\"exclusive\":true}", 128, 64, true, true));
  assert_false(served("{\"sinks\":3,\"selective\":{\"mem\":{}}}", 128, 64, true, true));
  if (!wn_emulated()) return; /* a real device cannot be changed */
  wn_emulate_device(8, PROCESSORS);
  assert_false(served("{\"selective\":{}}", 128, 64, true, true));
  wn_emulate_device(9, PROCESSORS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_law),
      cmocka_unit_test(test_windows),
      cmocka_unit_test(test_halves),
      cmocka_unit_test(test_choice),
  };
  return cmocka_run_group_tests(tests, setup_device, teardown);
}
