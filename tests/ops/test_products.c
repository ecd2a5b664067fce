/* Winnow's own float products (backends/cpu/product.h), used with AVX2 and in builds without oneDNN and libxsmm: the
 * tolerance rule against sums in double, for awkward shapes and strides. Memory around the result does not change, and
 * a row has the same bits alone and among any number of others. */
#include "isa.h"
#include "support.h"
#include "worst.h"

#include <float.h>
#include <math.h>
#include "backends/cpu/product.h"
#include "base/context.h"
#include "base/rng.h"

enum { PAD = 3, MOST = 300 * 1050 };

static float *a, *b, *c, *before;

static float drawn(uint64_t stream, uint64_t i) {
  return (float)wn_random_uniform(7, stream, i, 0) - 0.5f;
}

/* op(a)[i,k] and op(b)[k,j] */
static float left(const struct wn_sgemm *x, int64_t i, int64_t k) {
  return x->ta ? x->a[k * x->lda + i] : x->a[i * x->lda + k];
}
static float right(const struct wn_sgemm *x, int64_t k, int64_t j) {
  return x->tb ? x->b[j * x->ldb + k] : x->b[k * x->ldb + j];
}

static void compare(const char *who, const struct wn_sgemm *x) {
  double allowed = 0, largest = 0, error = 0;
  for (int64_t i = 0; i < x->M; i++) {
    for (int64_t j = 0; j < x->N; j++) {
      double sum = 0;
      float plain = 0;
      for (int64_t k = 0; k < x->K; k++) {
        sum += (double)left(x, i, k) * (double)right(x, k, j);
        plain += left(x, i, k) * right(x, k, j);
      }
      const float was = before[i * x->ldc + j], found = x->c[i * x->ldc + j];
      if (x->add) sum += (double)was, plain += was;
      const double off = fabs((double)found - sum);
      if (worse(off, error)) error = off;
      allowed = fmax(allowed, fabs((double)plain - sum));
      largest = fmax(largest, fabs(sum));
    }
    for (int64_t j = x->N; j < x->ldc; j++)
      if (x->c[i * x->ldc + j] != before[i * x->ldc + j]) fail_msg("%s: written beyond a row", who);
  }
  if (!(error <= 2 * allowed + 4 * (double)FLT_EPSILON * largest))
    fail_msg("%s: %lld x %lld x %lld%s%s%s: error %g, of a naive sum %g", who, (long long)x->M, (long long)x->N,
             (long long)x->K, x->ta ? " ta" : "", x->tb ? " tb" : "", x->add ? " add" : "", error, allowed);
}

/* Exactly as many bytes as sgemm asks for, so that the address sanitizer detects an overrun, all NaN, so that reading
 * before writing shows. */
static void *room_of(const struct wn_product_ops *ops, int64_t M, int64_t N, int64_t K) {
  const size_t bytes = (ops->room(M, N, K) + 63) / 64 * 64;
  unsigned char *room = aligned_alloc(64, bytes > 0 ? bytes : 64);
  assert_non_null(room);
  memset(room, 0xff, bytes);
  return room;
}

static void check_set(const char *who, const struct wn_product_ops *ops) {
  static const int64_t shapes[][3] = {{1, 1, 1},      {1, 16, 3},  {7, 17, 33},   {6, 64, 128},
                                      {13, 65, 129},  {9, 1, 300}, {200, 15, 7},  {193, 80, 257},
                                      {12, 200, 400}, {5, 31, 0},  {3, 1041, 270}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (int way = 0; way < 8; way++) {
      const int64_t M = shapes[s][0], N = shapes[s][1], K = shapes[s][2];
      const bool ta = way & 1, tb = way & 2, add = way & 4;
      const struct wn_sgemm x = {.ta = ta,
                                 .tb = tb,
                                 .add = add,
                                 .M = M,
                                 .N = N,
                                 .K = K,
                                 .a = a,
                                 .b = b,
                                 .lda = (ta ? M : K) + PAD,
                                 .ldb = (tb ? K : N) + PAD,
                                 .ldc = N + PAD,
                                 .c = c};
      memcpy(c, before, (size_t)(M * x.ldc) * sizeof *c);
      void *room = room_of(ops, M, N, K);
      ops->sgemm(&x, room);
      compare(who, &x);
      /* The last row alone. */
      float alone[1050];
      struct wn_sgemm one = x;
      one.M = 1, one.a = ta ? a + M - 1 : a + (M - 1) * x.lda, one.c = alone;
      memcpy(alone, before + (M - 1) * x.ldc, (size_t)N * sizeof *alone);
      ops->sgemm(&one, room);
      free(room);
      assert_memory_equal(alone, c + (M - 1) * x.ldc, (size_t)N * sizeof *alone);
      if (N % 16 || tb) continue;
      /* The same through tiles, which sum without a break. */
      const struct wn_tile_product tile = {.m = N,
                                           .n = M,
                                           .k = K,
                                           .ldy = x.ldb,
                                           .x_row = ta ? 1 : x.lda,
                                           .x_column = ta ? x.lda : 1,
                                           .ldc = x.ldc,
                                           .add = add};
      memcpy(c, before, (size_t)(M * x.ldc) * sizeof *c);
      ops->tile(&tile, b, a, c);
      compare(who, &x);
    }
  }
}

static bool has(enum wn_isa wanted) {
  enum wn_isa best;
  wn_context *ctx = make_context();
  assert_ok(ctx, wn_cpu_select_isa(ctx, &best));
  wn_context_destroy(ctx);
  return best >= wanted;
}

static void test_avx2(void **state) {
  (void)state;
  if (!has(WN_ISA_AVX2)) skip();
  check_set(ISA_OF_EIGHT, &wn_product_ops_avx2);
}
static void test_avx512(void **state) {
  (void)state;
#if WN_HAS_AVX512
  if (!has(WN_ISA_AVX512)) skip();
  check_set("avx512", &wn_product_ops_avx512);
#else
  skip();
#endif
}

static int setup(void **state) {
  (void)state;
  float **const rooms[] = {&a, &b, &c, &before};
  for (int r = 0; r < 4; r++) {
    *rooms[r] = test_malloc(MOST * sizeof(float));
    for (uint64_t i = 0; i < MOST; i++) (*rooms[r])[i] = drawn((uint64_t)r, i);
  }
  return 0;
}
static int teardown(void **state) {
  (void)state;
  test_free(a), test_free(b), test_free(c), test_free(before);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_avx2), cmocka_unit_test(test_avx512)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
