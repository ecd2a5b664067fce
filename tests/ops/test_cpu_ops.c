/* The cpu backend's operations against the reference backend, with every instruction set of this machine, for sizes
 * that leave a remainder in every loop. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "worst.h"

enum { SCRATCH = 1 << 24 };

struct state {
  wn_context *ctx;
  enum wn_isa best;
  void *scratch;
};

static struct state the;

static int setup(void **unused) {
  (void)unused;
  assert_int_equal(wn_context_create(NULL, &the.ctx), WN_OK);
  assert_int_equal(wn_cpu_select_isa(the.ctx, &the.best), WN_OK);
  return wn_alloc(the.ctx, "scratch", SCRATCH, &the.scratch) == WN_OK ? 0 : 1;
}

static int teardown(void **unused) {
  (void)unused;
  wn_free(the.scratch);
  wn_context_destroy(the.ctx);
  return 0;
}

static struct wn_exec exec_of(int isa, int threads) { /* isa -1: the reference backend */
  return (struct wn_exec){.ctx = the.ctx,
                          .backend = isa < 0 ? wn_backend_ref() : wn_backend_cpu((enum wn_isa)isa),
                          .threads = threads,
                          .dtype = WN_F32,
                          .scratch = the.scratch,
                          .scratch_bytes = SCRATCH};
}

/* Two copies with the same content: [0] for the reference, [1] for the cpu backend. */
struct pair {
  float *p[2];
  int64_t n;
};

static struct pair make(int64_t n, uint64_t seed, double scale) {
  struct pair x = {.n = n};
  for (int i = 0; i < 2; i++) {
    x.p[i] = malloc((size_t)n * sizeof(float) + 4);
    assert_non_null(x.p[i]);
    for (int64_t k = 0; k < n; k++) x.p[i][k] = (float)(scale * wn_random_normal(seed, WN_STREAM_TEST, 0, (uint64_t)k));
  }
  return x;
}

static void drop(struct pair x) {
  free(x.p[0]);
  free(x.p[1]);
}

/* The largest difference relative to the largest value (or to 0.1, where results cancel to nearly 0). Frees x. */
static void same_within(const char *what, int isa, struct pair x, double tolerance) {
  double top = 0.1, off = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < x.n; i++) {
    const double d = fabs((double)x.p[0][i] - (double)x.p[1][i]);
    if (fabs((double)x.p[0][i]) > top) top = fabs((double)x.p[0][i]);
    if (worse(d, off)) off = d, at = i;
  }
  if (!(off <= tolerance * top))
    fail_msg("%s, %s: element %lld of %lld is %.9g, reference %.9g (largest %.3g)", what, wn_isa_name((enum wn_isa)isa),
             (long long)at, (long long)x.n, (double)x.p[1][at], (double)x.p[0][at], top);
  drop(x);
}

#define RUN(op, direction, isa, threads, args)                                                                         \
  do {                                                                                                                 \
    struct wn_exec exec_ = exec_of(isa, threads);                                                                      \
    if (wn_op_##op##_##direction(&exec_, args) != WN_OK) fail_msg("%s", wn_context_error(the.ctx));                    \
  } while (0)

#define FOR_ISA(isa) for (int isa = WN_ISA_AVX2; isa <= (int)the.best; isa++)

static void test_linear(void **unused) {
  (void)unused;
  static const int64_t shapes[][3] = {{1, 1, 1},    {1, 33, 70},   {3, 130, 65},  {8, 257, 96}, {17, 5, 3},
                                      {64, 48, 80}, {33, 20, 700}, {77, 101, 47}, {2, 64, 513}};
  FOR_ISA(isa) for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) for (int mode = 0; mode < 4; mode++) {
    const int64_t M = shapes[s][0], N = shapes[s][1], K = shapes[s][2], pad = mode >= 2 ? 3 : 0;
    struct pair x = make(M * (K + pad), 1, 1), w = make(N * K, 2, 1), b = make(N, 3, 1), y = make(M * (N + pad), 4, 1),
                dy = make(M * (N + pad), 5, 1), dx = make(M * (K + pad), 6, 1), dw = make(N * K, 7, 1),
                db = make(N, 8, 1);
    for (int i = 0; i < 2; i++) {
      if (mode < 2) { /* overwritten: old values must not be read, not even times zero */
        for (int64_t k = 0; k < y.n; k++) y.p[i][k] = NAN;
        for (int64_t k = 0; k < dx.n; k++) dx.p[i][k] = NAN;
      }
      struct wn_linear a = {.M = M,
                            .N = N,
                            .K = K,
                            .x = x.p[i],
                            .ldx = K + pad,
                            .w = w.p[i],
                            .b = mode & 1 ? b.p[i] : NULL,
                            .y = y.p[i],
                            .ldy = N + pad,
                            .accumulate = mode >= 2,
                            .dy = dy.p[i],
                            .lddy = N + pad,
                            .dx = dx.p[i],
                            .lddx = K + pad,
                            .accumulate_dx = mode >= 2,
                            .dw = dw.p[i],
                            .db = mode & 1 ? db.p[i] : NULL};
      RUN(linear, forward, i ? isa : -1, 1 + mode % 3, &a);
      RUN(linear, backward, i ? isa : -1, 1 + mode % 3, &a);
    }
    same_within("linear y", isa, y, 2e-6);
    same_within("linear dx", isa, dx, 2e-6);
    same_within("linear dw", isa, dw, 2e-6);
    same_within("linear db", isa, db, 2e-6);
    drop(x), drop(w), drop(b), drop(dy);
  }
}

