/* Strips, the cpu backend's own layout of quantised weights, give the same bits as the file's layout: for every type,
 * awkward shapes, parts that are not multiples of a strip, few rows and prompts, any number of threads. test_packed.c
 * compares the file's layout with the reference. */
#include "support.h"

#include "backends/backends.h"
#include "backends/cpu/cpu.h"
#include "base/alloc.h"
#include "base/context.h"
#include "base/rng.h"
#include "packed_weights.h"

enum { MOST_ROWS = 70, GAP = 3 };

static void *strips_room(size_t bytes) {
  void *p = aligned_alloc(WN_ALIGN, (bytes + 2 * WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN);
  assert_non_null(p);
  return p;
}

struct product {
  int64_t N, K;
  struct wn_packed *packed;
  const float *x, *b; /* [MOST_ROWS,K+GAP], [N] or NULL */
  bool accumulate, apart;
};

static void multiply(wn_context *ctx, const struct wn_backend *cpu, const struct product *p, int64_t M, int threads,
                     float *y) {
  const int64_t ldy = p->N + GAP;
  for (int64_t i = 0; i < M * ldy; i++) y[i] = (float)(i % 23) - 11;
  const struct wn_linear a = {.M = M,
                              .N = p->N,
                              .K = p->K,
                              .rows_apart = p->apart,
                              .x = p->x,
                              .ldx = p->K + GAP,
                              .packed = p->packed,
                              .b = p->b,
                              .y = y,
                              .ldy = ldy,
                              .accumulate = p->accumulate};
  struct wn_exec e = {.ctx = ctx, .backend = cpu, .threads = threads, .dtype = WN_F32};
  e.scratch_bytes = wn_op_linear_scratch(&e, &a, false);
  void *scratch = e.scratch_bytes ? strips_room(e.scratch_bytes) : NULL;
  if (scratch) memset(scratch, 0x7f, e.scratch_bytes); /* need not be cleared: a sum of it overflows */
  e.scratch = scratch;
  assert_ok(ctx, wn_op_linear_forward(&e, &a));
  free(scratch);
}

static void strips_fill(struct packed_weights *w, int64_t K, int fill) {
  for (int p = 0; p < w->packed.count; p++) {
    const struct wn_packed_part *part = &w->packed.part[p];
    uint8_t *at = (uint8_t *)(uintptr_t)part->data;
    const size_t bytes = wn_gguf_block_bytes(part->type), row = wn_packed_row_bytes(part->type, K);
    for (uint64_t i = 0; i < (uint64_t)part->rows * row / bytes; i++, at += bytes) {
      memset(at, fill, bytes);
      packed_scales(part->type, at, 7, i);
    }
  }
}

/* Types in turn, in three parts of 16 n + something rows, some smaller than a strip. `fill`: the byte of which all
 * weights consist, which with equal x gives the largest possible products; -1: random weights. */
static void check_strips(wn_context *ctx, const struct wn_backend *cpu, int type, int64_t N, int64_t K, int parts,
                         int fill) {
  const wn_gguf_type types[3] = {(wn_gguf_type)type, WN_GGUF_Q8_0, (wn_gguf_type)type};
  struct packed_weights w;
  packed_weights_make(&w, N, K, parts, types, (uint64_t)(type + N));
  if (fill >= 0) strips_fill(&w, K, fill);
  struct wn_packed with = w.packed;
  void *strips[3] = {NULL};
  const struct wn_exec e = {.ctx = ctx, .backend = cpu, .threads = 2, .dtype = WN_F32};
  for (int p = 0; p < parts; p++) {
    const size_t bytes = cpu->strips_bytes(types[p], with.part[p].rows, K);
    assert_true(bytes > 0);
    strips[p] = strips_room(bytes + WN_ALIGN);
    memset(strips[p], 0xa5, bytes + WN_ALIGN);
    cpu->strips_make(&e, &with.part[p], K, strips[p]);
    for (int i = 0; i < WN_ALIGN; i++) assert_int_equal(((uint8_t *)strips[p])[bytes + (size_t)i], 0xa5);
    with.part[p].strips = strips[p];
  }
  float *x = strips_room((size_t)(MOST_ROWS * (K + GAP)) * sizeof *x), *b = strips_room((size_t)N * sizeof *b), *y[2];
  for (int64_t i = 0; i < MOST_ROWS * (K + GAP); i++) x[i] = (float)wn_random_normal(3, WN_STREAM_TEST, 1, (uint64_t)i);
  for (int64_t i = 0; i < N; i++) b[i] = (float)wn_random_normal(3, WN_STREAM_TEST, 2, (uint64_t)i);
  if (fill >= 0)
    for (int64_t i = 0; i < MOST_ROWS * (K + GAP); i++) x[i] = i / (K + GAP) % 2 ? 1.0f : -1.0f;
  for (int64_t k = 0; k < K; k++) x[k + K + GAP] = 0; /* a row of zeros has no scale */
  for (int i = 0; i < 2; i++) y[i] = strips_room((size_t)(MOST_ROWS * (N + GAP)) * sizeof *y[i]);
  static const int64_t rows[] = {1, 2, 3, 4, 5, 8, 9, 12, 13, MOST_ROWS};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct product p = {.N = N, .K = K, .x = x, .b = i & 1 ? b : NULL, .accumulate = i & 2, .apart = i & 4};
    p.packed = &w.packed;
    multiply(ctx, cpu, &p, rows[i], 1, y[0]);
    p.packed = &with;
    multiply(ctx, cpu, &p, rows[i], 1 + (int)i % 3, y[1]);
    const size_t bytes = (size_t)(rows[i] * (N + GAP)) * sizeof(float);
    if (memcmp(y[0], y[1], bytes) != 0)
      for (int64_t k = 0; k < rows[i] * (N + GAP); k++)
        if (memcmp(y[0] + k, y[1] + k, sizeof(float)) != 0)
          fail_msg("%s, N %lld K %lld, %d parts, %lld rows: y[%lld,%lld] is %.9g with strips, %.9g without",
                   wn_gguf_type_name((wn_gguf_type)type), (long long)N, (long long)K, parts, (long long)rows[i],
                   (long long)(k / (N + GAP)), (long long)(k % (N + GAP)), (double)y[1][k], (double)y[0][k]);
  }
  for (int i = 0; i < 2; i++) free(y[i]);
  for (int p = 0; p < parts; p++) free(strips[p]);
  free(x), free(b);
  packed_weights_clear(&w);
}

