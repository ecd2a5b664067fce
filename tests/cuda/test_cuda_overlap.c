/* Chunks of rows that run concurrently (src/backends/cuda/beside.cu, attention_sm90.cu), emulated or on a device: in
 * every order that the streams and their waits allow, the bits are those of launches one after the other. In the
 * emulation, the same kernels are launched, and streams wait for each other as often as docs/cuda-attention.md says. */
#include "cuda/attention_orders.h"

enum { WINDOW = 256, PROCESSORS = 3, ORDERS = 3 };

static int setup_device(void **state) {
  window_rows = WINDOW;
  if (setup(state) != 0) return -1;
  wn_emulate_device(9, PROCESSORS);
  emulated.backend = &windows;
  return 0;
}

enum how { AS_IT_IS, ALL_F, NO_LSE, KEEPS_ALL }; /* F after the last row; forward only, F in half; no key is skipped */
struct overlap_case {
  const char *terms, *other;
  int T, H, Hkv, D, documents; /* documents: tokens in each, or 0 */
  enum how how;
  int waits[2]; /* waits between streams, forward and backward */
};

static const struct overlap_case cases[] = {
    {"{\"selective\":{}}", "{}", 600, 2, 1, 64, 0, AS_IT_IS, {3, 9}},
    {"{\"selective\":{}}", "{\"scale\":0.003}", 800, 1, 1, 64, 0, AS_IT_IS, {4, 11}}, /* none dies */
    {"{\"selective\":{}}", "{}", 600, 1, 1, 64, 0, KEEPS_ALL, {3, 7}},
    {"{\"selective\":{}}", "{\"scale\":0.03}", 520, 1, 1, 64, 0, ALL_F, {3, 9}},
    {"{\"selective\":{}}", "{\"scale\":0.03}", 600, 1, 1, 64, 0, NO_LSE, {3, 0}},
    {"{\"selective\":{\"mem\":{\"tau\":0.01},\"per_kv_head\":true}}",
     "{\"scale\":0.05}",
     600,
     2,
     2,
     64,
     330,
     AS_IT_IS,
     {3, 9}},
    {"{\"selective\":{},\"exclusive\":{\"gate\":true}}", "{\"scale\":0.03}", 520, 2, 1, 128, 400, AS_IT_IS, {3, 9}},
    {"{\"exclusive\":{\"gate\":true}}", "{}", 200, 2, 1, 64, 0, AS_IT_IS, {0, 2}},
    {"{\"selective\":{\"mem\":{}}}", "{}", 200, 2, 2, 128, 0, AS_IT_IS, {0, 2}},
};
/* Under the sanitizers, where fibers are slow, every third case. */
#ifdef __SANITIZE_ADDRESS__
enum { EACH = 3 };
#else
enum { EACH = 1 };
#endif

static struct mech_setup setup_of(const struct overlap_case *k) {
  struct mech_setup s = {.B = 1, .Tq = k->T, .Tk = k->T, .H = k->H, .Hkv = k->Hkv, .D = k->D};
  s.documents = k->documents > 0, s.document_tokens = k->documents;
  s.wide_gap = s.bf16 = true, s.seed = (uint64_t)(k - cases);
  mech_count = 0;
  mech_add(k->terms, k->other, 0);
  s.c = &mech_cases[0];
  return s;
}

static void make(const struct overlap_case *k, const struct mech_setup *s, struct mech_bench *m) {
  mech_make(m, s, WN_F32);
  if (m->op.sel.on) {
    m->op.sel.F = NULL;
    m->a[mech_find(m, "F")].role = MECH_FIXED;
    if (k->how != ALL_F) m->op.sel.f_out = NULL, m->a[mech_find(m, "f_out")].role = MECH_FIXED;
    if (k->how == KEEPS_ALL) m->op.sel.dead_share = 0;
  }
  if (k->how != NO_LSE) return;
  m->op.lse = NULL;
  for (int i = 0; i < m->n; i++)
    if (strcmp(m->a[i].name, "y") != 0) m->a[i].role = MECH_FIXED;
}

