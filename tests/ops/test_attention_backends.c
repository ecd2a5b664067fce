/* The tolerance law on attention with every mechanism, alone and in pairs: a float backend's error against the double
 * reference is at most twice the error of a naive computation in float, plus a few units in the last place of the
 * largest value. The naive error is the largest of several computations, one on the inputs and others on inputs whose
 * last bit was changed at random: a single one may be right by luck where the case itself is ill-conditioned (gradients
 * that cancel; selections without ReLU, whose F reaches 100), and a fused backend rounds elsewhere (lse) than a sum of
 * weights does. Whole sequences, segments behind cached keys and single rows, with documents, control tokens,
 * evictions and dropout; open rows that select. Also: what lies beside the call's elements stays as it was, and two
 * runs give the same bits.
 *
 * Rows in bf16: the reference computes in double on the numbers that the rows hold; the naive computation rounds
 * weights and gradients of logits to bf16 where a product takes them, and results where rows hold them. The limit is
 * twice its error, as in float; arrays of floats that no rounded operand goes into (lse, F, M) keep the limit of
 * floats. */
#include "isa.h"
#include "mechanisms.h"

#include "backends/cpu/cpu.h"
#include "ops/naive.h"

#define ULPS 8
enum { SHAKEN = 2, SHAKEN_BF16 = 4 }; /* computations on changed inputs; of rows in bf16, with other roundings */

struct expectation {
  struct mech_setup s;
  struct mech_bench want;
  double naive[MECH_ARRAYS_MAX]; /* error of each array in float */
};
enum { EXPECTED_MAX = 2 * MECH_CASES_MAX };
static struct expectation expected[EXPECTED_MAX];
static int expected_count, expected_alone, expected_floats, expected_causal;
static struct mech_case open_cases[16];

static double largest_error(const struct mech_bench *got, const struct mech_bench *want, int which, double *largest,
                            int64_t *at) {
  double error = 0;
  *largest = 0;
  for (int64_t i = 0; i < want->a[which].count; i++) {
    const double w = mech_get(want, which, i), g = mech_get(got, which, i);
    if (g == w) { /* also the -inf of a row that sees nothing */
      if (isfinite(w)) *largest = fmax(*largest, fabs(w));
      continue;
    }
    const double d = fabs(g - w);
    if (!(d <= error)) error = d, *at = i; /* a NaN is never within a limit */
    *largest = fmax(*largest, fabs(w));
  }
  return error;
}

/* A fused backward forms weights as exp(A - lse) from a rounded lse: they are wrong by half a unit of |lse|. */
static double lse_units(const struct mech_bench *want) {
  const int lse = mech_find(want, "lse");
  double largest = 0;
  for (int64_t i = 0; i < want->a[lse].count; i++)
    if (isfinite(mech_get(want, lse, i))) largest = fmax(largest, fabs(mech_get(want, lse, i)));
  return largest / 2;
}

/* Gradients that are summed over the rows: a fused backward takes dy.y from the rounded y for a row's sum of W dW, so
 * that a row's G sum to a rounding of |dy||y| instead of to 0. The naive sum is taken from the same W dW and cancels.
 * Over the rows these roundings add up like errors do, by the root of their number. Of rows in bf16 it is y's rounding
 * to bf16. */
static double row_sums(const struct mech_bench *want) {
  const int y = mech_find(want, "y"), dy = mech_find(want, "dy");
  const int64_t width = want->s.D;
  double largest = 0;
  for (int64_t i = 0; i + width <= want->a[y].count; i += width) { /* pieces as long as a row do as well as rows */
    double sum = 0;
    for (int64_t d = 0; d < width; d++) sum += fabs(mech_get(want, y, i + d) * mech_get(want, dy, i + d));
    largest = fmax(largest, sum);
  }
  return (want->s.bf16 ? 0x1p-7 : (double)FLT_EPSILON) * sqrt((double)(want->s.B * want->s.H * want->s.Tq)) * largest;
}

static void compare(const struct mech_place *p, const struct mech_bench *got, const struct expectation *e) {
  for (int i = 0; i < got->n; i++) {
    if (got->a[i].role != MECH_GRADIENT && got->a[i].role != MECH_OUTPUT) continue;
    double largest = 0;
    int64_t at = 0;
    const double error = largest_error(got, &e->want, i, &largest, &at);
    const double units = ULPS + (got->a[i].role == MECH_GRADIENT ? lse_units(&e->want) : 0);
    double limit = got->a[i].whole ? 0 : 2 * e->naive[i] + units * (double)FLT_EPSILON * largest;
    if (got->a[i].adds) limit += row_sums(&e->want);
    if (!(error <= limit))
      fail_msg("%s: %s on %s %s, %d threads, element %lld: %.9g, expected %.9g; error %.3g, limit %.3g (naive %.3g)",
               mech_name(got), got->a[i].name, p->backend->name, wn_isa_name(p->ctx->isa), p->threads, (long long)at,
               mech_get(got, i, at), mech_get(&e->want, i, at), error, limit, e->naive[i]);
  }
}

