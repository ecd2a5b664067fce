/* Keys and values as caches store them, in half floats or in blocks of 8 or 4 bits: a call gives the same bits as on
 * the floats that they stand for, in prefill and decoding, with every term that supports them, and is within float
 * rounding of attention in double on them. Other terms are refused. Also the conversions themselves: every half
 * survives a round trip, ties round to even, and NaN stays NaN. */
#include "isa.h"
#include "support.h"

#include <float.h>
#include <math.h>

#include "backends/backends.h"
#include "backends/cpu/attention/bf16.h"
#include "base/rng.h"
#include "io/gguf_types.h"
#include "ops/attention.h"
#include "tensor/bf16.h"
#include "tensor/f16.h"

struct shape {
  int64_t B, Tq, Tk, H, Hkv, D;
  int64_t window;
  bool select, shift, bilinear;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 8, 0, false, false, false},     {2, 1, 130, 6, 2, 64, 0, false, false, false},
    {1, 1, 300, 9, 3, 64, 0, false, false, false},  {1, 1, 200, 4, 4, 33, 70, false, false, false},
    {2, 7, 71, 4, 2, 16, 0, false, false, false},   {1, 65, 260, 6, 3, 64, 0, false, false, false},
    {1, 40, 40, 2, 1, 256, 9, false, false, false}, {2, 1, 150, 4, 2, 16, 0, true, true, false},
    {1, 1, 150, 4, 2, 16, 0, true, false, false},   {1, 30, 150, 4, 2, 16, 0, true, true, false},
    {1, 1, 90, 4, 2, 16, 0, true, true, true},      {1, 20, 90, 4, 2, 16, 0, true, true, true},
    {1, 1, 1, 1, 1, 32, 0, false, false, false},    {2, 3, 131, 6, 2, 96, 0, false, false, false},
    {1, 1, 63, 4, 1, 160, 17, false, false, false}, {3, 1, 65, 2, 2, 256, 0, false, false, false},
    {2, 1, 150, 4, 2, 32, 0, true, true, false},    {1, 30, 150, 4, 2, 64, 0, true, true, false},
    {1, 1, 90, 4, 2, 96, 0, true, true, true},      {1, 66, 200, 4, 2, 32, 0, true, false, false},
};

static const wn_gguf_type types[][2] = {
    {WN_GGUF_F16, WN_GGUF_F16}, {WN_GGUF_Q8_0, WN_GGUF_Q8_0}, {WN_GGUF_Q8_0, WN_GGUF_Q4_0}};

static float *normals(int64_t n, uint64_t stream) {
  float *x = malloc((size_t)n * sizeof *x);
  assert_non_null(x);
  for (int64_t i = 0; i < n; i++) x[i] = (float)wn_random_normal(4, WN_STREAM_TEST, stream, (uint64_t)i);
  return x;
}

/* Stores x, and replaces it by the numbers that are stored. */
static void *stored(const struct wn_exec *e, wn_gguf_type type, float *x, int64_t n) {
  void *to = malloc(wn_stored_bytes(type, WN_F32, n));
  assert_non_null(to);
  wn_gguf_store(e->ctx, type, x, n, to);
  wn_gguf_decode(type, to, 0, n, x);
  for (int64_t i = 0; i < n; i++) assert_true(wn_stored_number(type, WN_F32, to, i) == (double)x[i]);
  return to;
}

static void run(const struct wn_exec *exec, const struct wn_attention *a) {
  struct wn_exec e = *exec;
  const size_t need = wn_op_attention_scratch(&e, a, false);
  e.scratch = aligned_alloc(64, need / 64 * 64 + 64), e.scratch_bytes = need;
  assert_non_null(e.scratch);
  assert_ok(e.ctx, wn_op_attention_forward(&e, a));
  free(e.scratch);
}

/* y against attention in double on the numbers that are stored: at most twice the error of the reference's, which sums
 * in double and rounds y to a float, and the rounding of the sums of D products and of Tk weights. */
static void check_oracle(const struct wn_exec *e, const struct wn_attention *of, const float *q, const float *k,
                         const float *v, const float *y, int64_t rows, int64_t kv) {
  struct wn_exec ref = {.ctx = e->ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F64};
  struct wn_attention a = *of;
  double *wide = malloc((size_t)(2 * rows + 2 * kv) * sizeof *wide), *yd = wide + rows, *kd = yd + rows, *vd = kd + kv;
  assert_non_null(wide);
  for (int64_t i = 0; i < rows; i++) wide[i] = (double)q[i];
  for (int64_t i = 0; i < kv; i++) kd[i] = (double)k[i], vd[i] = (double)v[i];
  a.k_type = a.v_type = WN_GGUF_F32;
  a.q = wide, a.k = kd, a.v = vd, a.y = yd;
  run(&ref, &a);
  double size = 0, error = 0;
  for (int64_t i = 0; i < rows; i++) size = fmax(size, fabs(yd[i])), error = fmax(error, fabs((double)y[i] - yd[i]));
  const double units = sqrt((double)(a.D + a.Tk));
  if (!(error <= units * (double)FLT_EPSILON * size))
    fail_msg("%s, D %lld, Tk %lld: error %g of %g", e->backend->name, (long long)a.D, (long long)a.Tk, error, size);
  free(wide);
}

