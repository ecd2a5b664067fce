/* A mixture of experts on emulated kernels, near the reference: in float and with bf16 products, forward and backward,
 * for few rows and many, with every quantised type. The bits depend neither on the order of threads nor on the other
 * rows. Ties go to the lowest expert. The weights of experts that no row chose are not read. */
#include "ops/mixture.h"

#include "backends/backends.h"
#include "backends/cuda/cuda.h"
#include "cuda/emulate_api.h"

static wn_context *ctx;
static int setup(void **state) {
  (void)state;
  ctx = make_context();
  return 0;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

static void run(const struct wn_backend *backend, wn_dtype precision, const struct mixture *x, bool backward) {
  mixture_run(ctx, backend, precision, x, backward);
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s", error);
}

/* Odd sizes, an expert with more rows than a tile, experts without rows, more experts than a warp or a launch for the
 * table handles. */
static const struct mixture_shape shapes[] = {
    {.C = 64, .F = 32, .S = 32, .E = 5, .rows = 12, .T = 4, .top = 2},
    {.C = 70, .F = 33, .S = 67, .E = 3, .rows = 70, .T = 35, .top = 2},
    {.C = 19, .F = 65, .S = 1, .E = 26, .rows = 9, .T = 9, .top = 7},
    {.C = 33, .F = 9, .S = 20, .E = 2, .rows = 81, .T = 27, .top = 2},
    {.C = 1, .F = 1, .S = 1, .E = 1, .rows = 3, .T = 1, .top = 1},
    {.C = 48, .F = 40, .S = 8, .E = 34, .rows = 1, .T = 1, .top = 3},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void same_bits(const struct mixture *x, const struct mixture *y) {
  assert_int_equal(x->count, y->count);
  const struct mixture_shape *s = &x->s;
  assert_memory_equal(x->a.y, y->a.y, (size_t)(s->rows * s->C) * sizeof(float));
  assert_memory_equal(x->a.dx, y->a.dx, (size_t)(s->rows * s->C) * sizeof(float));
  assert_memory_equal(x->balance, y->balance, sizeof(double));
  assert_memory_equal(x->a.d_router, y->a.d_router, (size_t)(s->E * s->C) * sizeof(float));
  for (int e = 0; e < s->E; e++) {
    assert_memory_equal(x->expert[e].d_in, y->expert[e].d_in, (size_t)(2 * s->F * s->C) * sizeof(float));
    assert_memory_equal(x->expert[e].d_out, y->expert[e].d_out, (size_t)(s->F * s->C) * sizeof(float));
  }
  if (s->gate) assert_memory_equal(x->a.d_shared_gate, y->a.d_shared_gate, (size_t)s->C * sizeof(float));
}

static void check(const struct mixture_shape *s, wn_dtype precision, bool accumulate, double forward, double backward) {
  struct mixture want, got[3];
  const int orders = s->E > 5 ? 2 : 3;
  mixture_make(&want, WN_F32, s);
  want.a.accumulate_dx = accumulate;
  for (int64_t i = 0; i < s->rows * s->C; i++) ((float *)want.a.dx)[i] = 3;
  run(wn_backend_ref(), WN_F32, &want, false);
  for (int i = 0; i < orders; i++) {
    mixture_make(&got[i], WN_F32, s);
    got[i].a.accumulate_dx = accumulate;
    for (int64_t k = 0; k < s->rows * s->C; k++) ((float *)got[i].a.dx)[k] = 3;
    wn_emulate_seed((uint64_t)i * 3);
    run(wn_backend_cuda_table(), precision, &got[i], false);
    assert_memory_equal(want.a.chosen, got[i].a.chosen, sizeof(int32_t) * (size_t)(s->rows * s->top));
    assert_memory_equal(want.a.place, got[i].a.place, sizeof(int32_t) * (size_t)(s->rows * s->top));
    mixture_near("y", got[i].a.y, want.a.y, s->rows * s->C, forward);
    mixture_near("in", got[i].a.in, want.a.in, s->rows * s->top * 2 * s->F, forward);
    assert_true(fabs(*want.balance - *got[i].balance) < 1e-5);
    run(wn_backend_cuda_table(), precision, &got[i], true);
  }
  run(wn_backend_ref(), WN_F32, &want, true);
  mixture_near_gradients(&got[0], &want, backward);
  for (int i = 1; i < orders; i++) same_bits(&got[0], &got[i]);
  mixture_clear(&want);
  for (int i = 0; i < orders; i++) mixture_clear(&got[i]);
}

static void test_floats(void **state) {
  (void)state;
  for (int n = 0; n < SHAPES; n++)
    for (int form = n % 3; form < 6; form += 3) {
      struct mixture_shape s = shapes[n];
      s.normalize = form & 1, s.shared = form >= 2, s.gate = form >= 4, s.gradients = true;
      check(&s, WN_F32, form % 3 == 0, 2e-6, 1e-5);
    }
}
static void test_bf16(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    struct mixture_shape s = shapes[n];
    s.normalize = true, s.shared = s.gate = s.gradients = true;
    check(&s, WN_BF16, false, 0.02, 0.03);
  }
}

/* Quantised weights equal the floats that they stand for. With rows_apart a row has the same bits alone and in any
 * batch. */
static void test_packed(void **state) {
  (void)state;
  for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
    const int64_t wide = wn_gguf_block_weights((wn_gguf_type)type) > 32 ? 256 : 32;
    for (int apart = 0; apart < 2; apart++) {
      if (!apart && type % 3 != 0) continue; /* products of many rows read weights in the same way */
      const struct mixture_shape s = {.C = wide, .F = wide, .E = 3, .rows = 9, .T = 3, .top = 1, .normalize = true};
      struct mixture x, y;
      mixture_make(&x, WN_F32, &s), mixture_make(&y, WN_F32, &s);
      mixture_pack(&x, (wn_gguf_type)type), mixture_pack(&y, (wn_gguf_type)type);
      x.a.rows_apart = y.a.rows_apart = apart;
      wn_emulate_seed((uint64_t)type);
      run(wn_backend_cuda_table(), WN_F32, &x, false);
      run(wn_backend_ref(), WN_F32, &y, false);
      assert_memory_equal(x.a.chosen, y.a.chosen, sizeof(int32_t) * (size_t)(s.rows * s.top));
      mixture_near(wn_gguf_type_name((wn_gguf_type)type), x.a.y, y.a.y, s.rows * s.C, 4e-6);
      if (!apart) {
        run(wn_backend_cuda_table(), WN_F32, &x, true);
        run(wn_backend_ref(), WN_F32, &y, true);
        mixture_near_gradients(&x, &y, 1e-5);
      }
      float *together = malloc((size_t)(s.rows * s.C) * sizeof(float));
      memcpy(together, x.a.y, (size_t)(s.rows * s.C) * sizeof(float));
      x.a.M = x.a.T = 1, x.a.row_count = NULL;
      for (int m = 0; apart && m < s.rows; m += 8) {
        x.a.x = (const float *)y.a.x + m * s.C;
        run(wn_backend_cuda_table(), WN_F32, &x, false);
        assert_memory_equal(x.a.y, together + m * s.C, (size_t)s.C * sizeof(float));
      }
      free(together);
      mixture_clear(&x), mixture_clear(&y);
    }
  }
}

