/* Projections with quantised weights, for each storage type: bytes of weights per second for 1 and 8 rows of x,
 * compared with a plain read of as many bytes by the same threads, and operations per second for 32 and 512 rows.
 * Prints a table.
 *
 *   bench_packed [THREADS [file] [vnni] [exact=N]]
 *
 * Medians of repeated calls. The matrices exceed the caches of small machines, except for 512 rows. With one thread its
 * processor time counts, and the fastest call is taken, on which other programs have little effect. Blocks are in
 * strips, as in a model; "file": in the file's layout; "vnni": as on a processor without tiles (AMX); "exact=33":
 * float32 products from 33 rows on instead of integer ones. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/backends.h"
#include "backends/cpu/cpu.h"
#include "winnow/context.h"

enum { K = 1024, BYTES = 64 << 20, TIMES = 9, ROWS = 512, NARROW = 1024 };

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double seconds(int threads) {
  struct timespec t;
  if (threads > 1) return omp_get_wtime();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static double taken(double *t, int times, int threads) {
  qsort(t, (size_t)times, sizeof *t, compare);
  return t[threads > 1 ? times / 2 : 0];
}

static uint64_t read_plainly(const uint64_t *p, int64_t n, int threads) {
  uint64_t sum = 0;
#pragma omp parallel for simd reduction(+ : sum) num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; i++) sum += p[i];
  return sum;
}

int main(int argc, char **argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : 2;
  bool in_file = false;
  wn_context_options options = {.size = sizeof options, .threads = threads};
  for (int i = 2; i < argc; i++) {
    in_file = in_file || !strcmp(argv[i], "file");
    if (!strcmp(argv[i], "vnni")) wn_cpu_deny_amx(true);
    if (!strncmp(argv[i], "exact=", 6)) options.exact_rows = atoi(argv[i] + 6);
  }
  wn_context *ctx = NULL;
  const struct wn_backend *backend = NULL;
  if (wn_context_create(&options, &ctx) != WN_OK || wn_backend_of(ctx, &backend) != WN_OK) {
    fprintf(stderr, "bench_packed: %s\n", wn_context_error(ctx));
    return 1;
  }
  char *blocks = aligned_alloc(64, BYTES);
  const int64_t most = BYTES / (K / 32 * 18); /* rows of the smallest type */
  float *x = malloc((size_t)ROWS * K * sizeof *x), *y = malloc((size_t)(32 * most) * sizeof *y);
  if (!blocks || !x || !y) return 1;
  memset(blocks, 0x2c, BYTES); /* scales of 0.065 */
  for (int i = 0; i < ROWS * K; i++) x[i] = (float)(i % 17 - 8) * 0.1f;
  double t[TIMES];
  uint64_t sum = 0;
  for (int r = 0; r < TIMES; r++) {
    t[r] = seconds(threads);
    sum += read_plainly((const uint64_t *)(void *)blocks, BYTES / 8, threads);
    t[r] = seconds(threads) - t[r];
  }
  const double plain = BYTES / taken(t, TIMES, threads) / 1e9;
  printf("plain read %.1f GB/s (%llx)\n%-6s %12s %12s %14s %14s\n", plain, (unsigned long long)(sum & 15), "type",
         "1 row GB/s", "8 rows GB/s", "32 rows GF/s", "512 rows GF/s");
  for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
    const size_t row = wn_packed_row_bytes((wn_gguf_type)type, K);
    struct wn_packed packed = {.count = 1,
                               .part = {{.type = (wn_gguf_type)type, .rows = (int64_t)(BYTES / row), .data = blocks}}};
    const struct wn_exec laying = {.ctx = ctx, .backend = backend, .threads = threads, .dtype = WN_F32};
    const size_t strips_bytes =
        backend->strips_bytes ? backend->strips_bytes((wn_gguf_type)type, packed.part[0].rows, K) : 0;
    char *strips = strips_bytes && !in_file ? aligned_alloc(64, strips_bytes) : NULL;
    if (strips) backend->strips_make(&laying, &packed.part[0], K, strips);
    packed.part[0].strips = strips;
    static const int rows[4] = {1, 8, 32, ROWS};
    printf("%-6s", wn_gguf_type_name((wn_gguf_type)type));
    for (int i = 0; i < 4; i++) {
      if (rows[i] == ROWS) packed.part[0].rows = NARROW;
      const struct wn_linear a = {.M = rows[i],
                                  .N = packed.part[0].rows,
                                  .K = K,
                                  .x = x,
                                  .ldx = K,
                                  .packed = &packed,
                                  .y = y,
                                  .ldy = packed.part[0].rows};
      struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = threads, .dtype = WN_F32};
      e.scratch_bytes = wn_op_linear_scratch(&e, &a, false);
      e.scratch = aligned_alloc(64, e.scratch_bytes / 64 * 64 + 64);
      const int times = i == 2 ? 3 : TIMES;
      for (int r = -1; r < times; r++) {
        const double start = seconds(threads);
        if (wn_op_linear_forward(&e, &a) != WN_OK) {
          fprintf(stderr, "bench_packed: %s\n", wn_context_error(ctx));
          return 1;
        }
        if (r >= 0) t[r] = seconds(threads) - start;
      }
      free(e.scratch);
      const double s = taken(t, times, threads), N = (double)packed.part[0].rows;
      printf(i >= 2 ? " %14.0f" : " %12.1f", i >= 2 ? 2.0 * rows[i] * K * N / s / 1e9 : (double)row * N / s / 1e9);
    }
    printf("\n");
    free(strips);
  }
  free(blocks), free(x), free(y);
  wn_context_destroy(ctx);
  return 0;
}
