/* The tolerance rule (attention_law.h) for attention with every mechanism, alone and in pairs, on this machine's
 * backends: whole sequences, rows after cached keys and single rows, with documents, control tokens, evictions and
 * dropout; encoder rows that select; rows in bf16. Memory around the call's elements does not change, and two runs give
 * the same bits. */
#include "attention_law.h"
#include "own_term.h"
#include "isa.h"

#include "backends/cpu/cpu.h"

enum { EXPECTED_MAX = 2 * MECH_CASES_MAX };
static struct expectation expected[EXPECTED_MAX];
static int expected_count, expected_alone, expected_floats, expected_causal;
static struct mech_case open_cases[16], edge_cases[40];

/* Sizes around the tiles of 64 rows and the vectors of 16 lanes. */
static struct mech_setup variant(const struct mech_case *c, int which, uint64_t seed) {
  struct mech_setup s = {.c = c, .B = 1, .Tq = 67, .Tk = 67, .H = 2, .Hkv = 1, .D = 16, .seed = seed};
  if (which == 1) s.Tq = s.Tk = 65, s.H = 4, s.Hkv = 2, s.D = 20, s.documents = s.control = true, s.dropout = 0.3;
  if (which == 2) s.Tq = 37, s.Tk = 131, s.dk_from = 94, s.D = 8, s.f_in = s.heads_first = true;
  if (which == 3) s.Tq = 1, s.Tk = 70, s.B = 2, s.dk_from = 69, s.H = 4, s.Hkv = 2, s.f_in = s.control = true;
  if (which == 4) s.Tq = s.Tk = 130, s.B = 2, s.H = 3, s.Hkv = 3, s.D = 33, s.documents = s.heads_first = true;
  if (which == 5) s.Tq = 64, s.Tk = 128, s.dk_from = 10, s.f_in = s.documents = true, s.dropout = 0.1;
  return s;
}
/* The same in bf16: sizes around the pairs and blocks of its products, and rows that start inside a pair. Half of them
 * use AMX tiles, if available. */
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
/* Rows without a causal mask. */
static struct mech_setup variant_open(const struct mech_case *c, int which, uint64_t seed) {
  struct mech_setup s = {.c = c, .B = 1, .Tq = 67, .Tk = 67, .H = 2, .Hkv = 1, .D = 16, .seed = seed};
  if (which == 1) s.B = 4, s.Tq = s.Tk = 65, s.H = 4, s.Hkv = 2, s.D = 20, s.padded = true, s.dropout = 0.3;
  if (which == 2) s.B = 9, s.Tq = s.Tk = 37, s.D = 8, s.heads_first = s.padded = true;
  if (which == 3) s.B = 2, s.Tq = s.Tk = 1, s.H = 4, s.Hkv = 2;
  if (which == 4) s.B = 2, s.Tq = s.Tk = 150, s.H = 3, s.Hkv = 3, s.D = 33, s.heads_first = true;
  if (which == 5) s.B = 3, s.Tq = s.Tk = 128, s.H = 4, s.Hkv = 2, s.D = 24, s.padded = s.bf16 = true;
  return s;
}

static void expect_setup(struct mech_place *reference, const struct mech_setup *s) {
  assert_true(expected_count < EXPECTED_MAX);
  law_expect(reference, s, &expected[expected_count++]);
}

static void expect(struct mech_place *reference, const struct mech_case *c, int which, bool bf16, uint64_t seed) {
  struct mech_setup s = bf16 ? variant_bf16(c, which, seed) : variant(c, which, seed);
  s.evicts = (int)((seed + (uint64_t)which) % 3);
  expect_setup(reference, &s);
}

static int setup(void **state) {
  (void)state;
  struct mech_place reference;
  wn_mechanism_of_test = &own_term;
  if (!mech_open(&reference, "ref", NULL)) return -1;
  mech_list_open();
  memcpy(open_cases, mech_cases, (size_t)mech_count * sizeof *open_cases);
  const int open_count = mech_count;
  mech_list_edges();
  memcpy(edge_cases, mech_cases, (size_t)mech_count * sizeof *edge_cases);
  const int edge_count = mech_count;
  mech_list(true);
  for (int i = 0; i < mech_alone; i++)
    for (int v = 0; v < VARIANTS; v++) expect(&reference, &mech_cases[i], v, false, (uint64_t)mech_cases[i].number);
  for (int i = 0; i < edge_count; i++) {
    struct mech_setup s = variant(&edge_cases[i], i % VARIANTS, (uint64_t)edge_cases[i].number);
    s.edges = true;
    expect_setup(&reference, &s);
  }
  expected_alone = expected_count;
  for (int i = mech_alone; i < mech_count; i++)
    expect(&reference, &mech_cases[i], mech_cases[i].number % (VARIANTS - 1), false, (uint64_t)mech_cases[i].number);
  expected_floats = expected_count;
  for (int i = 0; i < mech_count; i++)
    for (int v = 0; v < VARIANTS; v++)
      if (i < mech_alone || mech_cases[i].number % (2 * VARIANTS) == v)
        expect(&reference, &mech_cases[i], v, true, (uint64_t)mech_cases[i].number);
  for (int i = 0; i < edge_count; i++) {
    struct mech_setup s = variant_bf16(&edge_cases[i], i % VARIANTS, (uint64_t)edge_cases[i].number);
    s.edges = true;
    expect_setup(&reference, &s);
  }
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
      law_compare(&p, &got, &expected[i]);
      if (i % 2) {
        mech_make(&again, &expected[i].s, WN_F32);
        mech_both(&p, &again);
        if (!law_same_bits(&got, &again)) fail_msg("%s: %d threads: two runs differ", mech_name(&got), p.threads);
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

/* As on a processor with AVX512_BF16 but without tiles. */
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

/* Rows without a causal mask that select: the same bits with any number of threads. */
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
      if (!law_same_bits(&one, &more)) fail_msg("%s: %d threads give other bits than one", mech_name(&more), p.threads);
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
