/* Products of bf16 arrays, summed in float, by oneDNN's matmul; its AVX512_BF16 kernels multiply twice as many numbers
 * per cycle as those for floats. 2MNK operations. A primitive is created for each call; oneDNN caches its parts, so
 * this takes some microseconds. Works with the C interfaces of oneDNN 2 and 3, which differ in descriptors. */
#include "backends/cpu/cpu.h"

#if WN_HAVE_ONEDNN
#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>

#if DNNL_VERSION_MAJOR >= 3
#define DESC(md) (md)
#else
#define DESC(md) (&(md))
#endif

/* Smaller products take less time than waking the other threads. */
#define PRODUCT_ALONE 131072

static dnnl_engine_t engine;
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;

static void engine_make(void) {
  if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) engine = NULL;
}

bool wn_cpu_has_bf16(void) {
  return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)dnnl_cpu_isa_avx512_core_bf16) ==
         (unsigned)dnnl_cpu_isa_avx512_core_bf16;
}

static dnnl_status_t product_desc(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, dnnl_data_type_t type,
                                  int64_t by_row, int64_t by_col) {
  const dnnl_dims_t dims = {rows, cols}, strides = {by_row, by_col};
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_strides(md, 2, dims, type, strides);
#else
  return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
#endif
}

enum { SRC, WEIGHTS, BIAS, DST, PARTS };

/* The oneDNN objects of one call; product_clear frees them, however many were created. */
struct product_call {
  dnnl_memory_desc_t desc[PARTS];
  dnnl_primitive_attr_t attr;
  dnnl_post_ops_t post;
  dnnl_primitive_desc_t pd;
  dnnl_primitive_t primitive;
  dnnl_memory_t memory[PARTS];
  dnnl_stream_t stream;
};

static void product_clear(struct product_call *c) {
  for (int i = 0; i < PARTS; i++) {
    if (c->memory[i]) dnnl_memory_destroy(c->memory[i]);
#if DNNL_VERSION_MAJOR >= 3
    if (c->desc[i]) dnnl_memory_desc_destroy(c->desc[i]);
#endif
  }
  if (c->stream) dnnl_stream_destroy(c->stream);
  if (c->primitive) dnnl_primitive_destroy(c->primitive);
  if (c->pd) dnnl_primitive_desc_destroy(c->pd);
  if (c->post) dnnl_post_ops_destroy(c->post);
  if (c->attr) dnnl_primitive_attr_destroy(c->attr);
}

#define TRY_DNNL(call)                                                                                                 \
  do {                                                                                                                 \
    const dnnl_status_t status_ = (call);                                                                              \
    if (status_ != dnnl_success) return status_;                                                                       \
  } while (0)

static dnnl_status_t product_describe(const struct wn_cpu_product *x, struct product_call *c) {
  const dnnl_data_type_t type = x->c_type == WN_BF16 ? dnnl_bf16 : dnnl_f32;
  TRY_DNNL(product_desc(&c->desc[SRC], x->M, x->K, dnnl_bf16, x->ta ? 1 : x->lda, x->ta ? x->lda : 1));
  TRY_DNNL(product_desc(&c->desc[WEIGHTS], x->K, x->N, dnnl_bf16, x->tb ? 1 : x->ldb, x->tb ? x->ldb : 1));
  TRY_DNNL(product_desc(&c->desc[DST], x->M, x->N, type, x->ldc, 1));
  if (x->bias) TRY_DNNL(product_desc(&c->desc[BIAS], 1, x->N, dnnl_f32, x->N, 1));
  TRY_DNNL(dnnl_primitive_attr_create(&c->attr));
  if (x->add) {
    TRY_DNNL(dnnl_post_ops_create(&c->post));
    TRY_DNNL(dnnl_post_ops_append_sum(c->post, 1.0f
#if DNNL_VERSION_MAJOR >= 3
                                      ,
                                      0, dnnl_data_type_undef
#endif
                                      ));
    TRY_DNNL(dnnl_primitive_attr_set_post_ops(c->attr, c->post));
  }
#if DNNL_VERSION_MAJOR >= 3
  TRY_DNNL(dnnl_matmul_primitive_desc_create(&c->pd, engine, c->desc[SRC], c->desc[WEIGHTS],
                                             x->bias ? c->desc[BIAS] : NULL, c->desc[DST], c->attr));
#else
  dnnl_matmul_desc_t desc;
  TRY_DNNL(
      dnnl_matmul_desc_init(&desc, &c->desc[SRC], &c->desc[WEIGHTS], x->bias ? &c->desc[BIAS] : NULL, &c->desc[DST]));
  TRY_DNNL(dnnl_primitive_desc_create(&c->pd, &desc, c->attr, engine, NULL));
#endif
  return dnnl_primitive_create(&c->primitive, c->pd);
}