static void check(const struct wn_exec *e, const struct shape *s, wn_gguf_type k_type, wn_gguf_type v_type) {
  const int64_t B = s->B, Tk = s->Tk, D = s->D, kv = B * s->Hkv * Tk * D, rows = B * s->Tq * s->H * D;
  if (wn_stored_blocks(k_type) && D % WN_STORED_BLOCK) return;
  float *q = normals(rows, 1), *k = normals(kv, 2), *v = normals(kv, 3), *sq = normals(B * s->Tq * D, 4),
        *sk = normals(B * Tk * D, 5), *f[2] = {normals(B * Tk, 6), NULL}, *y[2] = {normals(rows, 7), normals(rows, 8)};
  for (int64_t i = 0; i < B * Tk; i++) f[0][i] = fabsf(f[0][i]);
  f[1] = normals(B * Tk, 6);
  void *sk_k = stored(e, k_type, k, kv), *sk_v = stored(e, v_type, v, kv);
  struct wn_attention a = {
      .B = B, .Tq = s->Tq, .Tk = Tk, .H = s->H, .Hkv = s->Hkv, .D = D, .scale = 1 / sqrt((double)D)};
  a.q = q, a.s_q = (struct wn_stride){s->Tq * s->H * D, s->H * D, D};
  a.s_y = a.s_q;
  a.s_k = a.s_v = (struct wn_stride){s->Hkv * Tk * D, D, Tk * D};
  a.window = s->window;
  if (s->select) {
    a.sel.on = a.sel.relu = a.sel.protect_first = a.sel.protect_self = true;
    a.sel.shift = s->shift, a.sel.bilinear = s->bilinear;
    a.sel.mem_tau = 1;
    if (s->bilinear) {
      a.sel.sq = sq, a.sel.s_sq = (struct wn_stride){s->Tq * D, D, s->Tq * D};
      a.sel.sk = sk, a.sel.s_sk = (struct wn_stride){Tk * D, D, Tk * D};
    }
  }
  float *out[2] = {malloc((size_t)(B * Tk) * sizeof(float)), malloc((size_t)(B * Tk) * sizeof(float))};
  for (int i = 0; i < 2; i++) {
    a.k_type = i ? k_type : WN_GGUF_F32, a.v_type = i ? v_type : WN_GGUF_F32;
    a.k = i ? sk_k : k, a.v = i ? sk_v : v;
    a.y = y[i];
    if (s->select) a.sel.f_in = f[0], a.sel.f_out = out[i];
    run(e, &a);
  }
  assert_memory_equal(y[0], y[1], (size_t)rows * sizeof(float));
  if (s->select) assert_memory_equal(out[0], out[1], (size_t)(B * Tk) * sizeof(float));
  if (!s->select) check_oracle(e, &a, q, k, v, y[1], rows, kv);
  free(q), free(k), free(v), free(sq), free(sk), free(f[0]), free(f[1]), free(y[0]), free(y[1]), free(sk_k), free(sk_v);
  free(out[0]), free(out[1]);
}

/* With `rounds`: where the processor has bf16 products, y before the rounding of the call on rows in bf16 with the same
 * numbers, rounded; else, for single rows and for other types of keys, the bits of the call without it. */