static void test_norm(void **unused) {
  (void)unused;
  static const int64_t shapes[][3] = {{1, 1, 1}, {5, 1, 7}, {9, 3, 16}, {13, 2, 33}, {40, 1, 130}, {31, 4, 64}};
  FOR_ISA(isa) for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) for (int mode = 0; mode < 16; mode++) {
    const bool layer = mode & 1, add = mode & 2, accumulate = mode & 4;
    const int64_t R = shapes[s][0], G = shapes[s][1], W = shapes[s][2], C = G * W, pad = mode & 8 ? 5 : 0, ld = C + pad;
    struct pair x = make(R * ld, 1, 1), z = make(R * ld, 2, 1), sum = make(R * ld, 3, 1), gain = make(W, 4, 1),
                shift = make(W, 5, 1), y = make(R * ld, 6, 1), rstd = make(R * G, 7, 1), mean = make(R * G, 8, 1),
                dy = make(R * ld, 9, 1), dx = make(R * ld, 10, 1), dg = make(W, 11, 1), ds = make(W, 12, 1);
    for (int i = 0; i < 2; i++) {
      struct wn_norm a = {.rows = R,
                          .groups = G,
                          .width = W,
                          .layer = layer,
                          .eps = 1e-5,
                          .x = x.p[i],
                          .ldx = ld,
                          .add = add ? z.p[i] : NULL,
                          .ldadd = ld,
                          .sum = add ? sum.p[i] : NULL,
                          .ldsum = ld,
                          .gain = gain.p[i],
                          .shift = layer ? shift.p[i] : NULL,
                          .y = y.p[i],
                          .ldy = ld,
                          .rstd = rstd.p[i],
                          .mean = layer ? mean.p[i] : NULL,
                          .dy = dy.p[i],
                          .lddy = ld,
                          .dx = mode & 8 && !accumulate ? dy.p[i] : dx.p[i],
                          .lddx = ld,
                          .accumulate_dx = accumulate,
                          .dgain = dg.p[i],
                          .dshift = layer ? ds.p[i] : NULL};
      RUN(norm, forward, i ? isa : -1, 1 + mode % 3, &a);
      RUN(norm, backward, i ? isa : -1, 1 + mode % 3, &a);
    }
    same_within("norm sum", isa, sum, 1e-6);
    same_within("norm y", isa, y, 4e-6);
    same_within("norm rstd", isa, rstd, 4e-6);
    same_within("norm mean", isa, mean, 4e-6);
    same_within("norm dx", isa, dx, 2e-5);
    same_within("norm dy", isa, dy, 2e-5);
    same_within("norm dgain", isa, dg, 1e-5);
    same_within("norm dshift", isa, ds, 1e-5);
    drop(x), drop(z), drop(gain), drop(shift);
  }
}

static void test_act(void **unused) {
  (void)unused;
  static const int64_t shapes[][2] = {{1, 1}, {3, 7}, {4, 16}, {5, 85}, {2, 257}};
  FOR_ISA(isa)
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
    for (int kind = 0; kind < WN_ACT_KINDS; kind++)
      for (int scale = 1; scale <= 30; scale += 29) {
        const int64_t M = shapes[s][0], F = shapes[s][1], wide = wn_act_has_gate((enum wn_act_kind)kind) ? 2 : 1;
        struct pair x = make(M * F * wide, 1, scale == 30 && s == 3 ? 1e14 : scale), y = make(M * F, 2, 1),
                    dy = make(M * F, 3, 1);
        for (int i = 0; i < 2; i++) {
          struct wn_act a = {
              .kind = (enum wn_act_kind)kind, .M = M, .F = F, .x = x.p[i], .y = y.p[i], .dy = dy.p[i], .dx = x.p[i]};
          RUN(act, forward, i ? isa : -1, 2, &a);
          RUN(act, backward, i ? isa : -1, 2, &a);
        }
        same_within("act y", isa, y, 1e-6);
        same_within("act dx", isa, x, 2e-6);
        drop(dy);
      }
}

