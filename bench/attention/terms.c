/* What spans, relative positions, dropout and learned sinks cost when training with recurrence: forward and backward of
 * Tq queries after M cached keys (whose gradients are not computed), each case compared with dense attention of the
 * same shape.
 *
 *   bench_terms [--threads N] [--repeats N] [--shape B,Tq,M,H,D] [--backend cpu|ref]
 *
 * Each repeat times the dense call and then the case, so that both run under the same conditions. A line has the
 * medians in milliseconds and the median of the ratios. Spans and windows reach at most M tokens; the ramp is 32 tokens
 * wide. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "ops/attention.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/rng.h"

enum { REPEATS_MAX = 200, SINKS = 4 };

/* span: fully visible tokens, as a share of M; 0: no span. */
static const struct rule {
  const char *name;
  double span;
  bool relative, dropout, sinks;
} rules[] = {
    {"dropout 0.3", 0, false, true, false},
    {"4 sinks", 0, false, false, true},
    {"relative positions", 0, true, false, false},
    {"relative positions, dropout", 0, true, true, false},
    {"span M", 1, false, false, false},
    {"span M/3", 1.0 / 3, false, false, false},
    {"span M/64", 1.0 / 64, false, false, false},
    {"span M, relative positions, dropout", 1, true, true, false},
    {"span M/3, relative positions, dropout", 1.0 / 3, true, true, false},
    {"span M/64, relative positions, dropout", 1.0 / 64, true, true, false},
};

static wn_context *ctx;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void require(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "bench_terms: %s: %s\n", what, ctx ? wn_context_error(ctx) : "");
  exit(1);
}

static float *uniform(const char *what, int64_t n, uint64_t seed) {
  void *p = NULL;
  require(wn_alloc(ctx, what, (size_t)n * sizeof(float), &p) == WN_OK, "memory");
  float *x = p;
  for (int64_t i = 0; i < n; i++) x[i] = (float)(2.0 * wn_random_uniform(seed, WN_STREAM_TEST, 0, (uint64_t)i) - 1.0);
  return x;
}

static int ascending(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}
static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, ascending);
  return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* The seconds of the forward and of the backward pass. */
static void run(const struct wn_exec *exec, const struct wn_attention *a, double seconds[2]) {
  const double begin = now();
  require(wn_op_attention_forward(exec, a) == WN_OK, "forward");
  const double middle = now();
  require(wn_op_attention_backward(exec, a) == WN_OK, "backward");
  seconds[0] = middle - begin, seconds[1] = now() - middle;
}

static const char *value_of(int argc, char **argv, const char *name, const char *otherwise) {
  for (int i = 1; i + 1 < argc; i += 2)
    if (strcmp(argv[i], name) == 0) return argv[i + 1];
  return otherwise;
}

