/* Quantised weights against the same weights as floats: every storage type and mixtures, awkward shapes, forward and
 * the gradient of the input, on both backends; and refusals. The reference computes with the floats that the blocks
 * stand for, so it must agree with a dense product of those floats to the last bits.
 *
 * The cpu backend's error is bounded by the rounding of x to 8 bits: if a block of x has largest magnitude A, each
 * element is off by at most A/254, so a sum is off by at most sum_k |w_k| A_block(k) / 254, plus the rounding of float
 * sums. */
#include "isa.h"
#include "support.h"

#include <float.h>
#include <math.h>

#include "backends/backends.h"
#include "backends/cpu/packed/packed.h"
#include "base/context.h"
#include "base/rng.h"
#include "io/gguf_types.h"
#include "packed_weights.h"

static float normal(uint64_t stream, int64_t i) {
  return (float)wn_random_normal(11, WN_STREAM_TEST, stream, (uint64_t)i);
}

struct shape {
  int64_t M, N, K;
  int parts;
  bool bias, accumulate;
};

/* A matrix, quantised and as floats; inputs and outputs with margins that must not change. */
struct bench {
  struct shape s;
  struct packed_weights w;
  float *x, *b, *y, *dense;
  int64_t ldx, ldy;
  void *scratch;
};

static void *room(size_t bytes) {
  void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
  assert_non_null(p);
  return p;
}

static void bench_make(struct bench *t, const struct shape *s, const wn_gguf_type *types) {
  t->s = *s;
  packed_weights_make(&t->w, s->N, s->K, s->parts, types, 5);
  t->ldx = s->K + 3;
  t->ldy = s->N + 5;
  t->x = room((size_t)(s->M * t->ldx) * sizeof(float));
  t->b = room((size_t)s->N * sizeof(float));
  t->y = room((size_t)(s->M * t->ldy) * sizeof(float));
  t->dense = room((size_t)(s->M * t->ldy) * sizeof(float));
  for (int64_t i = 0; i < s->M * t->ldx; i++) t->x[i] = normal(1, i) * (i % 7 == 0 ? 4 : 1);
  for (int64_t i = 0; i < s->N; i++) t->b[i] = normal(2, i);
  for (int64_t i = 0; i < s->M * t->ldy; i++) t->y[i] = t->dense[i] = normal(3, i);
  t->scratch = NULL;
}

static void bench_clear(struct bench *t) {
  packed_weights_clear(&t->w);
  free(t->x), free(t->b), free(t->y), free(t->dense), free(t->scratch);
}

static struct wn_linear call(const struct bench *t, bool packed, float *y) {
  const struct shape *s = &t->s;
  return (struct wn_linear){.M = s->M,
                            .N = s->N,
                            .K = s->K,
                            .x = t->x,
                            .ldx = t->ldx,
                            .w = packed ? NULL : t->w.dense,
                            .packed = packed ? &t->w.packed : NULL,
                            .b = s->bias ? t->b : NULL,
                            .y = y,
                            .ldy = t->ldy,
                            .accumulate = s->accumulate};
}

static void forward(struct wn_exec e, struct bench *t, const struct wn_linear *a) {
  const size_t need = wn_op_linear_scratch(&e, a, false);
  free(t->scratch);
  e.scratch = t->scratch = need ? room(need) : NULL;
  e.scratch_bytes = need;
  if (need) memset(t->scratch, 0xff, need); /* need not be cleared */
  assert_ok(e.ctx, wn_op_linear_forward(&e, a));
}

/* How x is rounded for a row of w. */
enum rounding { EXACT, EIGHT_BITS, BFLOAT16 };

