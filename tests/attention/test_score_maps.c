/* Score maps against the numbers in their papers: the slopes of ALiBi (arXiv 2108.12409, §3; the authors' code where
 * the number of heads is no power of two) and Gemma 2's soft-capping (arXiv 2408.00118, §2), which selections see. On
 * every path of every backend: whole sequences, chunks, single rows, cache positions, half floats, gathered keys. The
 * tests of all mechanisms compare maps between backends, with finite differences, and combined with every other
 * mechanism. */
#include "isa.h"
#include "mechanisms.h"

#include "tensor/f16.h"

enum { T = 200, H = 12, D = 8 };

static struct mech_place place;

static struct wn_attention call_of(const char *text, int64_t heads, int64_t Tq, const float *q, const float *k,
                                   const float *v, float *y) {
  wn_attention_config config;
  assert_ok(place.ctx, wn_attention_config_parse(place.ctx, text, &config));
  struct wn_attention a = {.B = 1, .Tq = Tq, .Tk = T, .H = heads, .Hkv = heads, .D = D, .q = q, .k = k, .v = v, .y = y};
  a.s_q = a.s_k = a.s_v = a.s_y = (struct wn_stride){T * heads * D, heads * D, D};
  wn_attention_terms(&config, -1, D, &a);
  return a;
}

static void run(const struct wn_attention *a) {
  struct wn_exec e = {.ctx = place.ctx, .backend = place.backend, .threads = 2, .dtype = WN_F32};
  e.scratch_bytes = wn_op_attention_scratch(&e, a, false);
  e.scratch = aligned_alloc(64, (e.scratch_bytes + 64) / 64 * 64);
  memset(e.scratch, 0xff, e.scratch_bytes);
  assert_ok(place.ctx, wn_op_attention_forward(&e, a));
  free(e.scratch);
}

/* The paper's slopes: 1/2, 1/4, ... 1/256 for 8 heads; 2^-0.5, 2^-1, ... for 16; for 12 those of 8, then every second
 * one of 16. */
static double published_slope(int64_t heads, int64_t h) {
  static const double of_8[] = {1. / 2, 1. / 4, 1. / 8, 1. / 16, 1. / 32, 1. / 64, 1. / 128, 1. / 256};
  static const double after_8[] = {0.70710678118654752, 0.35355339059327376, 0.17677669529663688, 0.08838834764831844};
  assert_true(heads == 8 || heads == 12);
  return h < 8 ? of_8[h] : after_8[h - 8];
}

/* Queries are 0, so the attention weights depend on distance alone, and v counts positions. Returns head h's mean
 * position over the keys that row i sees: all of them, or with step > 0 the last `step` and every `step`-th before
 * those. */
static double mean_position(int64_t heads, int64_t h, int64_t i, int64_t step) {
  double top = 0, sum = 0;
  for (int64_t j = 0; j <= i; j++) {
    if (step > 0 && i - j >= step && (i - j) % step != 0) continue;
    const double w = exp(-published_slope(heads, h) * (double)(i - j));
    top += w * (double)j, sum += w;
  }
  return top / sum;
}

static void check_alibi(const struct wn_attention *a, int64_t step, double limit, const char *what) {
  run(a);
  for (int64_t r = 0; r < a->Tq; r++)
    for (int64_t h = 0; h < a->H; h++) {
      const double expected = mean_position(a->H, h, T - a->Tq + r, step),
                   found = ((const float *)a->y)[r * a->s_y.t + h * D];
      if (!(fabs(found - expected) <= limit * T))
        fail_msg("%s on %s: row %d of head %d looks at %.7g, expected %.7g", what, place.backend->name, (int)r, (int)h,
                 found, expected);
    }
}

