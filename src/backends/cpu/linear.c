/* y = x w^T + b and its gradients (row-major), by oneDNN's sgemm or our own product (product.h). Our own is used where
 * it is faster, and in a build without oneDNN. 2MNK operations each. */
#include <stdatomic.h>
#include <string.h>
#include "backends/cpu/cpu.h"
#include "backends/cpu/product.h"
#include "base/alloc.h"

/* Smaller products take less time than waking the other threads. */
#define LINEAR_ALONE 65536

/* With AVX2 our own product is 10 to 15% faster on two threads, except for few rows and many weights, where packing the
 * weights costs too much. With AVX-512 it is not faster (docs/results/training-speed.md). */
enum { OWN_ROWS = 128, OWN_ANYWAY = 65536 };
#if WN_HAVE_ONEDNN
#include <dnnl.h>
#include <omp.h>
static bool product_is_own(const struct wn_exec *exec, bool ta, int64_t M, int64_t N, int64_t K) {
  return wn_cpu_product_ops(exec->backend) == &wn_product_ops_avx2 && (ta || M >= OWN_ROWS || N * K <= OWN_ANYWAY);
}
#else
static bool product_is_own(const struct wn_exec *exec, bool ta, int64_t M, int64_t N, int64_t K) {
  (void)exec, (void)ta, (void)M, (void)N, (void)K;
  return true;
}
#endif

/* room: scratch of our own product; NULL: oneDNN multiplies. */
static int product_one(const struct wn_exec *exec, const struct wn_sgemm *x, void *room) {
  if (room) {
    wn_cpu_product_ops(exec->backend)->sgemm(x, room);
    return 0;
  }
#if WN_HAVE_ONEDNN
  return (int)dnnl_sgemm(x->ta ? 'T' : 'N', x->tb ? 'T' : 'N', x->M, x->N, x->K, 1.0f, x->a, x->lda, x->b, x->ldb,
                         x->add ? 1.0f : 0.0f, x->c, x->ldc);
#else
  return 0;
#endif
}

/* Bytes of scratch for a part; 0: oneDNN has its own. */
static size_t product_room(const struct wn_exec *exec, bool ta, int64_t M, int64_t N, int64_t K) {
  const size_t bytes = product_is_own(exec, ta, M, N, K) ? wn_cpu_product_ops(exec->backend)->room(M, N, K) : 0;
  return (bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
}

static size_t most(size_t a, size_t b) {
  return a > b ? a : b;
}
/* Suffices for fewer rows and columns as well: with fewer columns a product may switch from oneDNN to our own. */
static size_t product_scratch(const struct wn_exec *exec, bool ta, int64_t M, int64_t N, int64_t K) {
  const size_t room = product_room(exec, ta, M, N, K);
  const int64_t fewer = K > 0 ? OWN_ANYWAY / K : 0;
  return room > 0 || fewer >= N ? room : product_room(exec, ta, M, fewer, K);
}

size_t wn_cpu_linear_scratch(const struct wn_exec *exec, const struct wn_linear *a, bool backward) {
  const size_t dx = backward && a->dx ? product_scratch(exec, false, a->M, a->K, a->N) : 0;
  const size_t dw = backward && a->dw ? product_scratch(exec, true, a->N, a->K, a->M) : 0;
  const size_t y = backward ? 0 : product_scratch(exec, false, a->M, a->N, a->K);
  return most(y, most(dx, dw)) * (size_t)exec->threads;
}

/* Part t of `parts`: a range of columns if c is wide, of rows if it is tall, in whole blocks of 16. */
static int product_part(const struct wn_exec *exec, const struct wn_sgemm *whole, int64_t t, int64_t parts) {
  struct wn_sgemm x = *whole;
  const bool columns = x.N >= x.M;
  const int64_t n = columns ? x.N : x.M, blocks = (n + 15) / 16;
  const int64_t f = blocks * t / parts * 16, end = blocks * (t + 1) / parts * 16, l = end < n ? end : n;
  if (f >= l) return 0;
  if (columns) {
    x.N = l - f;
    x.b += x.tb ? f * x.ldb : f;
    x.c += f;
  } else {
    x.M = l - f;
    x.a += x.ta ? f : f * x.lda;
    x.c += f * x.ldc;
  }
  const size_t room = product_room(exec, whole->ta, whole->M, whole->N, whole->K);
  return product_one(exec, &x, room > 0 ? (char *)exec->scratch + (size_t)t * room : NULL);
}

/* Sets the thread count of oneDNN's next product on the calling thread; returns the old one. oneDNN's OpenMP library
 * does not know our parallel regions. */
static int linear_onednn_threads(int threads) {
#if WN_HAVE_ONEDNN
  const int before = omp_get_max_threads();
  if (before != threads) omp_set_num_threads(threads);
  return before;
#else
  return threads;
#endif
}

struct linear_parts {
  const struct wn_exec *exec;
  const struct wn_sgemm *x;
  int parts;
  atomic_int failed;
};
static void linear_product_part(void *args, int64_t t) {
  struct linear_parts *l = args;
  const int status = product_part(l->exec, l->x, t, l->parts);
  if (status != 0) l->failed = status;
}

/* Each part runs oneDNN with one thread, so the result is that of exec->threads parts, however many threads are
 * working. For few rows this is up to twice as fast as oneDNN's own threading; for many rows it is as fast. */
static wn_status linear_product(const struct wn_exec *exec, const struct wn_sgemm *x) {
  struct linear_parts l = {.exec = exec, .x = x, .parts = x->M * x->N * x->K < LINEAR_ALONE ? 1 : exec->threads};
  const int before = linear_onednn_threads(1);
  wn_parallel_for(l.parts, l.parts, linear_product_part, &l);
  linear_onednn_threads(before);
  const int failed = l.failed;
  if (failed == 0) return WN_OK;
#if WN_HAVE_ONEDNN
  if (failed == (int)dnnl_out_of_memory)
    return wn_fail(exec->ctx, WN_ERR_MEMORY, "out of memory: oneDNN's copies of a product's operands");
#endif
  return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED,
                 "linear: oneDNN's sgemm refused a product of %lld x %lld x %lld (status %d)", (long long)x->M,
                 (long long)x->N, (long long)x->K, failed);
}