static void check_rounds(const struct wn_exec *e, const struct shape *s, wn_gguf_type type, bool bf16) {
  const int64_t Tk = s->Tk, D = s->D, kv = s->B * s->Hkv * Tk * D, rows = s->B * s->Tq * s->H * D, n[] = {rows, kv, kv};
  if (s->select || (wn_stored_blocks(type) && D % WN_STORED_BLOCK)) return;
  float *x[] = {normals(rows, 1), normals(kv, 2), normals(kv, 3)}, *y[] = {normals(rows, 7), normals(rows, 8)};
  uint16_t *half[4] = {NULL};
  void *k = stored(e, type, x[1], kv), *v = stored(e, type, x[2], kv);
  struct wn_attention a = {
      .B = s->B, .Tq = s->Tq, .Tk = Tk, .H = s->H, .Hkv = s->Hkv, .D = D, .scale = 1 / sqrt((double)D)};
  a.q = x[0], a.k = k, a.v = v, a.k_type = a.v_type = type, a.window = s->window;
  a.s_q = a.s_y = (struct wn_stride){s->Tq * s->H * D, s->H * D, D};
  a.s_k = a.s_v = (struct wn_stride){s->Hkv * Tk * D, D, Tk * D};
  a.rounds = true, a.y = y[0];
  run(e, &a);
  const bool same = !bf16 || s->Tq == 1 || D % 16 || type != WN_GGUF_F16;
  if (!same) { /* two rows have the bits that they have among all */
    struct wn_attention last = a;
    last.Tq = s->Tq < 3 ? s->Tq : 2;
    const int64_t first = (s->Tq - last.Tq) * a.s_q.t;
    last.q = x[0] + first, last.y = y[1] + first;
    run(e, &last);
    for (int64_t b = 0, at = first; b < s->B; b++, at += a.s_q.b)
      assert_memory_equal(y[0] + at, y[1] + at, (size_t)(last.Tq * a.s_q.t) * sizeof(float));
  }
  a.rounds = false, a.y = y[1];
  run(e, &a);
  assert_true(same == !memcmp(y[0], y[1], (size_t)rows * sizeof(float)));
  for (int i = 0; i < 4 && !same; i++) {
    const int64_t of = i < 3 ? n[i] : rows;
    half[i] = malloc((size_t)of * sizeof *half[i]);
    assert_non_null(half[i]);
    for (int64_t j = 0; j < of; j++) half[i][j] = i < 3 ? wn_bf16_round(x[i][j]) : 0;
  }
  a.q = half[0], a.k = half[1], a.v = half[2], a.y = half[3], a.k_type = a.v_type = WN_GGUF_F32, a.row_type = WN_BF16;
  if (!same) run(e, &a);
  for (int64_t i = 0; i < rows && !same; i++) assert_int_equal(wn_bf16_round(y[0][i]), half[3][i]);
  for (int i = 0; i < 4; i++) free(half[i]), free(i < 3 ? x[i] : NULL), free(i < 2 ? y[i] : NULL);
  free(k), free(v);
}

static void check_isa(const char *isa) {
  wn_context *ctx = NULL;
  if (!context_with_isa(isa ? NULL : "ref", isa, 2, &ctx)) skip();
  const struct wn_backend *backend = NULL;
  assert_ok(ctx, wn_backend_of(ctx, &backend));
  const struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = 2, .dtype = WN_F32};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
      check(&e, &shapes[i], types[t][0], types[t][1]);
      check_rounds(&e, &shapes[i], types[t][0], isa && !strcmp(isa, "avx512") && wn_bf16_products());
    }
  wn_context_destroy(ctx);
}
static void test_ref(void **state) {
  (void)state;
  check_isa(NULL);
}
static void test_avx2(void **state) {
  (void)state;
  check_isa(ISA_OF_EIGHT);
}
static void test_avx512(void **state) {
  (void)state;
  check_isa("avx512");
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  static float x[4 * 64];
  static _Alignas(64) char scratch[1 << 16];
  struct wn_attention a = {
      .B = 1, .Tq = 1, .Tk = 4, .H = 1, .Hkv = 1, .D = 8, .scale = 1, .q = x, .k = x, .v = x, .y = x};
  a.s_q = a.s_k = a.s_v = a.s_y = (struct wn_stride){32, 8, 8};
  a.k_type = a.v_type = WN_GGUF_F16;
  struct wn_exec e = {.ctx = ctx,
                      .backend = wn_backend_ref(),
                      .threads = 1,
                      .dtype = WN_F32,
                      .scratch = scratch,
                      .scratch_bytes = sizeof scratch};
  assert_refused(ctx, wn_op_attention_backward(&e, &a), WN_ERR_UNSUPPORTED, "half floats");
  struct wn_attention b = a;
  b.strided = 2;
  assert_refused(ctx, wn_op_attention_forward(&e, &b), WN_ERR_UNSUPPORTED, "keys in F16 do not serve the term \"str");
  b = a, b.threshold.on = true;
  assert_refused(ctx, wn_op_attention_forward(&e, &b), WN_ERR_UNSUPPORTED, "keys in F16 do not serve");
  b = a, b.exclusive.on = true;
  assert_refused(ctx, wn_op_attention_forward(&e, &b), WN_ERR_UNSUPPORTED, "keys in F16 do not serve");
  b = a, b.v_type = WN_GGUF_Q8_0;
  assert_refused(ctx, wn_op_attention_forward(&e, &b), WN_ERR_UNSUPPORTED, "keys in F16 with values in Q8_0");
  b = a, b.k_type = WN_GGUF_F32;
  assert_refused(ctx, wn_op_attention_forward(&e, &b), WN_ERR_UNSUPPORTED, "keys in F32 with values in F16");
  b = a, b.k_type = b.v_type = WN_GGUF_Q8_0;
  assert_refused(ctx, wn_op_attention_forward(&e, &b), WN_ERR_UNSUPPORTED, "rows of whole blocks of 32");
  e.dtype = WN_F64;
  assert_refused(ctx, wn_op_attention_forward(&e, &a), WN_ERR_UNSUPPORTED, "keys in F16 need F32");
  wn_context_destroy(ctx);
}

