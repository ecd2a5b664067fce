/* What keep rules save: attention with windows, spans, strided and square-root rules, compared with dense attention.
 *
 *   bench_sparse [--mode prefill|chunks|decode|train] [--threads N] [--repeats N] [--shape B,T,H,D] [--only NAME]
 *                [--backend cpu|ref]
 *       prefill: one forward pass over T rows. chunks: the same in chunks of 512 rows after the earlier keys.
 *       decode: one row against T keys. train: forward and backward.
 *
 * Each repeat times dense attention and then the case. A line has the medians, the median of the ratios, and the share
 * of the causal pairs (decode: of the keys) that the case sees. With one thread the time is processor time, which
 * excludes other programs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "ops/attention.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/rng.h"

enum { REPEATS_MAX = 200, CHUNK = 512, RAMP = 32 };

struct options {
  int threads, repeats;
  int64_t B, T, H, D;
  const char *mode, *only, *backend;
};

static wn_context *ctx;
static enum wn_isa isa;

/* A case: the options in use. span: tokens that are fully visible; a ramp of 32 follows. */
struct rule {
  const char *name;
  int64_t window, span, strided, root;
  bool selective;
};
static const struct rule rules[] = {
    {"window 64", 64, 0, 0, 0, false},
    {"window 256", 256, 0, 0, 0, false},
    {"window 1024", 1024, 0, 0, 0, false},
    {"span 64", 0, 64, 0, 0, false},
    {"span 256", 0, 256, 0, 0, false},
    {"span 1024", 0, 1024, 0, 0, false},
    {"strided 64", 0, 0, 64, 0, false},
    {"sqrt 64", 0, 0, 0, 64, false},
    {"selective", 0, 0, 0, 0, true},
    {"window 256 + selective", 256, 0, 0, 0, true},
    {"sqrt 64 + selective", 0, 0, 0, 64, true},
};