static bool same_bits(const struct mech_bench *x, const struct mech_bench *y) {
  for (int i = 0; i < x->n; i++)
    if (memcmp(x->a[i].data, y->a[i].data, (size_t)x->a[i].count * mech_size(x, i))) return false;
  return true;
}

/* Sizes around the tiles of 64 rows and the lanes of 16. */
static struct mech_setup variant(const struct mech_case *c, int which, uint64_t seed) {
  struct mech_setup s = {.c = c, .B = 1, .Tq = 67, .Tk = 67, .H = 2, .Hkv = 1, .D = 16, .seed = seed};
  if (which == 1) s.Tq = s.Tk = 65, s.H = 4, s.Hkv = 2, s.D = 20, s.documents = s.control = true, s.dropout = 0.3;
  if (which == 2) s.Tq = 37, s.Tk = 131, s.dk_from = 94, s.D = 8, s.f_in = s.heads_first = true;
  if (which == 3) s.Tq = 1, s.Tk = 70, s.B = 2, s.dk_from = 69, s.H = 4, s.Hkv = 2, s.f_in = s.control = true;
  if (which == 4) s.Tq = s.Tk = 130, s.B = 2, s.H = 3, s.Hkv = 3, s.D = 33, s.documents = s.heads_first = true;
  if (which == 5) s.Tq = 64, s.Tk = 128, s.dk_from = 10, s.f_in = s.documents = true, s.dropout = 0.1;
  return s;
}
/* The same in bf16: sizes around the pairs and blocks of its products, rows that begin within a pair; half of them in
 * tiles of AMX, where there are. */
static struct mech_setup variant_bf16(const struct mech_case *c, int which, uint64_t seed) {
  struct mech_setup s = variant(c, which == 3 ? 0 : which, seed);
  s.bf16 = true;
  if (which == 0) s.D = 64, s.Tq = s.Tk = 131;
  if (which == 1) s.D = 21;
  if (which == 2) s.Tq = 38, s.dk_from = 93, s.D = 96;
  if (which == 3) s.D = 32, s.H = 6, s.Hkv = 2;
  if (which == 4) s.D = 128, s.B = 1;
  return s;
}
enum { VARIANTS = 6 };
/* Open rows. */
static struct mech_setup variant_open(const struct mech_case *c, int which, uint64_t seed) {
  struct mech_setup s = {.c = c, .B = 1, .Tq = 67, .Tk = 67, .H = 2, .Hkv = 1, .D = 16, .seed = seed};
  if (which == 1) s.B = 4, s.Tq = s.Tk = 65, s.H = 4, s.Hkv = 2, s.D = 20, s.padded = true, s.dropout = 0.3;
  if (which == 2) s.B = 9, s.Tq = s.Tk = 37, s.D = 8, s.heads_first = s.padded = true;
  if (which == 3) s.B = 2, s.Tq = s.Tk = 1, s.H = 4, s.Hkv = 2;
  if (which == 4) s.B = 2, s.Tq = s.Tk = 150, s.H = 3, s.Hkv = 3, s.D = 33, s.heads_first = true;
  if (which == 5) s.B = 3, s.Tq = s.Tk = 128, s.H = 4, s.Hkv = 2, s.D = 24, s.padded = s.bf16 = true;
  return s;
}

/* Each input a unit in the last place nearer to 0, or not. */
static void shake(struct mech_bench *m, uint64_t salt) {
  for (int i = 0; i < m->n; i++) {
    if ((m->a[i].role != MECH_INPUT && m->a[i].role != MECH_FIXED) || mech_half(m, i)) continue;
    float *x = m->a[i].data;
    for (int64_t k = 0; k < m->a[i].count; k++)
      if (mech_uniform(salt, (uint64_t)i, (uint64_t)k) < 0.5) x[k] = nextafterf(x[k], 0);
  }
}

static void expect_setup(struct mech_place *reference, const struct mech_setup *s) {
  struct expectation *e = &expected[expected_count++];
  assert_true(expected_count <= EXPECTED_MAX);
  const bool bf16 = s->bf16;
  e->s = *s;
  if (s->c->config.selective.head >= e->s.H) e->s.H = e->s.Hkv = s->c->config.selective.head + 1;
  mech_settle(reference, &e->s);
  mech_make(&e->want, &e->s, WN_F64);
  mech_both(reference, &e->want);
  struct mech_place plain = {.ctx = reference->ctx, .backend = wn_backend_naive(), .threads = 1};
  for (int run = 0; run <= (bf16 ? SHAKEN_BF16 : SHAKEN); run++) {
    struct mech_bench naive;
    mech_make(&naive, &e->s, WN_F32);
    if (run > 0) shake(&naive, (uint64_t)run);
    wn_naive_shake(1 + 0.19f * (float)run);
    mech_both(&plain, &naive);
    for (int i = 0; i < naive.n; i++) {
      double largest = 0;
      int64_t at = 0;
      e->naive[i] = fmax(e->naive[i], largest_error(&naive, &e->want, i, &largest, &at));
    }
    mech_clear(&naive);
  }
}