static dnnl_status_t product_execute(const struct wn_cpu_product *x, struct product_call *c) {
  static const int names[PARTS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST};
  void *const data[PARTS] = {(void *)(uintptr_t)x->a, (void *)(uintptr_t)x->b, (void *)(uintptr_t)x->bias, x->c};
  dnnl_exec_arg_t args[PARTS];
  int n = 0;
  TRY_DNNL(product_describe(x, c));
  for (int i = 0; i < PARTS; i++) {
    if (!data[i]) continue;
    TRY_DNNL(dnnl_memory_create(&c->memory[i], DESC(c->desc[i]), engine, data[i]));
    args[n++] = (dnnl_exec_arg_t){names[i], c->memory[i]};
  }
  TRY_DNNL(dnnl_stream_create(&c->stream, engine, dnnl_stream_default_flags));
  TRY_DNNL(dnnl_primitive_execute(c->primitive, c->stream, n, args));
  return dnnl_stream_wait(c->stream);
}

/* Part t of `parts`: a range of columns if c is wide, of rows if it is tall, in whole blocks of 16. */
static dnnl_status_t product_bf16_part(const struct wn_cpu_product *whole, int64_t t, int64_t parts) {
  struct wn_cpu_product x = *whole;
  struct product_call call = {0};
  const bool columns = x.N >= x.M;
  const int64_t n = columns ? x.N : x.M, blocks = (n + 15) / 16;
  const int64_t f = blocks * t / parts * 16, end = blocks * (t + 1) / parts * 16, l = end < n ? end : n;
  if (f >= l) return dnnl_success;
  if (columns) {
    x.N = l - f;
    x.b += x.tb ? f * x.ldb : f;
    if (x.bias) x.bias += f;
  } else {
    x.M = l - f;
    x.a += x.ta ? f : f * x.lda;
  }
  x.c = wn_element(x.c, columns ? f : f * x.ldc, x.c_type);
  const dnnl_status_t status = product_execute(&x, &call);
  product_clear(&call);
  return status;
}

struct product_parts {
  const struct wn_cpu_product *x;
  int parts;
  atomic_int failed;
};
static void product_bf16_task(void *args, int64_t t) {
  struct product_parts *p = args;
  const dnnl_status_t status = product_bf16_part(p->x, t, p->parts);
  if (status != dnnl_success) p->failed = (int)status;
}

/* Each part runs oneDNN with one thread: the result is that of exec->threads parts, however many threads are
 * working. */
wn_status wn_cpu_product_bf16(const struct wn_exec *exec, const struct wn_cpu_product *x) {
  struct product_parts p = {.x = x, .parts = x->M * x->N * x->K < PRODUCT_ALONE ? 1 : exec->threads};
  const int before = omp_get_max_threads();
  pthread_once(&engine_once, engine_make);
  if (!engine) return wn_fail(exec->ctx, WN_ERR_MEMORY, "linear: oneDNN has no engine for this processor");
  if (before != 1) omp_set_num_threads(1); /* a single thread has no parallel region around oneDNN */
  wn_parallel_for(p.parts, p.parts, product_bf16_task, &p);
  if (before != 1) omp_set_num_threads(before);
  const int failed = p.failed;
  if (failed == dnnl_success) return WN_OK;
  return wn_fail(exec->ctx, failed == dnnl_out_of_memory ? WN_ERR_MEMORY : WN_ERR_UNSUPPORTED,
                 "linear: oneDNN's matmul refused a bf16 product of %lld x %lld x %lld (status %d)", (long long)x->M,
                 (long long)x->N, (long long)x->K, failed);
}

#else /* without AVX512_BF16, rows and weights are rounded and multiplied as floats */

bool wn_cpu_has_bf16(void) {
  return false;
}
wn_status wn_cpu_product_bf16(const struct wn_exec *exec, const struct wn_cpu_product *x) {
  (void)x;
  return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "linear: products of bf16 need oneDNN, which this build is without");
}

#endif