static void check_types(wn_context *ctx, const struct wn_backend *cpu) {
  for (int type = WN_GGUF_Q8_0; type < WN_GGUF_TYPE_COUNT; type++) {
    const bool k = type >= WN_GGUF_Q4_K;
    check_strips(ctx, cpu, type, 1, k ? 256 : 32, 1, -1);
    check_strips(ctx, cpu, type, 33, k ? 256 : 96, 1, -1);
    check_strips(ctx, cpu, type, 67, k ? 512 : 608, 2, -1);
    check_strips(ctx, cpu, type, 40, k ? 768 : 576, 3, -1);
    check_strips(ctx, cpu, type, 16, k ? 256 : 128, 1, -1);
    check_strips(ctx, cpu, type, 40, 256, 3, 0xff);
    check_strips(ctx, cpu, type, 40, 256, 3, 0x80); /* -128 in Q8_0 */
  }
  for (int type = WN_GGUF_F32; type < WN_GGUF_Q8_0; type++)
    assert_int_equal(cpu->strips_bytes((wn_gguf_type)type, 16, 256), 0); /* used in the file's layout */
}

/* Every instruction set of this processor that has strips. */
static void test_same_bits(void **state) {
  (void)state;
  wn_context *ctx = NULL;
  assert_int_equal(wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 3}, &ctx),
                   WN_OK);
  int checked = 0;
  for (int isa = WN_ISA_AVX2; isa <= (int)ctx->isa; isa++) {
    const struct wn_backend *cpu = wn_backend_cpu((enum wn_isa)isa);
    if (!cpu->strips_bytes || !cpu->strips_bytes(WN_GGUF_Q8_0, 16, 256)) continue; /* AVX-512 without VNNI, or ARM */
    check_types(ctx, cpu);
    checked++;
  }
  wn_context_destroy(ctx);
  if (!checked) skip();
}