static double now(const struct options *o) {
  struct timespec t;
  clock_gettime(o->threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void require(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "bench_sparse: %s: %s\n", what, ctx ? wn_context_error(ctx) : "");
  exit(1);
}

static void *make(const char *what, size_t bytes) {
  void *p = NULL;
  require(wn_alloc(ctx, what, bytes, &p) == WN_OK, "memory");
  memset(p, 0, bytes);
  return p;
}

static float *uniform(const char *what, int64_t n, uint64_t seed) {
  float *x = make(what, (size_t)n * sizeof *x);
  for (int64_t i = 0; i < n; i++) x[i] = (float)(2.0 * wn_random_uniform(seed, WN_STREAM_TEST, 0, (uint64_t)i) - 1.0);
  return x;
}

/* The rules, written a second time, directly. */
static bool sees(const struct rule *r, int64_t x) {
  if (r->window > 0 && x >= r->window) return false;
  if (r->span > 0 && x >= r->span + RAMP) return false;
  if (r->strided > 0 && x >= r->strided && x % r->strided != 0) return false;
  if (r->root > 0 && x >= r->root) {
    const int64_t m = (int64_t)(sqrt((double)(x - r->root + 1)) + 0.5);
    if (m * m != x - r->root + 1) return false;
  }
  return true;
}

/* The share of pairs seen, for the last `rows` rows of T keys. */
static double share(const struct rule *r, int64_t rows, int64_t T) {
  double seen = 0, all = 0;
  int64_t at = 0;
  for (int64_t x = 0; x < T; x++) {
    at += sees(r, x);
    if (x >= T - rows) seen += (double)at, all += (double)(x + 1);
  }
  return seen / all;
}

struct buffers {
  float *q, *k, *v, *y, *lse, *dy, *dq, *dk, *dv, *f, *z, *dz;
  void *scratch;
  size_t scratch_bytes;
};

static struct wn_attention operation(const struct options *o, const struct rule *r, const struct buffers *x) {
  const bool decode = !strcmp(o->mode, "decode"), train = !strcmp(o->mode, "train");
  const int64_t T = o->T, H = o->H, D = o->D, Tq = decode ? 1 : T;
  struct wn_attention a = {
      .B = o->B, .Tq = Tq, .Tk = T, .H = H, .Hkv = H, .D = D, .scale = 1 / sqrt((double)D), .q = x->q, .k = x->k};
  a.v = x->v, a.y = x->y, a.lse = train ? x->lse : NULL;
  a.s_q = a.s_y = (struct wn_stride){Tq * H * D, H * D, D};
  a.s_k = a.s_v = (struct wn_stride){T * H * D, H * D, D};
  if (train) a.dy = x->dy, a.dq = x->dq, a.dk = x->dk, a.dv = x->dv;
  if (!r) return a;
  a.window = r->window, a.strided = r->strided;
  if (r->root > 0) a.root.on = true, a.root.buffer = r->root, a.root.density = 1;
  if (r->span > 0) {
    a.span.on = true, a.span.limit = (double)T, a.span.ramp = RAMP;
    for (int64_t h = 0; h < H; h++) x->z[h] = (float)r->span / (float)T;
    a.span.z = x->z, a.span.s_z = (struct wn_stride){0, 0, 1}, a.span.dz = train ? x->dz : NULL;
  }
  if (r->selective) {
    a.sel.on = a.sel.relu = a.sel.protect_first = a.sel.protect_self = a.sel.shift = true;
    if (!train) a.sel.f_in = a.sel.f_out = x->f;
  }
  return a;
}

static void call(const struct options *o, const struct wn_attention *a, struct buffers *x) {
  struct wn_exec exec = {.ctx = ctx,
                         .backend = strcmp(o->backend, "ref") == 0 ? wn_backend_ref() : wn_backend_cpu(isa),
                         .threads = o->threads,
                         .dtype = WN_F32};
  const bool train = a->dy != NULL;
  size_t bytes = wn_op_attention_scratch(&exec, a, false);
  const size_t backward = train ? wn_op_attention_scratch(&exec, a, true) : 0;
  if (backward > bytes) bytes = backward;
  if (bytes > x->scratch_bytes) {
    wn_free(x->scratch);
    x->scratch = make("scratch", bytes);
    x->scratch_bytes = bytes;
  }
  exec.scratch = x->scratch, exec.scratch_bytes = x->scratch_bytes;
  require(wn_op_attention_forward(&exec, a) == WN_OK, "forward");
  if (train) require(wn_op_attention_backward(&exec, a) == WN_OK, "backward");
}

/* The seconds of all the work in a mode. */
static double run(const struct options *o, const struct rule *r, struct buffers *x) {
  const struct wn_attention whole = operation(o, r, x);
  if (r && r->selective) memset(x->f, 0, (size_t)(o->B * o->T) * sizeof *x->f);
  const double begin = now(o);
  if (strcmp(o->mode, "chunks")) {
    call(o, &whole, x);
    return now(o) - begin;
  }
  for (int64_t at = 0; at < o->T; at += CHUNK) {
    struct wn_attention a = whole;
    a.Tq = o->T - at < CHUNK ? o->T - at : CHUNK;
    a.Tk = at + a.Tq;
    a.q = x->q + at * a.s_q.t, a.y = x->y + at * a.s_y.t;
    a.sel.f_stride = o->T;
    call(o, &a, x);
  }
  return now(o) - begin;
}

static int ascending(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}
static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, ascending);
  return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static void bench(const struct options *o) {
  const bool decode = !strcmp(o->mode, "decode"), train = !strcmp(o->mode, "train");
  const int64_t q = o->B * (decode ? 1 : o->T) * o->H * o->D, k = o->B * o->T * o->H * o->D;
  struct buffers x = {.q = uniform("q", q, 1), .k = uniform("k", k, 2), .v = uniform("v", k, 3)};
  x.y = make("y", (size_t)q * 4), x.f = make("F", (size_t)(o->B * o->T) * 4);
  x.z = make("z", (size_t)o->H * 4), x.dz = make("dz", (size_t)o->H * 4);
  if (train) {
    x.lse = make("lse", (size_t)(o->B * o->H * o->T) * 4), x.dy = uniform("dy", q, 4);
    x.dq = make("dq", (size_t)q * 4), x.dk = make("dk", (size_t)k * 4), x.dv = make("dv", (size_t)k * 4);
  }
  printf("%s, %s, backend %s, threads %d, repeats %d, mode %s, B %lld T %lld H %lld D %lld\n\n", wn_cpu_name(),
         wn_isa_name(isa), o->backend, o->threads, o->repeats, o->mode, (long long)o->B, (long long)o->T,
         (long long)o->H, (long long)o->D);
  printf("| case | seen | dense, ms | case, ms | case / dense |\n|---|---|---|---|---|\n");
  for (size_t n = 0; n < sizeof rules / sizeof *rules; n++) {
    const struct rule *r = &rules[n];
    double dense[REPEATS_MAX], sparse[REPEATS_MAX], ratio[REPEATS_MAX];
    if (o->only && strcmp(o->only, r->name)) continue;
    run(o, NULL, &x), run(o, r, &x); /* warms up kernels, scratch and caches */
    for (int i = 0; i < o->repeats; i++) {
      dense[i] = run(o, NULL, &x);
      sparse[i] = run(o, r, &x);
      ratio[i] = sparse[i] / dense[i];
    }
    printf("| %s | %.2f%% | %.3f | %.3f | %.2f%% |\n", r->name, 100 * share(r, decode ? 1 : o->T, o->T),
           1e3 * median(dense, o->repeats), 1e3 * median(sparse, o->repeats), 100 * median(ratio, o->repeats));
    fflush(stdout);
  }
  void *all[] = {x.q, x.k, x.v, x.y, x.lse, x.dy, x.dq, x.dk, x.dv, x.f, x.z, x.dz, x.scratch};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) wn_free(all[i]);
}

int main(int argc, char **argv) {
  struct options o = {.repeats = 7, .B = 1, .T = 8192, .H = 8, .D = 64, .mode = "prefill", .backend = "cpu"};
  for (int i = 1; i < argc; i += 2) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    long long s[4] = {0};
    if (strcmp(argv[i], "--mode") == 0) {
      o.mode = value;
    } else if (strcmp(argv[i], "--threads") == 0) {
      o.threads = atoi(value);
    } else if (strcmp(argv[i], "--repeats") == 0) {
      o.repeats = atoi(value);
    } else if (strcmp(argv[i], "--backend") == 0) {
      o.backend = value;
    } else if (strcmp(argv[i], "--only") == 0) {
      o.only = value;
    } else if (strcmp(argv[i], "--shape") == 0 &&
               sscanf(value, "%lld,%lld,%lld,%lld", &s[0], &s[1], &s[2], &s[3]) == 4) {
      o.B = s[0], o.T = s[1], o.H = s[2], o.D = s[3];
    } else {
      fprintf(stderr, "usage: bench_sparse [--mode prefill|chunks|decode|train] [--threads N] [--repeats N]\n"
                      "                    [--shape B,T,H,D] [--only NAME] [--backend cpu|ref]\n");
      return 2;
    }
  }
  if (o.repeats < 1 || o.repeats > REPEATS_MAX) o.repeats = 7;
  if (o.threads < 1) o.threads = wn_cpu_count();
  require(wn_context_create(NULL, &ctx) == WN_OK, "context");
  require(wn_cpu_select_isa(ctx, &isa) == WN_OK, "instruction set");
  bench(&o);
  wn_context_destroy(ctx);
  return 0;
}
