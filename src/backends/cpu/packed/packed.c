/* Maps whose weights are in blocks: which kernels, which rows, which thread. See packed.h for the arithmetic.
 *
 * Decoding reads the blocks once, N K weights of 0.5625 to 4 bytes; a prompt's panels cost one pass over them in
 * addition to 2MNK operations. */
#include "backends/cpu/packed/packed.h"
#include <string.h>
#include "base/alloc.h"
#include "base/team.h"

/* Rows of w that a thread multiplies with all rows of x before it goes on: they stay in its cache. */
enum { ROWS_AT_ONCE = 32 };
/* Floats of a panel: what two cores' second-level caches hold. */
enum { PANEL_FLOATS = 1 << 19 };

static const struct wn_cpu_packed_kernels *packed_kernels_for(bool wide) {
#if defined(__x86_64__)
  if (!wide) return wn_cpu_packed_kernels_avx2();
  return __builtin_cpu_supports("avx512vnni") ? wn_cpu_packed_kernels_vnni() : wn_cpu_packed_kernels_avx512();
#else
  (void)wide;
  return NULL; /* not reached: the reference's slots are used */
#endif
}

static int64_t packed_whole(int64_t n, int64_t of) {
  return (n + of - 1) / of * of;
}

static int64_t panel_rows(const struct wn_linear *a) {
  int64_t rows = PANEL_FLOATS / a->K / 16 * 16;
  if (rows < 64) rows = 64;
  return rows < a->N ? rows : a->N;
}

/* 8-bit rows for tiles of x, from base on (NULL: only the size). */
static size_t plan_x(const struct wn_linear *a, char *base, struct wn_cpu_packed_x *out) {
  const int64_t rows = a->rows_apart || a->M < WN_CPU_PACKED_ROWS ? a->M : WN_CPU_PACKED_ROWS;
  const int64_t M = packed_whole(rows, WN_CPU_PACKED_TILE);
  *out = (struct wn_cpu_packed_x){.K = a->K,
                                  .ld = packed_whole(a->K, WN_CPU_PACKED_STEP),
                                  .ldd = packed_whole(a->K, WN_CPU_PACKED_STEP) / 32,
                                  .x = a->x,
                                  .ldx = a->ldx};
  const size_t bytes = (size_t)(M * out->ld), scales = (size_t)(M * out->ldd) * sizeof(float);
  if (base) {
    out->halves = (int8_t *)base;
    out->plain = (int8_t *)base + bytes;
    out->d = (float *)(void *)(base + 2 * bytes);
    out->s = (float *)(void *)(base + 2 * bytes + scales);
  }
  return 2 * bytes + 2 * scales;
}

size_t wn_cpu_packed_scratch(const struct wn_linear *a, bool backward) {
  struct wn_cpu_packed_x x;
  const size_t few = plan_x(a, NULL, &x), panel = (size_t)(panel_rows(a) * a->K) * sizeof(float);
  if (backward) return panel;
  return a->rows_apart || a->M <= WN_CPU_PACKED_ROWS || few > panel ? few : panel;
}

/* Rows n0..n1-1 of w. */
static void packed_share(const struct wn_cpu_packed_kernels *k, const struct wn_linear *a,
                         const struct wn_cpu_packed_x *x, int64_t n0, int64_t n1) {
  const float *bias = a->b; /* [N] */
  float *y = a->y;          /* [M,N] */
  float to[ROWS_AT_ONCE * WN_CPU_PACKED_TILE];
  int64_t start = 0; /* of the part */
  for (int p = 0; p < a->packed->count; start += a->packed->part[p++].rows) {
    const struct wn_packed_part *part = &a->packed->part[p];
    const size_t bytes = wn_packed_row_bytes(part->type, a->K);
    const int64_t end = start + part->rows < n1 ? start + part->rows : n1;
    int64_t rows;
    for (int64_t n = n0 > start ? n0 : start; n < end; n += rows) {
      rows = end - n < ROWS_AT_ONCE ? end - n : ROWS_AT_ONCE;
      const char *w = (const char *)part->data + (size_t)(n - start) * bytes;
      for (int64_t m0 = 0; m0 < a->M; m0 += WN_CPU_PACKED_TILE) {
        const int M = (int)(a->M - m0 < WN_CPU_PACKED_TILE ? a->M - m0 : WN_CPU_PACKED_TILE);
        k->product(part->type, w, rows, x, m0, M, to);
        for (int m = 0; m < M; m++) {
          float *row = y + (m0 + m) * a->ldy + n;
          for (int64_t r = 0; r < rows; r++) {
            const float v = to[r * WN_CPU_PACKED_TILE + m] + (bias ? bias[n + r] : 0.0f);
            row[r] = a->accumulate ? row[r] + v : v;
          }
        }
      }
    }
  }
}