static void alibi(void) {
  static float q[T * H * D], k[T * H * D], v[T * H * D], y[T * H * D];
  static uint16_t half_k[T * H * D], half_v[T * H * D];
  static int32_t at[T];
  for (int64_t heads = 8; heads <= 12; heads += 4) {
    for (int64_t i = 0; i < T * heads * D; i++) {
      k[i] = (float)(i % 7) - 3, v[i] = (float)(i / (heads * D));
    }
    wn_f16_from_f32(T * heads * D, k, half_k);
    wn_f16_from_f32(T * heads * D, v, half_v);
    struct wn_attention a = call_of("{\"alibi\":true}", heads, T, q, k, v, y);
    check_alibi(&a, 0, 1e-6, "whole");
    a = call_of("{\"alibi\":true,\"strided\":40}", heads, T, q, k, v, y);
    check_alibi(&a, 40, 1e-6, "gathered");
    a = call_of("{\"alibi\":true}", heads, 3, q, k, v, y);
    check_alibi(&a, 0, 1e-6, "chunk");
    a.Tq = 1;
    check_alibi(&a, 0, 1e-6, "single row");
    for (int64_t j = 0; j < T; j++) at[j] = (int32_t)(j < T - 1 ? T - 2 - j : j); /* older keys in reverse order */
    for (int64_t i = 0; i < (T - 1) * heads * D; i++) v[i] = (float)(T - 2 - i / (heads * D));
    a.slots.at = at;
    check_alibi(&a, 0, 1e-6, "cache positions");
    if (!(place.backend->attention_served.row & WN_TERM_HALF)) continue;
    a = call_of("{\"alibi\":true}", heads, 1, q, (float *)(void *)half_k, (float *)(void *)half_v, y);
    a.k_type = a.v_type = WN_GGUF_F16;
    check_alibi(&a, 0, 1e-6, "half floats");
  }
}

/* One head with scale 1, chosen q.k and one-hot v: y is the softmax of the capped logits, F their positive part. */
static void softcap(void) {
  static float q[T * D], k[T * D], v[T * D], y[T * D], F[T * T];
  static const double wanted[4] = {-100, -0.3, 4, 60};
  const double cap = 5;
  for (int64_t i = 0; i < T; i++) q[i * D] = 1, k[i * D] = (float)wanted[i % 4], v[i * D + i % 4] = 1;
  for (int64_t Tq = 1; Tq <= T; Tq += T - 1) {
    struct wn_attention a = call_of("{\"softcap\":{\"cap\":5},\"scale\":1}", 1, Tq, q, k, v, y);
    double weight[4], sum = 0;
    run(&a);
    for (int n = 0; n < 4; n++) sum += weight[n] = exp(cap * tanh(wanted[n] / cap));
    for (int n = 0; n < 4; n++)
      if (!(fabs((double)y[(Tq - 1) * D + n] - weight[n] / sum) <= 1e-6))
        fail_msg("%s: keys of logit %g weigh %.7g, expected %.7g", place.backend->name, wanted[n],
                 (double)y[(Tq - 1) * D + n], weight[n] / sum);
  }
  struct wn_attention a = call_of("{\"softcap\":{\"cap\":5},\"scale\":1,\"selective\":true}", 1, T, q, k, v, y);
  a.sel.F = F;
  run(&a);
  for (int64_t j = 1; j < T - 1; j++) {
    const double each = fmax(0, cap * tanh(wanted[j % 4] / cap)), expected = each * (double)(T - 2 - j);
    if (!(fabs((double)F[(T - 1) * T + j] - expected) <= 2e-6 * (1 + expected)))
      fail_msg("%s: F of key %d is %.7g, expected %.7g", place.backend->name, (int)j, (double)F[(T - 1) * T + j],
               expected);
  }
}

static void on_every_backend(void **state) {
  (void)state;
  static const char *const isas[] = {ISA_OF_EIGHT, "avx512"};
  for (int n = 0; n < 3; n++) {
    if (!mech_open(&place, n ? "cpu" : "ref", n ? isas[n - 1] : NULL)) continue;
    alibi();
    softcap();
    mech_close(&place);
  }
}

/* A softcap is the last map: its gradient is computed from its output. */
static void order(void **state) {
  (void)state;
  static float x[T * D];
  mech_open(&place, "ref", NULL);
  struct wn_attention a = call_of("{\"alibi\":true,\"softcap\":{\"cap\":5}}", 1, T, x, x, x, x);
  assert_int_equal(a.maps, 2);
  assert_string_equal(a.map[0].kind->name, "alibi");
  run(&a);
  const struct wn_score_map first = a.map[0];
  a.map[0] = a.map[1], a.map[1] = first;
  const struct wn_exec e = {.ctx = place.ctx, .backend = place.backend, .threads = 1, .dtype = WN_F32};
  assert_refused(place.ctx, wn_op_attention_forward(&e, &a), WN_ERR_UNSUPPORTED,
                 "\"softcap\" must come after \"alibi\"");
  mech_close(&place);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(on_every_backend),
      cmocka_unit_test(order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