int main(int argc, char **argv) {
  long long B, Tq, M, H, D;
  const int threads = atoi(value_of(argc, argv, "--threads", "1"));
  const int repeats = atoi(value_of(argc, argv, "--repeats", "7"));
  const char *backend = value_of(argc, argv, "--backend", "cpu");
  require(sscanf(value_of(argc, argv, "--shape", "2,256,2048,4,64"), "%lld,%lld,%lld,%lld,%lld", &B, &Tq, &M, &H, &D) ==
              5,
          "--shape: expected B,Tq,M,H,D");
  require(threads >= 1 && repeats >= 1 && repeats <= REPEATS_MAX, "--threads and --repeats: expected 1 to 200");
  enum wn_isa isa;
  require(wn_context_create(NULL, &ctx) == WN_OK && wn_cpu_select_isa(ctx, &isa) == WN_OK, "context");
  const int64_t Tk = Tq + M, q = B * Tq * H * D, k = B * Tk * H * D;
  struct wn_attention dense = {.B = B, .Tq = Tq, .Tk = Tk, .H = H, .Hkv = H, .D = D, .scale = 1 / sqrt((double)D)};
  dense.s_q = dense.s_y = (struct wn_stride){Tq * H * D, H * D, D};
  dense.s_k = dense.s_v = (struct wn_stride){Tk * H * D, H * D, D};
  dense.q = uniform("q", q, 1), dense.k = uniform("k", k, 2), dense.v = uniform("v", k, 3);
  dense.dy = uniform("dy", q, 4), dense.y = uniform("y", q, 5), dense.lse = uniform("lse", B * H * Tq, 6);
  dense.dq = uniform("dq", q, 7), dense.dk = uniform("dk", k, 8), dense.dv = uniform("dv", k, 9);
  dense.dk_from = M;
  struct wn_attention all = dense;
  all.relative.p = uniform("p", Tk * D, 10), all.relative.dp = uniform("dp", Tk * D, 11), all.relative.P = Tk;
  all.sinks.n = SINKS;
  all.sinks.k = uniform("sinks", H * SINKS * D, 12), all.sinks.v = uniform("sinks", H * SINKS * D, 13);
  all.sinks.dk = uniform("sinks", H * SINKS * D, 14), all.sinks.dv = uniform("sinks", H * SINKS * D, 15);
  float *z = uniform("z", H, 16);
  all.span.z = z, all.span.dz = uniform("dz", H, 17), all.span.s_z.h = 1;
  all.span.ramp = 32, all.span.limit = (double)M;
  struct wn_exec exec = {.ctx = ctx,
                         .backend = strcmp(backend, "ref") == 0 ? wn_backend_ref() : wn_backend_cpu(isa),
                         .threads = threads,
                         .dtype = WN_F32};
  printf("%s, %s, backend %s, %d threads, B %lld, Tq %lld, M %lld, H %lld, D %lld, %d repeats\n", wn_cpu_name(),
         wn_isa_name(isa), backend, threads, B, Tq, M, H, D, repeats);
  printf("%-40s %9s %9s %9s %9s %7s %7s %7s\n", "", "dense f", "dense b", "case f", "case b", "f", "b", "both");
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    struct wn_attention a = all;
    if (!rules[i].relative) a.relative.P = 0;
    if (!rules[i].sinks) a.sinks.n = 0;
    if (rules[i].dropout) a.dropout.p = 0.3;
    a.span.on = rules[i].span > 0;
    for (int64_t h = 0; h < H; h++) z[h] = (float)rules[i].span;
    size_t bytes = 0;
    const struct wn_attention *both[2] = {&dense, &a};
    for (int n = 0; n < 4; n++) {
      const size_t need = wn_op_attention_scratch(&exec, both[n / 2], n % 2);
      bytes = need > bytes ? need : bytes;
    }
    require(wn_alloc(ctx, "scratch", bytes, &exec.scratch) == WN_OK, "memory");
    exec.scratch_bytes = bytes;
    double times[4][REPEATS_MAX], ratios[3][REPEATS_MAX];
    for (int n = -1; n < repeats; n++) {
      double x[2], y[2];
      run(&exec, &dense, x);
      run(&exec, &a, y);
      if (n < 0) continue;
      times[0][n] = x[0], times[1][n] = x[1], times[2][n] = y[0], times[3][n] = y[1];
      ratios[0][n] = y[0] / x[0], ratios[1][n] = y[1] / x[1], ratios[2][n] = (y[0] + y[1]) / (x[0] + x[1]);
    }
    printf("%-40s", rules[i].name);
    for (int n = 0; n < 4; n++) printf(" %9.3f", 1e3 * median(times[n], repeats));
    for (int n = 0; n < 3; n++) printf(" %7.3f", median(ratios[n], repeats));
    printf("\n");
    wn_free(exec.scratch);
  }
  const void *arrays[] = {dense.q,      dense.k,  dense.v,        dense.dy,    dense.y,        dense.lse,
                          dense.dq,     dense.dk, dense.dv,       all.sinks.k, all.sinks.v,    all.sinks.dk,
                          all.sinks.dv, z,        all.relative.p, all.span.dz, all.relative.dp};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) wn_free((void *)(uintptr_t)arrays[i]);
  wn_context_destroy(ctx);
  return 0;
}