/* What a store gives where GGUF's blocks cannot hold the numbers: NaN as a whole, so that the fault is seen. And Q8_0
 * has the bits of its definition, ties away from zero. */
static void test_blocks(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  float x[32], y[32];
  uint8_t block[WN_STORED_Q8_0];
  const float faults[] = {NAN, INFINITY, 1e9f};
  for (int t = 0; t < 2; t++)
    for (int f = 0; f < 3; f++) {
      for (int i = 0; i < 32; i++) x[i] = (float)i - 12;
      x[7] = faults[f];
      wn_gguf_store(ctx, t ? WN_GGUF_Q4_0 : WN_GGUF_Q8_0, x, 32, block);
      wn_gguf_decode(t ? WN_GGUF_Q4_0 : WN_GGUF_Q8_0, block, 0, 32, y);
      for (int i = 0; i < 32; i++) assert_true(isnan(y[i]));
    }
  for (int r = 0; r < 2000; r++) {
    float largest = 0;
    uint16_t half;
    for (int i = 0; i < 32; i++) {
      x[i] = (float)wn_random_normal(4, WN_STREAM_TEST, 77, (uint64_t)(r * 32 + i));
      if (r % 2) x[i] = rintf(x[i] * 60) / 2; /* with the largest 127 these are ties */
    }
    if (r % 2) x[3] = -127;
    for (int i = 0; i < 32; i++) largest = fmaxf(largest, fabsf(x[i]));
    const float d = largest / 127;
    wn_gguf_store(ctx, WN_GGUF_Q8_0, x, 32, block);
    memcpy(&half, block, sizeof half);
    assert_int_equal(half, wn_f16_round(d));
    for (int i = 0; i < 32; i++)
      assert_int_equal((int8_t)block[2 + i], (int)fmaxf(-127, fminf(127, roundf(x[i] * (1 / d)))));
  }
  wn_context_destroy(ctx);
}

static void test_conversion(void **state) {
  (void)state;
  static uint16_t all[65536], back[65536];
  static float as[65536];
  for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
  wn_gguf_decode(WN_GGUF_F16, all, 0, 65536, as);
  wn_f16_from_f32(65536, as, back);
  for (int i = 0; i < 65536; i++) {
    if (isnan(as[i]))
      assert_true((back[i] & 0x7c00) == 0x7c00 && (back[i] & 0x3ff));
    else
      assert_int_equal(all[i], back[i]);
    assert_int_equal(wn_f16_round(as[i]), back[i]);
  }
  /* Between two neighbours: below the middle, at it, above it. */
  for (int i = 0; i < 0x7bff; i += 13) {
    const float low = as[i], high = as[i + 1], middle = (low + high) / 2;
    const float x[3] = {nextafterf(middle, low), middle, nextafterf(middle, high)};
    uint16_t h[3];
    wn_f16_from_f32(3, x, h);
    assert_int_equal(h[0], i);
    assert_int_equal(h[1], i % 2 ? i + 1 : i);
    assert_int_equal(h[2], i + 1);
    for (int k = 0; k < 3; k++) assert_int_equal(wn_f16_round(x[k]), h[k]);
  }
  const float far[2] = {65520, -1e9f};
  uint16_t h[2];
  wn_f16_from_f32(2, far, h);
  assert_int_equal(h[0], 0x7c00);
  assert_int_equal(h[1], 0xfc00);
  for (int k = 0; k < 2; k++) assert_int_equal(wn_f16_round(far[k]), h[k]);
  for (int i = 0; i < 100000; i++) {
    const float x = (float)wn_random_normal(9, WN_STREAM_TEST, 1, (uint64_t)i) * ldexpf(1, i % 48 - 30);
    wn_f16_from_f32(1, &x, h);
    assert_int_equal(wn_f16_round(x), h[0]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ref),     cmocka_unit_test(test_avx2),   cmocka_unit_test(test_avx512),
      cmocka_unit_test(test_refused), cmocka_unit_test(test_blocks), cmocka_unit_test(test_conversion),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