/* How far 8-bit blocks of 32 elements of x, or bfloat16, may move y[m,n], plus float sums. */
static double allowed(const struct bench *t, int64_t m, int64_t n, enum rounding rounding) {
  double eight = 0, sums = 0;
  const float *x = t->x + m * t->ldx, *w = t->w.dense + n * t->s.K;
  for (int64_t k0 = 0; k0 < t->s.K; k0 += 32) {
    const int64_t end = k0 + 32 < t->s.K ? k0 + 32 : t->s.K;
    double most = 0, weights = 0;
    for (int64_t k = k0; k < end; k++) {
      most = fmax(most, fabs((double)x[k]));
      weights += fabs((double)w[k]);
      sums += fabs((double)x[k] * (double)w[k]);
    }
    eight += most * weights / 254;
  }
  return (rounding == EIGHT_BITS ? eight : rounding == BFLOAT16 ? sums / 256 : 0) + sums * FLT_EPSILON * 8 + 1e-6;
}

/* Weights of these types are multiplied as floats, with x unrounded. */
static bool is_float(wn_gguf_type type) {
  return type == WN_GGUF_F32 || type == WN_GGUF_F16 || type == WN_GGUF_BF16;
}

/* The backend rounds x to bfloat16 if the whole matrix is bfloat16. */
static bool rounds_to_bfloat16(const struct wn_backend *backend, const struct wn_packed *p) {
  bool all = backend == wn_backend_cpu(WN_ISA_AVX512);
#if defined(__x86_64__)
  all = all && __builtin_cpu_supports("avx512bf16");
#else
  all = false;
#endif
  for (int i = 0; i < p->count; i++) all = all && p->part[i].type == WN_GGUF_BF16;
  return all;
}

static void check_forward(wn_context *ctx, const struct wn_backend *backend, const struct shape *s,
                          const wn_gguf_type *types) {
  const bool exact = !strcmp(backend->name, "ref") || (ctx->exact_rows && s->M >= ctx->exact_rows);
  struct bench t;
  bench_make(&t, s, types);
  const bool bfloat16 = !exact && rounds_to_bfloat16(backend, &t.w.packed);
  const struct wn_exec ref = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F32};
  const struct wn_linear dense = call(&t, false, t.dense), packed = call(&t, true, t.y);
  float *start = room((size_t)(s->M * t.ldy) * sizeof(float)), *first = room((size_t)(s->M * t.ldy) * sizeof(float));
  memcpy(start, t.y, (size_t)(s->M * t.ldy) * sizeof(float));
  forward(ref, &t, &dense);
  for (int threads = 1; threads <= 2; threads++) {
    memcpy(t.y, start, (size_t)(s->M * t.ldy) * sizeof(float));
    const struct wn_exec exec = {
        .ctx = ctx, .backend = backend, .threads = threads, .dtype = WN_F32, .exact_rows = ctx->exact_rows};
    forward(exec, &t, &packed);
    for (int64_t m = 0; m < s->M; m++) {
      for (int64_t n = 0; n < t.ldy; n++) {
        const int64_t i = m * t.ldy + n;
        wn_gguf_type type = WN_GGUF_F32;
        if (n < s->N) wn_packed_row(&t.w.packed, s->K, n, &type);
        const double limit = n >= s->N ? 0
                                       : allowed(&t, m, n,
                                                 bfloat16                  ? BFLOAT16
                                                 : exact || is_float(type) ? EXACT
                                                                           : EIGHT_BITS);
        const double error = fabs((double)t.y[i] - (double)t.dense[i]);
        if (!(error <= limit))
          fail_msg("%s, %d threads, M %lld N %lld K %lld, %s: y[%lld,%lld] is %.9g, expected %.9g; limit %.3g",
                   backend->name, threads, (long long)s->M, (long long)s->N, (long long)s->K, wn_gguf_type_name(type),
                   (long long)m, (long long)n, (double)t.y[i], (double)t.dense[i], limit);
      }
    }
    /* Threads divide the rows of w, so their number changes no bit, except in sgemm. */
    if (threads == 1 || s->M > 32 || exact)
      memcpy(first, t.y, (size_t)(s->M * t.ldy) * sizeof(float));
    else
      assert_memory_equal(first, t.y, (size_t)(s->M * t.ldy) * sizeof(float));
  }
  free(start), free(first);
  bench_clear(&t);
}