static void expect(struct mech_place *reference, const struct mech_case *c, int which, bool bf16, uint64_t seed) {
  struct mech_setup s = bf16 ? variant_bf16(c, which, seed) : variant(c, which, seed);
  s.evicts = (int)((seed + (uint64_t)which) % 3);
  expect_setup(reference, &s);
}

static int setup(void **state) {
  (void)state;
  struct mech_place reference;
  if (!mech_open(&reference, "ref", NULL)) return -1;
  mech_list_open();
  memcpy(open_cases, mech_cases, (size_t)mech_count * sizeof *open_cases);
  const int open_count = mech_count;
  mech_list(true);
  for (int i = 0; i < mech_alone; i++)
    for (int v = 0; v < VARIANTS; v++) expect(&reference, &mech_cases[i], v, false, (uint64_t)mech_cases[i].number);
  expected_alone = expected_count;
  for (int i = mech_alone; i < mech_count; i++)
    expect(&reference, &mech_cases[i], mech_cases[i].number % (VARIANTS - 1), false, (uint64_t)mech_cases[i].number);
  expected_floats = expected_count;
  for (int i = 0; i < mech_count; i++)
    for (int v = 0; v < VARIANTS; v++)
      if (i < mech_alone || mech_cases[i].number % (2 * VARIANTS) == v)
        expect(&reference, &mech_cases[i], v, true, (uint64_t)mech_cases[i].number);
  expected_causal = expected_count;
  for (int i = 0; i < open_count; i++)
    for (int v = 0; v < VARIANTS; v++) {
      const struct mech_setup s = variant_open(&open_cases[i], v, (uint64_t)open_cases[i].number);
      expect_setup(&reference, &s);
    }
  mech_close(&reference);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  for (int i = 0; i < expected_count; i++) mech_clear(&expected[i].want);
  return 0;
}

static void check_backend(const char *name, const char *isa, int from, int count) {
  struct mech_place p;
  if (!mech_open(&p, name, isa)) skip();
  for (int i = from; i < count; i++) {
    struct mech_bench got, again;
    p.threads = 1 + i / 2 % 2;
    mech_make(&got, &expected[i].s, WN_F32);
    if (mech_both(&p, &got)) {
      compare(&p, &got, &expected[i]);
      if (i % 2) {
        mech_make(&again, &expected[i].s, WN_F32);
        mech_both(&p, &again);
        if (!same_bits(&got, &again)) fail_msg("%s: %d threads: two runs differ", mech_name(&got), p.threads);
        mech_clear(&again);
      }
    }
    mech_clear(&got);
  }
  mech_close(&p);
}

static void test_ref(void **state) {
  (void)state;
  check_backend("ref", NULL, 0, expected_count);
}
static void test_cpu_plain(void **state) {
  (void)state;
  check_backend("cpu", "ref", 0, expected_alone);
}
static void test_cpu_avx2(void **state) {
  (void)state;
  check_backend("cpu", ISA_OF_EIGHT, 0, expected_causal);
}
static void test_cpu_avx512(void **state) {
  (void)state;
  check_backend("cpu", "avx512", 0, expected_floats);
}

static void test_cpu_bf16(void **state) {
  (void)state;
  check_backend("cpu", NULL, expected_floats, expected_causal);
}

/* As on a processor that has AVX512_BF16 and no tiles. */
static void test_cpu_bf16_without_tiles(void **state) {
  if (!wn_cpu_has_amx()) skip();
  wn_cpu_deny_amx(true);
  test_cpu_bf16(state);
  wn_cpu_deny_amx(false);
}

static void test_open_avx2(void **state) {
  (void)state;
  check_backend("cpu", ISA_OF_EIGHT, expected_causal, expected_count);
}
static void test_open_avx512(void **state) {
  (void)state;
  check_backend("cpu", "avx512", expected_causal, expected_count);
}

/* Open rows that select: the same bits from any number of threads. */
static void test_open_threads(void **state) {
  (void)state;
  struct mech_place p;
  if (!mech_open(&p, "cpu", NULL)) skip();
  for (int i = expected_causal; i < expected_count; i++) {
    struct mech_bench one, more;
    p.threads = 1;
    mech_make(&one, &expected[i].s, WN_F32);
    mech_both(&p, &one);
    for (p.threads = 2; p.threads <= 5; p.threads += 3) {
      mech_make(&more, &expected[i].s, WN_F32);
      mech_both(&p, &more);
      if (!same_bits(&one, &more)) fail_msg("%s: %d threads give other bits than one", mech_name(&more), p.threads);
      mech_clear(&more);
    }
    mech_clear(&one);
  }
  mech_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ref),          cmocka_unit_test(test_cpu_plain),
      cmocka_unit_test(test_cpu_avx2),     cmocka_unit_test(test_cpu_avx512),
      cmocka_unit_test(test_cpu_bf16),     cmocka_unit_test(test_cpu_bf16_without_tiles),
      cmocka_unit_test(test_open_avx2),    cmocka_unit_test(test_open_avx512),
      cmocka_unit_test(test_open_threads),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
