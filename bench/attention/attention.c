/* Speed and memory of the attention operation, compared in the same run with the matrix kernel that it uses. JSON on
 * standard output.
 *
 *   bench_attention [--threads N] [--repeats N] [--shape B,T,H,Hkv,D] [--backend cpu|ref] [--type f32|bf16|both]
 *       Forward and backward, dense and selective. Rates count visible pairs only: 2 products forward and 5
 *       backward, each with 2 D operations for a pair and head. The peer is libxsmm's 64x64x64 kernel on operands
 *       in cache, on all threads, in the rows' type. It and the four passes alternate; medians are printed with
 *       the range of the middle half. With both types, the types alternate too.
 *   bench_attention --decode [--shape B,T,H,Hkv,D]
 *       One query of each sequence against T keys, compared with a plain read of as many bytes.
 *   bench_attention --memory [--shape B,T,H,Hkv,D]
 *       Peak resident bytes of forward and backward at T = 2048, 8192 and 32768, in a process each. */
#include <libxsmm.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "ops/attention.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "tensor/bf16.h"

enum { REPEATS_MAX = 200, EDGE = 64 };

struct options {
  int threads, repeats;
  int64_t B, T, H, Hkv, D;
  const char *backend;
  bool decode, memory, f32, bf16; /* types of the rows */
};

static wn_context *ctx;
static enum wn_isa isa;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void require(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "bench_attention: %s: %s\n", what, ctx ? wn_context_error(ctx) : "");
  exit(1);
}

static void *make(const char *what, size_t bytes) {
  void *p = NULL;
  require(wn_alloc(ctx, what, bytes, &p) == WN_OK, "memory");
  return p;
}

static void *normal(const char *what, int64_t n, uint64_t seed, bool bf16) {
  float *x = make(what, (size_t)n * sizeof *x);
#pragma omp parallel for
  for (int64_t i = 0; i < n; i++) x[i] = (float)(2.0 * wn_random_uniform(seed, WN_STREAM_TEST, 0, (uint64_t)i) - 1.0);
  if (!bf16) return x;
  uint16_t *rounded = make(what, (size_t)n * sizeof *rounded);
  wn_bf16_from_f32(1, n, x, rounded);
  wn_free(x);
  return rounded;
}

/* --- the operation --- */

struct job {
  struct wn_exec exec;
  struct wn_attention a;
  void *to_free[16];
  int count;
};

static void *keep(struct job *j, void *p) {
  return j->to_free[j->count++] = p;
}

/* Arrays with tokens outermost, as in a model. Inputs come from another job if there is one, so that both find the
 * caches in the same state. */
static void job_init(struct job *j, const struct options *o, int64_t T, bool selective, bool bf16,
                     const struct job *inputs) {
  const size_t size = bf16 ? sizeof(uint16_t) : sizeof(float);
  memset(j, 0, sizeof *j);
  const int64_t Tq = o->decode ? 1 : T, q = o->B * Tq * o->H * o->D, k = o->B * T * o->Hkv * o->D;
  j->a = (struct wn_attention){
      .B = o->B, .Tq = Tq, .Tk = T, .H = o->H, .Hkv = o->Hkv, .D = o->D, .scale = 1.0 / sqrt((double)o->D)};
  struct wn_attention *a = &j->a;
  a->row_type = bf16 ? WN_BF16 : WN_F32;
  a->s_q = a->s_y = (struct wn_stride){Tq * o->H * o->D, o->H * o->D, o->D};
  a->s_k = a->s_v = (struct wn_stride){T * o->Hkv * o->D, o->Hkv * o->D, o->D};
  a->q = inputs ? inputs->a.q : keep(j, normal("q", q, 1, bf16));
  a->k = inputs ? inputs->a.k : keep(j, normal("k", k, 2, bf16));
  a->v = inputs ? inputs->a.v : keep(j, normal("v", k, 3, bf16));
  a->y = keep(j, make("y", (size_t)q * size));
  if (!o->decode) {
    a->lse = keep(j, make("lse", (size_t)(o->B * o->H * Tq) * 4));
    a->dy = inputs ? inputs->a.dy : keep(j, normal("dy", q, 4, bf16));
    a->dq = keep(j, make("dq", (size_t)q * size));
    a->dk = keep(j, make("dk", (size_t)k * size));
    a->dv = keep(j, make("dv", (size_t)k * size));
  }
  if (selective) {
    a->sel.on = a->sel.relu = a->sel.protect_first = a->sel.protect_self = a->sel.shift = true;
    a->sel.f_out = keep(j, make("F", (size_t)(o->B * T) * 4));
    if (o->decode) a->sel.f_in = a->sel.f_out;
  }
  j->exec = (struct wn_exec){.ctx = ctx,
                             .backend = strcmp(o->backend, "ref") == 0 ? wn_backend_ref() : wn_backend_cpu(isa),
                             .threads = o->threads,
                             .dtype = WN_F32};
  const size_t forward = wn_op_attention_scratch(&j->exec, a, false);
  const size_t backward = o->decode ? 0 : wn_op_attention_scratch(&j->exec, a, true);
  j->exec.scratch_bytes = forward > backward ? forward : backward;
  j->exec.scratch = keep(j, make("scratch", j->exec.scratch_bytes));
}