/* Few rows are decoding, many are a prompt; N is not a multiple of any block of rows. */
static const struct shape shapes[] = {
    {1, 1, 256, 1, false, false},  {1, 37, 512, 1, true, false},  {2, 67, 256, 1, false, true},
    {3, 50, 768, 3, true, true},   {5, 33, 256, 2, false, false}, {8, 48, 512, 2, true, false},
    {9, 35, 256, 1, false, false}, {33, 70, 512, 3, true, true},  {70, 131, 256, 2, false, false},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void check_backend(const char *name, const char *isa) {
  wn_context *ctx = NULL;
  if (!context_with_isa(name, isa, 2, &ctx)) skip();
  const struct wn_backend *backend = NULL;
  assert_ok(ctx, wn_backend_of(ctx, &backend));
  for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
    for (int i = 0; i < SHAPES; i++) {
      const wn_gguf_type types[3] = {(wn_gguf_type)type, (wn_gguf_type)((type + 4) % WN_GGUF_TYPE_COUNT),
                                     (wn_gguf_type)((type + 9) % WN_GGUF_TYPE_COUNT)};
      check_forward(ctx, backend, &shapes[i], types);
    }
  }
  /* Rows of 32, which are not 256; rows of single weights that do not fill a vector. */
  for (int type = WN_GGUF_F32; type <= WN_GGUF_Q5_1; type++) {
    const wn_gguf_type types[1] = {(wn_gguf_type)type};
    const bool single = is_float(types[0]);
    const struct shape narrow[] = {{1, 19, 32, 1, false, false},
                                   {2, 40, single ? 75 : 96, 1, true, false},
                                   {4, 21, single ? 1 : 576, 1, false, true},
                                   {40, 51, single ? 577 : 608, 1, true, false}};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) check_forward(ctx, backend, &narrow[i], types);
  }
  wn_context_destroy(ctx);
}

static void test_ref(void **state) {
  (void)state;
  check_backend("ref", NULL);
}
static void test_cpu_plain(void **state) {
  (void)state;
  check_backend("cpu", "ref");
}
static void test_cpu_avx2(void **state) {
  (void)state;
  check_backend("cpu", ISA_OF_EIGHT);
}
static void test_cpu_avx512(void **state) {
  (void)state;
  check_backend("cpu", "avx512");
}

/* With and without VNNI the sums are the same integers, scaled in the same lanes: same bits. */
static void test_without_vnni(void **state) {
  (void)state;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bw")) skip();
  const struct wn_cpu_packed_kernels *sets[2] = {wn_cpu_packed_kernels_avx512(), wn_cpu_packed_kernels_vnni()};
  enum { K = 768, ROWS = 5, TILE = WN_CPU_PACKED_TILE };
  static int8_t bytes[TILE * K];
  static int32_t sums[TILE * K / 32];
  static float scales[2][TILE * K / 32], x[TILE * K], to[2][WN_CPU_PACKED_AT_ONCE * TILE], floats[2][K];
  for (int i = 0; i < TILE * K; i++) x[i] = normal(12, i);
  for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
    const wn_gguf_type types[1] = {(wn_gguf_type)type};
    struct packed_weights w;
    packed_weights_make(&w, ROWS, K, 1, types, 7);
    const struct wn_cpu_packed_x q = {
        .K = K, .ld = K, .ldd = K / 32, .q = bytes, .d = scales[0], .s = scales[1], .n = sums, .x = x, .ldx = K};
    for (int s = 0; s < 2; s++) {
      for (int64_t m = 0; m < TILE; m++) sets[s]->quantize(&q, m);
      sets[s]->product(types[0], w.packed.part[0].data, ROWS, &q, 0, TILE, to[s]);
      sets[s]->decode(types[0], w.packed.part[0].data, K, floats[s]);
    }
    assert_memory_equal(to[0], to[1], sizeof to[0]);
    assert_memory_equal(floats[0], floats[1], sizeof floats[0]);
    packed_weights_clear(&w);
  }