static void test_rope(void **unused) {
  (void)unused;
  static const int64_t shapes[][3] = {{1, 1, 2}, {5, 3, 8}, {7, 2, 34}, {3, 4, 64}};
  float table[40 * 32 * 2];
  int32_t positions[8] = {39, 0, 3, 3, 17, 1, 20, 5};
  FOR_ISA(isa) for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) for (int with = 0; with < 4; with++) {
    const int64_t R = shapes[s][0], H = shapes[s][1], D = shapes[s][2], ld = H * D + 3;
    struct pair x = make(R * ld, 1, 1), d = make(R * ld, 2, 1);
    wn_rope_table(table, 40, D, 10000);
    for (int i = 0; i < 2; i++) {
      struct wn_rope a = {.rows = R,
                          .heads = H,
                          .D = D,
                          .x = x.p[i],
                          .ldx = ld,
                          .positions = positions,
                          .adjacent = with > 1,
                          .cos_sin = with % 2 ? table : NULL,
                          .P = 40,
                          .theta = 10000};
      RUN(rope, forward, i ? isa : -1, 2, &a);
      a.x = d.p[i];
      RUN(rope, backward, i ? isa : -1, 2, &a);
    }
    same_within("rope", isa, x, 1e-6);
    same_within("rope backward", isa, d, 1e-6);
  }
}

static void test_embedding(void **unused) {
  (void)unused;
  enum { M = 37, V = 11, P = 9 };
  int32_t ids[M], positions[M];
  for (int i = 0; i < M; i++) ids[i] = i % 5 ? i % V : 3, positions[i] = i % P;
  FOR_ISA(isa) for (int64_t C = 1; C < 150; C = C * 3 + 1) for (int mode = 0; mode < 2; mode++) {
    struct pair tok = make(V * C, 1, 1), pos = make(P * C, 2, 1), y = make(M * C, 3, 1), dy = make(M * C, 4, 1),
                dtok = make(V * C, 5, 1), dpos = make(P * C, 6, 1);
    for (int i = 0; i < 2; i++) {
      struct wn_embedding a = {.M = M,
                               .C = C,
                               .V = V,
                               .P = P,
                               .ids = ids,
                               .positions = positions,
                               .tok = tok.p[i],
                               .pos = mode ? pos.p[i] : NULL,
                               .y = y.p[i],
                               .dy = dy.p[i],
                               .dtok = dtok.p[i],
                               .dpos = mode ? dpos.p[i] : NULL};
      RUN(embedding, forward, i ? isa : -1, 2, &a);
      RUN(embedding, backward, i ? isa : -1, 2, &a);
    }
    same_within("embedding y", isa, y, 1e-6);
    same_within("embedding dtok", isa, dtok, 2e-6);
    same_within("embedding dpos", isa, dpos, 2e-6);
    drop(tok), drop(pos), drop(dy);
  }
}

static void test_elementwise(void **unused) {
  (void)unused;
  static const int64_t sizes[] = {1, 3, 16, 63, 64, 65, 1000, 4099, 40007};
  FOR_ISA(isa) for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    const int64_t n = sizes[s];
    struct pair x = make(n, 1, 1), z = make(n, 2, 1), y = make(n, 3, 1), drops = make(n, 4, 1);
    double sums[2];
    for (int i = 0; i < 2; i++) {
      struct wn_add add = {.n = n, .x = x.p[i], .z = z.p[i], .y = y.p[i]};
      RUN(add, forward, i ? isa : -1, 3, &add);
      struct wn_sumsq sumsq = {.n = n, .x = x.p[i], .out = &sums[i]};
      RUN(sumsq, forward, i ? isa : -1, 3, &sumsq);
      struct wn_dropout dropout = {.n = n, .p = 0.3, .seed = 77, .stream = 1ull << 40 | 5, .x = drops.p[i]};
      RUN(dropout, forward, i ? isa : -1, 3, &dropout);
      dropout.p = 0;
      RUN(dropout, forward, i ? isa : -1, 3, &dropout);
      struct wn_softcap cap = {.n = n, .cap = 0.7, .x = z.p[i]};
      RUN(softcap, forward, i ? isa : -1, 3, &cap);
      struct wn_scale scale = {.n = n, .factor = -0.22, .x = x.p[i]};
      RUN(scale, forward, i ? isa : -1, 3, &scale);
    }
    if (!(fabs(sums[0] - sums[1]) <= 1e-12 * sums[0]))
      fail_msg("sumsq of %lld: %.17g, reference %.17g", (long long)n, sums[1], sums[0]);
    same_within("add", isa, y, 0);
    same_within("dropout", isa, drops, 2e-7);
    same_within("softcap", isa, z, 3e-7);
    same_within("scale", isa, x, 1e-7);
  }
}