static void job_clear(struct job *j) {
  for (int i = 0; i < j->count; i++) wn_free(j->to_free[i]);
}

static void forward(struct job *j) {
  require(wn_op_attention_forward(&j->exec, &j->a) == WN_OK, "forward");
}
static void backward(struct job *j) {
  require(wn_op_attention_backward(&j->exec, &j->a) == WN_OK, "backward");
}

/* --- peers --- */

/* Operations per second of the 64x64x64 kernel on all threads, measured for at least `seconds`. */
static double kernel_rate(int threads, bool bf16, double seconds) {
  const int packed = LIBXSMM_GEMM_FLAG_VNNI_A;
  libxsmm_init();
  libxsmm_smmfunction f = libxsmm_smmdispatch(EDGE, EDGE, EDGE, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
  libxsmm_bsmmfunction b = libxsmm_bsmmdispatch(EDGE, EDGE, EDGE, NULL, NULL, NULL, NULL, NULL, &packed, NULL);
  require(bf16 ? b != NULL : f != NULL, "libxsmm has no kernel");
  double begin = 0, end = 0;
  long calls = 0;
#pragma omp parallel num_threads(threads) reduction(+ : calls)
  {
    float *tiles = aligned_alloc(64, 3 * EDGE * EDGE * sizeof *tiles);
    require(tiles != NULL, "memory");
    uint16_t *halves = (uint16_t *)(void *)tiles;
    for (int i = 0; i < 3 * EDGE * EDGE; i++) tiles[i] = (float)(i % 7) * 1e-3f;
    for (int i = 0; bf16 && i < 2 * EDGE * EDGE; i++) halves[i] = wn_bf16_round((float)(i % 7) * 1e-3f);
    float *c = tiles + 2 * EDGE * EDGE;
    memset(c, 0, EDGE * EDGE * sizeof *c);
#pragma omp barrier
#pragma omp master
    begin = now();
#pragma omp barrier
    do {
      for (int n = 0; n < 200; n++) {
        if (bf16)
          b(halves, halves + EDGE * EDGE, c);
        else
          f(tiles, tiles + EDGE * EDGE, c);
      }
      calls += 200;
      for (int i = 0; i < EDGE * EDGE; i++) c[i] = 0; /* keeps sums small */
    } while (now() - begin < seconds);
#pragma omp barrier
#pragma omp master
    end = now();
    free(tiles);
  }
  return (double)calls * 2.0 * EDGE * EDGE * EDGE / (end - begin);
}

/* Bytes per second when all threads read x once. */
static double read_rate(int threads, const float *x, int64_t n) {
  const double begin = now();
  float sum = 0;
#pragma omp parallel for simd num_threads(threads) reduction(+ : sum) schedule(static)
  for (int64_t i = 0; i < n; i++) sum += x[i];
  const double end = now();
  volatile float sink = sum;
  (void)sink;
  return (double)n * 4 / (end - begin);
}

/* --- statistics --- */

struct series {
  double at[REPEATS_MAX];
  int n;
};
static void add(struct series *s, double x) {
  s->at[s->n++] = x;
}
static int ascending(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}
static double quantile(struct series *s, double q) {
  qsort(s->at, (size_t)s->n, sizeof *s->at, ascending);
  return s->at[(int)(q * (s->n - 1) + 0.5)];
}

static void print_head(const struct options *o) {
  printf("{\"machine\": \"%s\", \"isa\": \"%s\", \"backend\": \"%s\", \"threads\": %d, \"repeats\": %d,\n",
         wn_cpu_name(), wn_isa_name(isa), o->backend, o->threads, o->repeats);
  printf(" \"shape\": {\"B\": %lld, \"T\": %lld, \"H\": %lld, \"Hkv\": %lld, \"D\": %lld},\n", (long long)o->B,
         (long long)o->T, (long long)o->H, (long long)o->Hkv, (long long)o->D);
}

/* The passes for one type of rows. */
struct speed {
  bool bf16;
  struct job jobs[2];
  struct series kernel, times[4];
};

static void speed_turn(const struct options *o, struct speed *s) {
  add(&s->kernel, kernel_rate(o->threads, s->bf16, 0.02));
  for (int i = 0; i < 4; i++) {
    const double begin = now();
    if (i % 2)
      backward(&s->jobs[i / 2]);
    else
      forward(&s->jobs[i / 2]);
    add(&s->times[i], now() - begin);
  }
}

static void speed_print(const struct options *o, struct speed *s) {
  static const char *const names[4] = {"dense_forward", "dense_backward", "selective_forward", "selective_backward"};
  const double pairs = (double)o->B * (double)o->H * (double)o->T * (double)(o->T + 1) / 2;
  const double operations[2] = {2 * 2 * (double)o->D * pairs, 5 * 2 * (double)o->D * pairs};
  const double rate = quantile(&s->kernel, 0.5);
  printf(" \"%s\": {\"kernel_gflops\": %.1f, \"kernel_gflops_quartiles\": [%.1f, %.1f],\n", s->bf16 ? "bf16" : "f32",
         rate * 1e-9, quantile(&s->kernel, 0.25) * 1e-9, quantile(&s->kernel, 0.75) * 1e-9);
  double median[4];
  for (int i = 0; i < 4; i++) {
    median[i] = quantile(&s->times[i], 0.5);
    const double gflops = operations[i % 2] / median[i] * 1e-9;
    printf("  \"%s\": {\"ms\": %.3f, \"ms_quartiles\": [%.3f, %.3f], \"gflops\": %.1f, \"of_kernel\": %.3f},\n",
           names[i], median[i] * 1e3, quantile(&s->times[i], 0.25) * 1e3, quantile(&s->times[i], 0.75) * 1e3, gflops,
           gflops / (rate * 1e-9));
  }
  printf("  \"selective_over_dense\": {\"forward\": %.3f, \"backward\": %.3f, \"both\": %.3f}}", median[2] / median[0],
         median[3] / median[1], (median[2] + median[3]) / (median[0] + median[1]));
}

static void bench_speed(const struct options *o) {
  static struct speed types[2];
  int count = 0;
  for (int bf16 = 0; bf16 < 2; bf16++) {
    struct speed *s = &types[count];
    if (bf16 ? !o->bf16 : !o->f32) continue;
    s->bf16 = bf16;
    count++;
    for (int i = 0; i < 2; i++) {
      job_init(&s->jobs[i], o, o->T, i == 1, bf16, i ? &s->jobs[0] : NULL);
      forward(&s->jobs[i]);
      backward(&s->jobs[i]);
    }
    kernel_rate(o->threads, bf16, 0.05);
  }
  for (int repeat = 0; repeat < o->repeats; repeat++)
    for (int n = 0; n < count; n++) speed_turn(o, &types[n]);
  print_head(o);
  for (int n = 0; n < count; n++) {
    speed_print(o, &types[n]);
    printf("%s\n", n < count - 1 ? "," : "}");
    for (int i = 0; i < 2; i++) job_clear(&types[n].jobs[i]);
  }
}

static void bench_decode(const struct options *o) {
  const double bytes = 2.0 * 4 * (double)(o->B * o->T * o->Hkv * o->D);
  struct job jobs[2];
  struct series times[2] = {{.n = 0}}, reads = {.n = 0};
  for (int i = 0; i < 2; i++) {
    job_init(&jobs[i], o, o->T, i == 1, false, i ? &jobs[0] : NULL);
    forward(&jobs[i]);
  }
  for (int repeat = 0; repeat < o->repeats; repeat++) {
    add(&reads, read_rate(o->threads, jobs[0].a.k, o->B * o->T * o->Hkv * o->D));
    for (int i = 0; i < 2; i++) {
      const double begin = now();
      forward(&jobs[i]);
      add(&times[i], now() - begin);
    }
  }
  const double read = quantile(&reads, 0.5), dense = quantile(&times[0], 0.5), selective = quantile(&times[1], 0.5);
  print_head(o);
  printf(" \"read_gbytes\": %.2f,\n \"dense\": {\"us\": %.1f, \"gbytes\": %.2f, \"of_read\": %.3f},\n", read * 1e-9,
         dense * 1e6, bytes / dense * 1e-9, bytes / dense / read);
  printf(" \"selective\": {\"us\": %.1f, \"gbytes\": %.2f, \"of_read\": %.3f},\n \"selective_over_dense\": %.3f}\n",
         selective * 1e6, bytes / selective * 1e-9, bytes / selective / read, selective / dense);
  for (int i = 0; i < 2; i++) job_clear(&jobs[i]);
}

static void bench_memory(const struct options *o) {
  static const int64_t lengths[] = {2048, 8192, 32768};
  print_head(o);
  printf(" \"memory\": [");
  for (int i = 0; i < 3; i++)
    for (int selective = 0; selective < 2; selective++) {
      fflush(stdout);
      const double begin = now();
      const pid_t child = fork();
      require(child >= 0, "fork");
      if (child == 0) {
        struct job j;
        job_init(&j, o, lengths[i], selective, o->bf16, NULL);
        forward(&j);
        backward(&j);
        _exit(0);
      }
      int status = 0;
      struct rusage usage;
      require(wait4(child, &status, 0, &usage) == child && status == 0, "the measured process failed");
      printf("%s\n  {\"T\": %lld, \"selective\": %s, \"seconds\": %.2f, \"peak_mib\": %.1f, \"peak_bytes_per_token\": "
             "%.0f}",
             i + selective ? "," : "", (long long)lengths[i], selective ? "true" : "false", now() - begin,
             (double)usage.ru_maxrss / 1024, (double)usage.ru_maxrss * 1024 / (double)lengths[i]);
    }
  printf("]}\n");
}

int main(int argc, char **argv) {
  struct options o = {.repeats = 15, .B = 1, .T = 2048, .H = 8, .Hkv = 8, .D = 64, .backend = "cpu", .f32 = true};
  for (int i = 1; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--decode") == 0) {
      o.decode = true;
    } else if (strcmp(argv[i], "--memory") == 0) {
      o.memory = true;
    } else if (strcmp(argv[i], "--threads") == 0) {
      o.threads = atoi(value), i++;
    } else if (strcmp(argv[i], "--repeats") == 0) {
      o.repeats = atoi(value), i++;
    } else if (strcmp(argv[i], "--type") == 0) {
      o.f32 = strcmp(value, "f32") == 0 || strcmp(value, "both") == 0;
      o.bf16 = strcmp(value, "bf16") == 0 || strcmp(value, "both") == 0, i++;
      if (!o.f32 && !o.bf16) break;
    } else if (strcmp(argv[i], "--backend") == 0) {
      o.backend = value, i++;
    } else if (strcmp(argv[i], "--shape") == 0) {
      long long s[5] = {0};
      if (sscanf(value, "%lld,%lld,%lld,%lld,%lld", &s[0], &s[1], &s[2], &s[3], &s[4]) != 5) break;
      o.B = s[0], o.T = s[1], o.H = s[2], o.Hkv = s[3], o.D = s[4], i++;
    } else {
      fprintf(stderr, "usage: bench_attention [--decode | --memory] [--threads N] [--repeats N] "
                      "[--shape B,T,H,Hkv,D] [--backend cpu|ref] [--type f32|bf16|both]\n");
      return 2;
    }
  }
  if (o.repeats < 1 || o.repeats > REPEATS_MAX) o.repeats = 15;
  if (o.threads < 1) o.threads = wn_cpu_count();
  require(wn_context_create(NULL, &ctx) == WN_OK, "context");
  require(wn_cpu_select_isa(ctx, &isa) == WN_OK, "instruction set");
  if (o.memory)
    bench_memory(&o);
  else if (o.decode)
    bench_decode(&o);
  else
    bench_speed(&o);
  wn_context_destroy(ctx);
  return 0;
}