static void packed_few_rows(const struct wn_exec *exec, const struct wn_linear *a,
                            const struct wn_cpu_packed_kernels *k) {
  struct wn_cpu_packed_x x;
  plan_x(a, exec->scratch, &x);
  bool halves = false, plain = false;
  for (int p = 0; p < a->packed->count; p++) {
    const wn_gguf_type type = a->packed->part[p].type;
    const bool nibbles = type >= WN_GGUF_Q4_0 && type <= WN_GGUF_Q5_1;
    halves = halves || nibbles;
    plain = plain || (type >= WN_GGUF_Q8_0 && !nibbles);
  }
  if (halves || plain) {
    const int quantizing = a->M * a->K < 16384 ? 1 : exec->threads;
#pragma omp parallel for num_threads(wn_team(exec->ctx, quantizing)) schedule(static)
    for (int64_t m = 0; m < a->M; m++) k->quantize(&x, m, halves, plain);
  }
  /* A row's sum does not depend on where a thread's share begins. */
  const int64_t blocks = (a->N + 15) / 16;
  const int threads = a->M * a->N * a->K < 65536 ? 1 : exec->threads;
#pragma omp parallel for num_threads(wn_team(exec->ctx, threads)) schedule(static, 1)
  for (int t = 0; t < threads; t++) {
    const int64_t n0 = blocks * t / threads * 16, n1 = blocks * (t + 1) / threads * 16;
    packed_share(k, a, &x, n0, n1 < a->N ? n1 : a->N);
  }
}

/* Rows n0.. of w as floats. */
static void make_panel(const struct wn_exec *exec, const struct wn_linear *a, const struct wn_cpu_packed_kernels *k,
                       int64_t n0, int64_t rows, float *panel) {
#pragma omp parallel for num_threads(wn_team(exec->ctx, exec->threads)) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    wn_gguf_type type;
    const char *w = wn_packed_row(a->packed, a->K, n0 + r, &type);
    k->decode(type, w, a->K, panel + r * a->K);
  }
}

/* The map of rows [n, n+rows) alone, from a panel in the scratch. */
static struct wn_linear panel_map(const struct wn_exec *exec, const struct wn_linear *a,
                                  const struct wn_cpu_packed_kernels *k, int64_t n, int64_t rows) {
  make_panel(exec, a, k, n, rows, exec->scratch);
  struct wn_linear part = *a;
  part.N = rows;
  part.w = exec->scratch;
  part.packed = NULL;
  return part;
}

wn_status wn_cpu_packed_forward(const struct wn_exec *exec, const struct wn_linear *a, bool wide) {
  const struct wn_cpu_packed_kernels *k = packed_kernels_for(wide);
  if (a->M == 0) return WN_OK;
  if (a->rows_apart || a->M <= WN_CPU_PACKED_ROWS) {
    packed_few_rows(exec, a, k);
    return WN_OK;
  }
  const int64_t most = panel_rows(a);
  for (int64_t n = 0; n < a->N; n += most) {
    const int64_t rows = a->N - n < most ? a->N - n : most;
    struct wn_linear part = panel_map(exec, a, k, n, rows);
    part.b = a->b ? (const float *)a->b + n : NULL;
    part.y = (float *)a->y + n;
    WN_TRY(wn_cpu_linear_forward(exec, &part));
  }
  return WN_OK;
}

wn_status wn_cpu_packed_backward(const struct wn_exec *exec, const struct wn_linear *a, bool wide) {
  const struct wn_cpu_packed_kernels *k = packed_kernels_for(wide);
  const int64_t most = panel_rows(a);
  for (int64_t n = 0; n < a->N && a->M > 0; n += most) {
    const int64_t rows = a->N - n < most ? a->N - n : most;
    struct wn_linear part = panel_map(exec, a, k, n, rows);
    part.dy = (const float *)a->dy + n;
    part.accumulate_dx = a->accumulate_dx || n > 0;
    part.db = NULL;
    WN_TRY(wn_cpu_linear_backward(exec, &part));
  }
  return WN_OK;
}