static void test_cross_entropy(void **unused) {
  (void)unused;
  static const int64_t widths[] = {1, 2, 15, 16, 17, 33, 256, 1003};
  enum { M = 9 };
  FOR_ISA(isa) for (size_t s = 0; s < sizeof widths / sizeof *widths; s++) for (int mode = 0; mode < 4; mode++) {
    const int64_t V = widths[s], ld = V + (mode & 1 ? 5 : 0);
    int32_t targets[M];
    struct pair logits = make(M * ld, 1, mode & 2 ? 40 : 1), d = make(M * ld, 2, 1);
    for (int m = 0; m < M; m++) targets[m] = m % 4 == 3 ? -1 : (int32_t)(m * 7 % V);
    for (int i = 0; i < 2; i++) {
      for (int m = 0; m < M; m++) { /* a tie for the largest, and a masked logit */
        if (V > 2) logits.p[i][m * ld + V - 1] = logits.p[i][m * ld + V / 2] = 50;
        if (V > 15) logits.p[i][m * ld + 1] = -INFINITY, targets[m] = targets[m] == 1 ? 2 : targets[m];
      }
    }
    targets[0] = (int32_t)(V / 2), targets[1] = (int32_t)(V - 1);
    double loss[2][M];
    uint8_t hit[2][M];
    for (int i = 0; i < 2; i++) {
      struct wn_cross_entropy a = {.M = M,
                                   .V = V,
                                   .logits = logits.p[i],
                                   .ld = ld,
                                   .targets = targets,
                                   .scale = 0.37,
                                   .dlogits = mode == 3   ? logits.p[i]
                                              : mode == 0 ? NULL
                                                          : d.p[i],
                                   .loss = loss[i],
                                   .hit = mode ? hit[i] : NULL};
      RUN(cross_entropy, forward, i ? isa : -1, 2, &a);
    }
    for (int m = 0; m < M; m++) {
      if (!(fabs(loss[0][m] - loss[1][m]) <= 2e-6 * (1 + fabs(loss[0][m]))))
        fail_msg("loss[%d] %.9g, reference %.9g", m, loss[1][m], loss[0][m]);
      if (mode) assert_int_equal(hit[0][m], hit[1][m]);
    }
    if (mode != 3) { /* the difference of two -inf would be NaN */
      drop(logits);
      same_within("dlogits", isa, d, 2e-6);
    } else {
      drop(d);
      same_within("dlogits in place", isa, logits, 2e-6);
    }
  }
}

static void test_optimizers(void **unused) {
  (void)unused;
  static const int64_t sizes[] = {1, 15, 16, 33, 1000, 20011};
  FOR_ISA(isa)
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (int64_t step = 1; step < 3000; step += 1499) {
      const int64_t n = sizes[s];
      struct pair p = make(n, 1, 1), g = make(n, 2, 1), m = make(n, 3, 0.1), v = make(n, 4, 0.1), p2 = make(n, 5, 1);
      for (int i = 0; i < 2; i++) {
        for (int64_t k = 0; k < n; k++) v.p[i][k] *= v.p[i][k];
        struct wn_adamw a = {.n = n,
                             .p = p.p[i],
                             .g = g.p[i],
                             .m = m.p[i],
                             .v = v.p[i],
                             .lr = 0.01,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .grad_scale = 0.7,
                             .step = step};
        RUN(adamw, forward, i ? isa : -1, 3, &a);
        struct wn_adagrad b = {.n = n,
                               .p = p2.p[i],
                               .g = g.p[i],
                               .v = v.p[i],
                               .lr = 0.07,
                               .eps = 1e-10,
                               .weight_decay = 0.01,
                               .grad_scale = 0.7};
        RUN(adagrad, forward, i ? isa : -1, 3, &b);
      }
      same_within("adamw p", isa, p, 1e-6);
      same_within("adamw m", isa, m, 1e-6);
      same_within("adamw, adagrad v", isa, v, 1e-6);
      same_within("adagrad p", isa, p2, 1e-6);
      drop(g);
    }
}