/* Equal logits, and NaN. */
static void test_choices(void **state) {
  (void)state;
  for (int form = 0; form < 3; form++) { /* few rows, many rows, NaN */
    const struct mixture_shape s = {
        .C = 8, .F = 8, .E = 40, .rows = form == 1 ? 20 : 4, .T = 2, .top = 5, .normalize = true};
    struct mixture x;
    mixture_make(&x, WN_F32, &s);
    for (int64_t i = 0; i < s.E * s.C; i++) ((float *)(uintptr_t)x.a.router)[i] = form == 2 ? NAN : 0;
    for (int e = 5; e < s.E; e++) x.expert[e].in = x.expert[e].out = (const void *)(uintptr_t)64;
    x.a.row_count = NULL;
    run(wn_backend_cuda_table(), WN_F32, &x, false);
    for (int64_t i = 0; i < s.rows * s.top; i++) assert_int_equal(x.a.chosen[i], i % s.top);
    for (int64_t i = 0; i < s.rows * s.top && form < 2; i++) assert_true(((float *)x.a.weight)[i] == 0.2f);
    for (int64_t i = 0; i < s.rows * s.C && form < 2; i++) assert_true(isfinite(((float *)x.a.y)[i]));
    assert_true(form == 2 || fabs(*x.balance - (double)s.top) < 1e-6);
    mixture_clear(&x);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_floats), cmocka_unit_test(test_bf16),
                                     cmocka_unit_test(test_packed), cmocka_unit_test(test_choices)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