/* Prompts with tiles (AMX) have the same bits as without: for rows of x that are not multiples of a tile, blocks in
 * fewer than four classes with any number in each, and K beyond a panel's share of the cache. */
static void check_tiles(wn_context *ctx, const struct wn_backend *cpu, int type, int64_t N, int64_t K, bool strips) {
  const wn_gguf_type types[1] = {(wn_gguf_type)type};
  struct packed_weights w;
  packed_weights_make(&w, N, K, 1, types, (uint64_t)(type + K));
  const struct wn_exec e = {.ctx = ctx, .backend = cpu, .threads = 2, .dtype = WN_F32};
  void *room = strips_room(cpu->strips_bytes(types[0], N, K));
  if (strips) {
    cpu->strips_make(&e, &w.packed.part[0], K, room);
    w.packed.part[0].strips = room;
  }
  float *x = strips_room((size_t)(MOST_ROWS * (K + GAP)) * sizeof *x), *b = strips_room((size_t)N * sizeof *b), *y[2];
  for (int64_t i = 0; i < MOST_ROWS * (K + GAP); i++)
    x[i] = (float)wn_random_normal(5, WN_STREAM_TEST, 1, (uint64_t)i) * (i % 96 < 32 ? 1e3f : 1e-3f);
  for (int64_t i = 0; i < N; i++) b[i] = (float)wn_random_normal(5, WN_STREAM_TEST, 2, (uint64_t)i);
  for (int i = 0; i < 2; i++) y[i] = strips_room((size_t)(MOST_ROWS * (N + GAP)) * sizeof *y[i]);
  static const int64_t rows[] = {13, 16, 17, 31, 32, 48, MOST_ROWS};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct product p = {
        .N = N, .K = K, .packed = &w.packed, .x = x, .b = i & 1 ? b : NULL, .accumulate = i & 2, .apart = i & 4};
    multiply(ctx, cpu, &p, rows[i], 1 + (int)i % 3, y[0]);
    wn_cpu_deny_amx(true);
    multiply(ctx, cpu, &p, rows[i], 1, y[1]);
    wn_cpu_deny_amx(false);
    if (memcmp(y[0], y[1], (size_t)(rows[i] * (N + GAP)) * sizeof(float)) != 0)
      fail_msg("%s, N %lld K %lld, %lld rows: other bits in AMX's tiles", wn_gguf_type_name(types[0]), (long long)N,
               (long long)K, (long long)rows[i]);
  }
  for (int i = 0; i < 2; i++) free(y[i]);
  free(room), free(x), free(b);
  packed_weights_clear(&w);
}

static void test_amx_same_bits(void **state) {
  (void)state;
  if (!wn_cpu_has_amx_int8()) skip();
  wn_context *ctx = NULL;
  assert_int_equal(wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 3}, &ctx),
                   WN_OK);
  const struct wn_backend *cpu = NULL;
  assert_ok(ctx, wn_backend_of(ctx, &cpu));
  for (int type = WN_GGUF_Q8_0; type < WN_GGUF_TYPE_COUNT; type++) {
    const bool k = type >= WN_GGUF_Q4_K;
    for (int64_t blocks = 1; blocks <= 10; blocks++) check_tiles(ctx, cpu, type, 35, (k ? 256 : 32) * blocks, true);
    check_tiles(ctx, cpu, type, 21, 1280, false);
    check_tiles(ctx, cpu, type, 48, 9216, true);
  }
  wn_context_destroy(ctx);
}

/* Without the instructions, and on the reference, there is no other layout. */
static void test_without(void **state) {
  (void)state;
  assert_null(wn_backend_ref()->strips_bytes);
  assert_null(wn_backend_cpu(WN_ISA_REF)->strips_bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits), cmocka_unit_test(test_amx_same_bits),
                                     cmocka_unit_test(test_without)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