/* Sums over rows: the same number of threads always gives the same bits, on which resumed runs depend. Any number does
 * where ops.h says so. */
static void test_sums_are_repeatable(void **unused) {
  (void)unused;
  enum { M = 301, N = 205, K = 190, V = 40, TIMES = 4 };
  static const int threads[TIMES] = {2, 2, 1, 3};
  float *x = malloc(sizeof(float) * M * K), *dy = malloc(sizeof(float) * M * N), *w = malloc(sizeof(float) * N * K);
  float *dw[TIMES], *dgain[TIMES], *dtok[TIMES], *dx = malloc(sizeof(float) * M * K), *rstd = malloc(sizeof(float) * M);
  double sums[TIMES];
  int32_t ids[M];
  assert_true(x && dy && w && dx && rstd);
  for (int i = 0; i < M * K; i++) x[i] = (float)wn_random_normal(1, WN_STREAM_TEST, 1, (uint64_t)i);
  for (int i = 0; i < M * N; i++) dy[i] = (float)wn_random_normal(1, WN_STREAM_TEST, 2, (uint64_t)i);
  for (int i = 0; i < N * K; i++) w[i] = (float)wn_random_normal(1, WN_STREAM_TEST, 3, (uint64_t)i);
  for (int m = 0; m < M; m++) ids[m] = m * 7 % V, rstd[m] = 1;
  FOR_ISA(isa) {
    for (int t = 0; t < TIMES; t++) {
      dw[t] = calloc(N * K, sizeof(float)), dgain[t] = calloc(K, sizeof(float)), dtok[t] = calloc(V * K, sizeof(float));
      assert_true(dw[t] && dgain[t] && dtok[t]);
      struct wn_linear linear = {
          .M = M, .N = N, .K = K, .x = x, .ldx = K, .w = w, .dy = dy, .lddy = N, .dx = dx, .lddx = K, .dw = dw[t]};
      RUN(linear, backward, isa, threads[t], &linear);
      struct wn_norm norm = {.rows = M,
                             .groups = 1,
                             .width = K,
                             .eps = 1e-6,
                             .x = x,
                             .ldx = K,
                             .gain = w,
                             .rstd = rstd,
                             .dy = dx,
                             .lddy = K,
                             .dgain = dgain[t]};
      RUN(norm, backward, isa, threads[t], &norm);
      struct wn_embedding embedding = {.M = M, .C = K, .V = V, .ids = ids, .dy = x, .dtok = dtok[t]};
      RUN(embedding, backward, isa, threads[t], &embedding);
      struct wn_sumsq sumsq = {.n = M * K, .x = x, .out = &sums[t]};
      RUN(sumsq, forward, isa, threads[t], &sumsq);
      assert_memory_equal(dtok[t], dtok[0], V * K * sizeof(float));
      assert_memory_equal(&sums[t], &sums[0], sizeof sums[0]);
      if (threads[t] != threads[0]) continue;
      assert_memory_equal(dw[t], dw[0], N * K * sizeof(float));
      assert_memory_equal(dgain[t], dgain[0], K * sizeof(float));
    }
    for (int t = 0; t < TIMES; t++) free(dw[t]), free(dgain[t]), free(dtok[t]);
  }
  free(x), free(dy), free(w), free(dx), free(rstd);
}

static void test_double_is_refused(void **unused) {
  (void)unused;
  double x[4] = {1, 2, 3, 4};
  struct wn_exec exec = exec_of(the.best, 1);
  exec.dtype = WN_F64;
  struct wn_add a = {.n = 4, .x = x, .z = x, .y = x};
  assert_int_equal(wn_op_add_forward(&exec, &a), WN_ERR_UNSUPPORTED);
  assert_non_null(strstr(wn_context_error(the.ctx), "cpu"));
  assert_true(x[0] == 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_linear),
      cmocka_unit_test(test_norm),
      cmocka_unit_test(test_act),
      cmocka_unit_test(test_rope),
      cmocka_unit_test(test_embedding),
      cmocka_unit_test(test_elementwise),
      cmocka_unit_test(test_cross_entropy),
      cmocka_unit_test(test_optimizers),
      cmocka_unit_test(test_sums_are_repeatable),
      cmocka_unit_test(test_double_is_refused),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