#else
  skip();
#endif
}

/* From exact_rows on x is not rounded, with any instruction set. */
static void test_exact_rows(void **state) {
  (void)state;
  for (int rows = 1; rows <= 5; rows += 4) {
    wn_context_options options = {.size = sizeof options, .threads = 2, .exact_rows = rows};
    wn_context *ctx = NULL;
    assert_int_equal(wn_context_create(&options, &ctx), WN_OK);
    assert_int_equal(ctx->exact_rows, rows);
    const struct wn_backend *cpu = NULL;
    assert_ok(ctx, wn_backend_of(ctx, &cpu));
    for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
      const wn_gguf_type types[1] = {(wn_gguf_type)type};
      for (int64_t M = 1; M <= 64; M *= 4) check_forward(ctx, cpu, &(struct shape){M, 67, 256, 1, true, false}, types);
    }
    wn_context_destroy(ctx);
  }
  wn_context *ctx = NULL;
  const wn_status status =
      wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .exact_rows = -1}, &ctx);
  assert_refused(ctx, status, WN_ERR_ARGUMENT, "exact_rows is -1");
  wn_context_destroy(ctx);
}

static void check_rows_alone(wn_context *ctx, const struct wn_backend *cpu) {
  const int64_t rows[] = {2, 7, 12, 13, 16, 29, 33, 64, 525};
  const int64_t N = 39;
  for (int type = WN_GGUF_Q8_0; type < WN_GGUF_TYPE_COUNT; type++) {
    for (int64_t K = type < WN_GGUF_Q4_K ? 32 : 256; K <= 576; K = K == 32 ? 96 : K == 96 ? 576 : 2 * K) {
      const struct shape s = {.M = 525, .N = N, .K = K, .parts = 2, .bias = true};
      const wn_gguf_type types[2] = {(wn_gguf_type)type, WN_GGUF_Q8_0};
      struct bench t;
      bench_make(&t, &s, types);
      for (int64_t i = 0; i < 32; i++) t.x[5 * t.ldx + i] *= 1e-37f; /* its 8-bit scale is below any float */
      struct wn_exec e = {.ctx = ctx, .backend = cpu, .threads = 1, .dtype = WN_F32};
      struct wn_linear one = call(&t, true, t.dense);
      for (int64_t m = 0; m < s.M; m++) {
        one.M = 1, one.x = t.x + m * t.ldx, one.y = t.dense + m * t.ldy;
        forward(e, &t, &one);
      }
      for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct wn_linear all = call(&t, true, t.y);
        const int64_t from = rows[i] < 100 ? 3 : 0;
        all.M = rows[i], all.x = t.x + from * t.ldx;
        e.threads = 1 + (int)i % 3;
        forward(e, &t, &all);
        for (int64_t m = 0; m < rows[i]; m++)
          assert_memory_equal(t.y + m * t.ldy, t.dense + (from + m) * t.ldy, (size_t)N * sizeof(float));
      }
      bench_clear(&t);
    }
  }
}

/* With tiles (AVX2, AVX-512 VNNI) a row of a prompt has the same bits as alone: for any number of rows, any place among
 * them and any number of threads. */
static void test_rows_alone(void **state) {
  (void)state;
#if defined(__x86_64__)
  wn_context *ctx = NULL;
  assert_int_equal(wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 3}, &ctx),
                   WN_OK);
  const enum wn_isa best = ctx->isa;
  if (best >= WN_ISA_AVX2) check_rows_alone(ctx, wn_backend_cpu(WN_ISA_AVX2));
  if (best >= WN_ISA_AVX512 && __builtin_cpu_supports("avx512vnni"))
    check_rows_alone(ctx, wn_backend_cpu(WN_ISA_AVX512));
  wn_context_destroy(ctx);
  if (best < WN_ISA_AVX2) skip();
