/* The emulation of a GPU (emulate.h) itself: correct kernels are correct in every order of threads; a missing barrier
 * or wait shows; and what a GPU would refuse, corrupt or hang on is detected. */
#include "support.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/rng.h"
#include "cuda/emulate_api.h"
#include "cuda/emulator_kernels.h"
#include "io/stored.h"
#include "tensor/bf16.h"
#include "tensor/f16.h"

#define SEEDS 8

static float number(uint64_t i) {
  return (float)wn_random_below(5, WN_STREAM_TEST, 1, i, 100);
}

static int sums_wrong(unsigned barriers) {
  enum { BLOCKS = 5, N = 128 };
  float x[BLOCKS * N], out[BLOCKS];
  int wrong = 0;
  for (int i = 0; i < BLOCKS * N; i++) x[i] = number((uint64_t)i);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    wn_emulate_seed(seed);
    kernel_sum(x, out, BLOCKS, N, barriers);
    assert_null(wn_emulate_error());
    for (int b = 0; b < BLOCKS; b++) {
      float sum = 0;
      for (int i = 0; i < N; i++) sum += x[b * N + i];
      wrong += !(out[b] == sum);
    }
  }
  return wrong;
}
static void test_barriers(void **state) {
  (void)state;
  assert_int_equal(sums_wrong(3), 0);
  assert_true(sums_wrong(2) > 0); /* no barrier before the tree */
  assert_true(sums_wrong(1) > 0); /* none within it */
}

static int rounds_wrong(int n, bool second_barrier) {
  int x[64], y[64], wrong = 0;
  for (int i = 0; i < n; i++) x[i] = i;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    wn_emulate_seed(seed);
    kernel_rounds(x, y, n, 7, second_barrier);
    assert_null(wn_emulate_error());
    for (int i = 0; i < n; i++) wrong += y[i] != (i + 7) % n;
  }
  return wrong;
}
static void test_overwriting(void **state) {
  (void)state;
  assert_int_equal(rounds_wrong(64, true), 0);
  assert_int_equal(rounds_wrong(41, true), 0); /* not a whole number of warps */
  assert_true(rounds_wrong(64, false) > 0);
}

static void test_lanes(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 3; seed++) {
    int32_t out[32][6];
    wn_emulate_seed(seed);
    kernel_lanes(&out[0][0], 32);
    assert_null(wn_emulate_error());
    for (int l = 0; l < 32; l++) {
      const int first = l / 8 * 8;
      assert_int_equal(out[l][0], (first + 3) * 10);
      assert_int_equal(out[l][1], (l - first < 2 ? l : l - 2) * 10);
      assert_int_equal(out[l][2], (l - first == 7 ? l : l + 1) * 10);
      assert_int_equal(out[l][3], l ^ 4);
      assert_int_equal(out[l][4], 0x49249249);
      assert_int_equal(out[l][5], 2);
    }
    kernel_lanes(&out[0][0], 12); /* the others have ended and are not waited for */
    assert_null(wn_emulate_error());
    for (int l = 0; l < 12; l++) assert_int_equal(out[l][4], 0x249);
    for (int l = 0; l < 12; l++) assert_int_equal(out[l][5], 3);
  }
}

static uint16_t bits_of(float x, bool half) {
  return half ? emulated_half(x) : wn_bf16_round(x);
}
static void test_products(void **state) {
  (void)state;
  for (int form = 0; form < 4; form++) {
    const bool half = form % 2;
    uint16_t a[16 * 16], bt[8 * 16];
    float va[16 * 16], vb[8 * 16], d[16 * 8];
    for (int i = 0; i < 256; i++) va[i] = (float)wn_random_below(1, WN_STREAM_TEST, 2, (uint64_t)i, 17) - 8;
    for (int i = 0; i < 128; i++) vb[i] = (float)wn_random_below(1, WN_STREAM_TEST, 3, (uint64_t)i, 17) - 8;
    for (int i = 0; i < 256; i++) a[i] = bits_of(va[i], half);
    for (int i = 0; i < 128; i++) bt[i] = bits_of(vb[i], half);
    wn_emulate_seed(1);
    kernel_product(a, bt, d, form / 2 ? 8 : 16, half);
    assert_null(wn_emulate_error());
    for (int r = 0; r < 16; r++)
      for (int c = 0; c < 8; c++) {
        float sum = 0;
        for (int k = 0; k < 16; k++) sum += va[r * 16 + k] * vb[c * 16 + k];
        assert_true(d[r * 8 + c] == sum);
      }
  }
  uint16_t x[64], y[64];
  for (int i = 0; i < 64; i++) x[i] = (uint16_t)(i * 37);
  for (int move = 0; move < 2; move++) {
    kernel_transpose(x, y, move);
    assert_null(wn_emulate_error());
    for (int i = 0; i < 64; i++) assert_int_equal(y[i], x[i % 8 * 8 + i / 8]);
  }
}

