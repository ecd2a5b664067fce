/* Random numbers: Philox4x32-10 against its published test vectors, ranges, moments, permutations. */
#include "support.h"

#include <math.h>

#include "base/rng.h"

/* The known answers of Random123 (Salmon et al.) for philox4x32, 10 rounds. */
static void philox_gives_the_published_vectors(void **state) {
  (void)state;
  static const struct {
    uint32_t counter[4], key[2], expected[4];
  } rows[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const uint32_t *c = rows[i].counter, *k = rows[i].key;
    uint32_t out[4];
    wn_philox((uint64_t)k[1] << 32 | k[0], (uint64_t)c[3] << 32 | c[2], (uint64_t)c[1] << 32 | c[0], out);
    for (int w = 0; w < 4; w++) assert_int_equal(out[w], rows[i].expected[w]);
  }
}

static void numbers_depend_on_every_argument(void **state) {
  (void)state;
  uint64_t base = wn_random_u64(1, 2, 3, 4);
  assert_int_equal(base, wn_random_u64(1, 2, 3, 4));
  assert_true(base != wn_random_u64(2, 2, 3, 4));
  assert_true(base != wn_random_u64(1, 3, 3, 4));
  assert_true(base != wn_random_u64(1, 2, 4, 4));
  assert_true(base != wn_random_u64(1, 2, 3, 5));
  assert_true(wn_random_u64(1, 2, 3, 0) != wn_random_u64(1, 2, 0, 3));
}

static void moments_are_those_of_the_distributions(void **state) {
  (void)state;
  enum { N = 200000 };
  double sum = 0, square = 0, normal = 0, normal_square = 0, normal_fourth = 0;
  for (uint64_t i = 0; i < N; i++) {
    double u = wn_random_uniform(7, WN_STREAM_TEST, 0, i), z = wn_random_normal(7, WN_STREAM_TEST, 1, i);
    assert_true(u >= 0 && u < 1 && isfinite(z));
    sum += u;
    square += u * u;
    normal += z;
    normal_square += z * z;
    normal_fourth += z * z * z * z;
  }
  /* Within five standard errors of each moment. */
  assert_true(fabs(sum / N - 0.5) < 5 * 0.2887 / sqrt(N));
  assert_true(fabs(square / N - 1.0 / 3) < 5 * 0.2981 / sqrt(N));
  assert_true(fabs(normal / N) < 5 / sqrt(N));
  assert_true(fabs(normal_square / N - 1) < 5 * sqrt(2.0 / N));
  assert_true(fabs(normal_fourth / N - 3) < 5 * sqrt(96.0 / N));
}

static void below_covers_its_range_evenly(void **state) {
  (void)state;
  enum { N = 7, DRAWS = 70000 };
  int counts[N] = {0};
  for (uint64_t i = 0; i < DRAWS; i++) {
    uint64_t r = wn_random_below(3, WN_STREAM_TEST, 9, i, N);
    assert_in_range(r, 0, N - 1);
    counts[r]++;
  }
  double chi = 0;
  for (int i = 0; i < N; i++) chi += (counts[i] - DRAWS / N) * (double)(counts[i] - DRAWS / N) / (DRAWS / N);
  assert_true(chi < 27.9); /* 6 degrees of freedom: p = 1e-4 */
  assert_int_equal(wn_random_below(3, WN_STREAM_TEST, 0, 0, 1), 0);
  assert_true(wn_random_below(3, WN_STREAM_TEST, 0, 0, UINT64_MAX) < UINT64_MAX);
}

static void permutations_visit_everything_once(void **state) {
  (void)state;
  static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 1000, 4097};
  static unsigned char seen[5000];
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    uint64_t n = sizes[s], fixed = 0;
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
      memset(seen, 0, sizeof seen);
      for (uint64_t i = 0; i < n; i++) {
        uint64_t p = wn_random_permute(5, WN_STREAM_DATA, epoch, n, i);
        assert_true(p < n);
        assert_false(seen[p]);
        seen[p] = 1;
        fixed += p == i;
      }
    }
    if (n >= 1000) assert_true(fixed < 30); /* 3 expected */
  }
  uint64_t large = (uint64_t)1 << 62;
  assert_true(wn_random_permute(5, WN_STREAM_DATA, 0, large, large - 1) < large);
  assert_true(wn_random_permute(5, WN_STREAM_DATA, 0, large, 0) != wn_random_permute(5, WN_STREAM_DATA, 1, large, 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(philox_gives_the_published_vectors),     cmocka_unit_test(numbers_depend_on_every_argument),
      cmocka_unit_test(moments_are_those_of_the_distributions), cmocka_unit_test(below_covers_its_range_evenly),
      cmocka_unit_test(permutations_visit_everything_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