#else
  skip();
#endif
}

/* dx against that of dense weights on the double reference. There are no dw and dtok. */
static void test_backward(void **state) {
  (void)state;
  wn_context *ctx = NULL;
  assert_int_equal(wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 2}, &ctx),
                   WN_OK);
  const struct wn_backend *cpu = NULL;
  assert_ok(ctx, wn_backend_of(ctx, &cpu));
  const struct shape s = {.M = 19, .N = 40, .K = 512, .parts = 3};
  const wn_gguf_type types[3] = {WN_GGUF_Q4_1, WN_GGUF_Q6_K, WN_GGUF_F16};
  struct bench t;
  bench_make(&t, &s, types);
  const int64_t n = s.M * t.ldx;
  float *dx[2] = {room((size_t)n * sizeof(float)), room((size_t)n * sizeof(float))}, db[64] = {0};
  for (int i = 0; i < 4; i++) {
    const bool add = i & 1;
    for (int64_t k = 0; k < n; k++) dx[0][k] = dx[1][k] = normal(8, k);
    struct wn_linear a = {.M = s.M,
                          .N = s.N,
                          .K = s.K,
                          .x = t.x,
                          .ldx = t.ldx,
                          .w = t.w.dense,
                          .dy = t.y,
                          .lddy = t.ldy,
                          .dx = dx[0],
                          .lddx = t.ldx,
                          .accumulate_dx = add};
    const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 2, .dtype = WN_F32};
    assert_ok(ctx, wn_op_linear_backward(&e, &a));
    a.w = NULL, a.packed = &t.w.packed, a.dx = dx[1], a.db = db;
    struct wn_exec other = e;
    other.backend = i < 2 ? e.backend : cpu;
    const size_t need = wn_op_linear_scratch(&other, &a, true);
    free(t.scratch);
    other.scratch = t.scratch = need ? room(need) : NULL, other.scratch_bytes = need;
    assert_ok(ctx, wn_op_linear_backward(&other, &a));
    for (int64_t k = 0; k < n; k++) {
      double sums = fabs((double)dx[0][k]);
      for (int64_t r = 0; r < s.N && k % t.ldx < s.K; r++)
        sums += fabs((double)t.y[k / t.ldx * t.ldy + r] * (double)t.w.dense[r * s.K + k % t.ldx]);
      const double limit = k % t.ldx >= s.K ? 0 : 8 * FLT_EPSILON * sums;
      if (!(fabs((double)dx[1][k] - (double)dx[0][k]) <= limit))
        fail_msg("dx[%lld] is %g, expected %g", (long long)k, (double)dx[1][k], (double)dx[0][k]);
    }
    a.dw = dx[0];
    assert_refused(ctx, wn_op_linear_backward(&other, &a), WN_ERR_UNSUPPORTED, "packed weights have no gradient");
  }
  free(dx[0]), free(dx[1]);
  bench_clear(&t);
  wn_context_destroy(ctx);
}