static void linear_bias_row(void *args, int64_t m) {
  const struct wn_linear *a = args;
  const float *b = a->b; /* [N] */
  float *row = (float *)a->y + m * a->ldy;
  if (a->accumulate)
    for (int64_t n = 0; n < a->N; n++) row[n] += b[n];
  else
    memcpy(row, b, (size_t)a->N * sizeof *b);
}

wn_status wn_cpu_linear_forward(const struct wn_exec *exec, const struct wn_linear *a) {
  if (a->M == 0) return WN_OK;
  if (a->b) wn_parallel_for(exec->threads, a->M, linear_bias_row, a); /* the product adds to it */
  return linear_product(exec, &(struct wn_sgemm){.ta = false,
                                                 .tb = true,
                                                 .M = a->M,
                                                 .N = a->N,
                                                 .K = a->K,
                                                 .a = a->x,
                                                 .lda = a->ldx,
                                                 .b = a->w,
                                                 .ldb = a->K,
                                                 .add = a->accumulate || a->b,
                                                 .c = a->y,
                                                 .ldc = a->ldy});
}

/* Each thread has its own columns: the order of the sums does not depend on the threads. */
static void linear_bias_gradient(void *args, int64_t from, int64_t to) {
  const struct wn_linear *a = args;
  const float *dy = a->dy; /* [M,N] */
  float *db = a->db;       /* [N] */
  for (int64_t n0 = from; n0 < to; n0 += 64) {
    double sum[64] = {0};
    const int64_t count = a->N - n0 < 64 ? a->N - n0 : 64;
    for (int64_t m = 0; m < a->M; m++)
      for (int64_t n = 0; n < count; n++) sum[n] += (double)dy[m * a->lddy + n0 + n];
    for (int64_t n = 0; n < count; n++) db[n0 + n] = (float)((double)db[n0 + n] + sum[n]);
  }
}

wn_status wn_cpu_linear_backward(const struct wn_exec *exec, const struct wn_linear *a) {
  const float *dy = a->dy; /* [M,N] */
  if (a->M == 0) return WN_OK;
  if (a->dx)
    WN_TRY(linear_product(exec, &(struct wn_sgemm){.ta = false,
                                                   .tb = false,
                                                   .M = a->M,
                                                   .N = a->K,
                                                   .K = a->N,
                                                   .a = dy,
                                                   .lda = a->lddy,
                                                   .b = a->w,
                                                   .ldb = a->K,
                                                   .add = a->accumulate_dx,
                                                   .c = a->dx,
                                                   .ldc = a->lddx}));
  if (a->dw)
    WN_TRY(linear_product(exec, &(struct wn_sgemm){.ta = true,
                                                   .tb = false,
                                                   .M = a->N,
                                                   .N = a->K,
                                                   .K = a->M,
                                                   .a = dy,
                                                   .lda = a->lddy,
                                                   .b = a->x,
                                                   .ldb = a->ldx,
                                                   .add = !a->dw_fresh,
                                                   .c = a->dw,
                                                   .ldc = a->K}));
  if (a->db) wn_parallel_blocks(exec->threads, a->N, 64, linear_bias_gradient, a);
  return WN_OK;
}