/* Within the tolerance rule, and the same bits in every order. */
static void once(const struct mech_setup *s, uint64_t order, struct mech_bench *m) {
  make(&cases[s->seed], s, m);
  wn_emulate_seed(order);
  mech_both(&emulated, m);
  assert_null(wn_emulate_error());
}
static void test_law(void **state) {
  (void)state;
  const struct mech_setup s = setup_of(&cases[0]);
  check_orders(&s, 2);
}

struct counted {
  uint64_t kernels, waits;
};
/* Runs forward, or backward on what forward left in m. Returns the calls made to the run-time library. */
static struct counted pass(struct mech_bench *m, bool backward) {
  const wn_emulated_calls before = wn_emulate_calls();
  assert_ok(reference.ctx, mech_op(&emulated, m, &m->op, backward));
  const wn_emulated_calls after = wn_emulate_calls();
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s: %s", mech_name(m), error);
  return (struct counted){after.kernels - before.kernels, after.waits - before.waits};
}

static void test_bits(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n += EACH) {
    const struct overlap_case *k = &cases[n];
    const struct mech_setup s = setup_of(k);
    struct mech_bench alone, m;
    const int passes = k->how == NO_LSE ? 1 : 2;
    struct counted one[2] = {{0, 0}, {0, 0}};
    wn_emulate_seed(0);
    wn_cuda_overlap_off(true);
    make(k, &s, &alone);
    assert_true(wn_cuda_attend_sm90(&alone.op, passes > 1));
    for (int backward = 0; backward < passes; backward++) one[backward] = pass(&alone, backward);
    wn_cuda_overlap_off(false);
    for (uint64_t order = 1; order <= ORDERS; order++) {
      wn_emulate_seed(order);
      make(k, &s, &m);
      for (int backward = 0; backward < passes; backward++) {
        const struct counted two = pass(&m, backward);
        if (!wn_emulated()) continue;
        assert_int_equal(two.kernels, one[backward].kernels);
        assert_int_equal(one[backward].waits, 0);
        assert_int_equal(two.waits, k->waits[backward]);
      }
      if (!law_same_bits(&alone, &m))
        fail_msg("%s, T %d: beside each other, in order %d, windows give other bits", mech_name(&m), k->T, (int)order);
      mech_clear(&m);
    }
    mech_clear(&alone);
  }
}

/* The scratch that a second lane takes: F of the chunk before the last, and in the backward pass its X. The scratch
 * also has to suffice for the kernels for sm_80, which need these only once, but with F in float: in the forward pass
 * that already leaves room for both in half. */
static void test_scratch(void **state) {
  (void)state;
  enum { BLOCK = 64 * 64, LAST = 4 * 16, BEFORE = 4 * 12 }; /* blocks of 64 x 64 pairs, chunks of 256 rows of 1,024 */
  struct mech_setup s = setup_of(&cases[2]);
  struct mech_bench m;
  size_t bytes[2][2];
  s.Tq = s.Tk = 1024;
  make(&cases[2], &s, &m);
  for (int off = 0; off < 2; off++) {
    wn_cuda_overlap_off(off);
    for (int backward = 0; backward < 2; backward++)
      bytes[off][backward] = wn_cuda_attend_scratch(&m.op, backward, window_rows);
  }
  wn_cuda_overlap_off(false);
  assert_true((LAST + BEFORE) * 2 < LAST * 4 && bytes[0][0] == bytes[1][0]);
  assert_true(bytes[0][1] > bytes[1][1] && bytes[0][1] - bytes[1][1] < (size_t)BEFORE * BLOCK * 4);
  assert_true(bytes[1][0] >= (size_t)LAST * BLOCK * 4 && bytes[1][0] < (size_t)(LAST + 4) * BLOCK * 4);
  mech_clear(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_law),
      cmocka_unit_test(test_bits),
      cmocka_unit_test(test_scratch),
  };
  return cmocka_run_group_tests(tests, setup_device, teardown);
}