static void test_embedding(void **state) {
  (void)state;
  wn_context *ctx = NULL;
  assert_int_equal(wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 2}, &ctx),
                   WN_OK);
  const struct wn_backend *cpu = NULL;
  assert_ok(ctx, wn_backend_of(ctx, &cpu));
  static const int32_t ids[7] = {0, 36, 5, 35, 5, 17, 36}, positions[7] = {0, 1, 2, 3, 0, 1, 2};
  for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
    const int64_t V = 37, C = 512;
    const wn_gguf_type types[2] = {(wn_gguf_type)type, (wn_gguf_type)((type + 3) % WN_GGUF_TYPE_COUNT)};
    struct packed_weights w;
    packed_weights_make(&w, V, C, 2, types, 6);
    float *pos = room((size_t)(4 * C) * sizeof(float)), *y = room((size_t)(7 * C) * sizeof(float));
    for (int64_t i = 0; i < 4 * C; i++) pos[i] = normal(4, i);
    for (int i = 0; i < 4; i++) {
      struct wn_embedding a = {.M = 7, .C = C, .V = V, .ids = ids, .packed = &w.packed, .y = y};
      if (i & 1) a.pos = pos, a.positions = positions, a.P = 4;
      const struct wn_exec e = {.ctx = ctx, .backend = i < 2 ? wn_backend_ref() : cpu, .threads = 2, .dtype = WN_F32};
      memset(y, 0xff, (size_t)(7 * C) * sizeof(float));
      assert_ok(ctx, wn_op_embedding_forward(&e, &a));
      for (int64_t m = 0; m < 7; m++) {
        for (int64_t c = 0; c < C; c++) {
          const float row = w.dense[ids[m] * C + c];
          assert_true(y[m * C + c] == (i & 1 ? (float)((double)row + (double)pos[positions[m] * C + c]) : row));
        }
      }
      a.dy = y, a.dtok = pos;
      char scratch[1024];
      struct wn_exec back = e;
      back.scratch = scratch, back.scratch_bytes = 0;
      assert_refused(ctx, wn_op_embedding_backward(&back, &a), WN_ERR_UNSUPPORTED, "packed weights have no gradient");
    }
    free(pos), free(y);
    packed_weights_clear(&w);
  }
  wn_context_destroy(ctx);
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F32};
  const struct shape s = {.M = 1, .N = 8, .K = 256, .parts = 2};
  const wn_gguf_type types[2] = {WN_GGUF_Q4_K, WN_GGUF_Q8_0};
  struct bench t;
  bench_make(&t, &s, types);
  const struct wn_packed good = t.w.packed;
  struct wn_packed bad;
  struct wn_linear a = call(&t, true, t.y);
  a.packed = &bad;
#define REFUSE(status, text, ...)                                                                                      \
  do {                                                                                                                 \
    bad = good;                                                                                                        \
    __VA_ARGS__;                                                                                                       \
    assert_refused(ctx, wn_op_linear_forward(&e, &a), status, text);                                                   \
  } while (0)
  REFUSE(WN_ERR_ARGUMENT, "has 0 parts", bad.count = 0);
  REFUSE(WN_ERR_ARGUMENT, "has 4 parts", bad.count = 4);
  REFUSE(WN_ERR_ARGUMENT, "part 1 of packed w has the unknown type", bad.part[1].type = (wn_gguf_type)99);
  REFUSE(WN_ERR_ARGUMENT, "part 1 of packed w has no data", bad.part[1].data = NULL);
  REFUSE(WN_ERR_SHAPE, "packed w has", bad.count = 1);
  REFUSE(WN_ERR_SHAPE, "part 1 of packed w has", bad.part[1].rows++);
  REFUSE(WN_ERR_SHAPE, "part 0 of packed w has 0 rows", bad.part[0].rows = 0);
  REFUSE(WN_ERR_SHAPE, "whole blocks of Q4_K", a.K = 128);
  a.K = 256;
  a.packed = NULL;
  assert_refused(ctx, wn_op_linear_forward(&e, &a), WN_ERR_ARGUMENT, "w is NULL");
  bench_clear(&t);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ref),        cmocka_unit_test(test_cpu_plain),    cmocka_unit_test(test_cpu_avx2),
      cmocka_unit_test(test_cpu_avx512), cmocka_unit_test(test_without_vnni), cmocka_unit_test(test_backward),
      cmocka_unit_test(test_embedding),  cmocka_unit_test(test_refused),      cmocka_unit_test(test_rows_alone),
      cmocka_unit_test(test_exact_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