static void test_copies(void **state) {
  (void)state;
  enum { N = 256, VALID = 201 };
  float x[VALID], y[N];
  for (int i = 0; i < VALID; i++) x[i] = number((uint64_t)i) + 1;
  for (uint64_t seed = 0; seed < 3; seed++) {
    wn_emulate_seed(seed);
    kernel_copy(x, y, N, VALID, true);
    assert_null(wn_emulate_error());
    for (int i = 0; i < N; i++) {
      const int from = i / 64 * 64 + 63 - i % 64;
      assert_true(y[i] == (from < VALID ? x[from] : 0));
    }
    kernel_copy(x, y, N, VALID, false);
    assert_null(wn_emulate_error());
    for (int i = 0; i < N; i++) assert_true(isnan(y[i])); /* nothing has arrived */
  }
}

static void test_handshake(void **state) {
  (void)state;
  enum { STEPS = 9 };
  float x[STEPS * 32], y[STEPS * 32];
  for (int i = 0; i < STEPS * 32; i++) x[i] = number((uint64_t)i);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    wn_emulate_seed(seed);
    kernel_handshake(x, y, STEPS);
    assert_null(wn_emulate_error());
    for (int i = 0; i < STEPS * 32; i++) assert_true(y[i] == 2 * x[i / 32 * 32 + 31 - i % 32]);
  }
}

static void test_refusals(void **state) {
  (void)state;
  static const struct {
    enum fault fault;
    const char *text;
  } cases[] = {
      {FAULT_ENDLESS, "wait for ever"},       {FAULT_DIVERGED, "different instructions"},
      {FAULT_BARRIERS, "different barriers"}, {FAULT_NOT_ASKED, "not asked for"},
      {FAULT_TOO_MUCH, "the limit is"},       {FAULT_NAMED_TOO_MUCH, "the limit is"},
      {FAULT_THREADS, "1025x1x1 threads"},    {FAULT_ALIGNMENT, "not aligned"},
  };
  float x[64] = {0};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_emulate_seed(i);
    kernel_fault(cases[i].fault, x, 64);
    const char *error = wn_emulate_error();
    if (!error || !strstr(error, cases[i].text))
      fail_msg("\"%s\" lacks \"%s\"", error ? error : "no error", cases[i].text);
    assert_null(wn_emulate_error()); /* reported once */
    float y[8];
    kernel_sum(x, y, 1, 32, 3); /* the next launch is unaffected */
    assert_null(wn_emulate_error());
    assert_true(y[0] == 0);
  }
}

/* A child process accesses memory beyond an end: does the sanitizer, or without one the emulation, report it? */
static bool found(enum fault fault) {
  int out[2];
  assert_int_equal(pipe(out), 0);
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], 2);
    float *x = calloc(64, sizeof *x);
    if (!x) _exit(9);
    kernel_fault(fault, x, 64);
    const char *error = wn_emulate_error();
    if (error) fprintf(stderr, "emulation: %s\n", error);
    free(x);
    fflush(stderr);
    _exit(error ? 1 : 0);
  }
  close(out[1]);
  char text[16384];
  size_t n = 0;
  for (ssize_t got; n < sizeof text - 1 && (got = read(out[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
  text[n] = 0;
  close(out[0]);
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return status != 0 &&
         (strstr(text, "buffer-overflow") || strstr(text, "index 32 out of bounds") || strstr(text, "written outside"));
}
static void test_beyond_the_end(void **state) {
  (void)state;
  assert_true(found(FAULT_SHARED_WRITE));
  assert_true(found(FAULT_DYNAMIC_WRITE));
#ifdef __SANITIZE_ADDRESS__
  assert_true(found(FAULT_SHARED_READ));
  assert_true(found(FAULT_GLOBAL_READ));
  assert_true(found(FAULT_GLOBAL_WRITE));
#endif
}

static void test_halves(void **state) {
  (void)state;
  for (uint32_t h = 0; h < 65536; h++) {
    const float value = emulated_half_value((uint16_t)h);
    const bool nan = (h & 0x7c00) == 0x7c00 && (h & 1023);
    if (nan) {
      assert_true(isnan(value));
      continue;
    }
    assert_true(value == wn_stored_half((uint16_t)h));
    assert_int_equal(emulated_half(value), h);
    assert_int_equal(wn_f16_round(value), h);
    /* Halfway to the next one and around: to nearest, ties to even. */
    if ((h & 0x7fff) >= 0x7bff) continue;
    const float next = emulated_half_value((uint16_t)(h + 1)), middle = (value + next) / 2;
    assert_int_equal(emulated_half(middle), h % 2 ? h + 1 : h);
    assert_int_equal(emulated_half(nextafterf(middle, value)), h);
    assert_int_equal(emulated_half(nextafterf(middle, next)), h + 1);
  }
  assert_int_equal(emulated_half(65519.0f), 0x7bff);
  assert_int_equal(emulated_half(65520.0f), 0x7c00);
  assert_int_equal(emulated_half(-1e30f), 0xfc00);
  assert_int_equal(emulated_relu_halves(-3, 1e30f), 0x7bff0000);
  assert_int_equal(emulated_relu_halves(1.5f, -0.0f), emulated_half(1.5f));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_barriers), cmocka_unit_test(test_overwriting), cmocka_unit_test(test_lanes),
      cmocka_unit_test(test_products), cmocka_unit_test(test_copies),      cmocka_unit_test(test_handshake),
      cmocka_unit_test(test_refusals), cmocka_unit_test(test_halves),      cmocka_unit_test(test_beyond_the_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
