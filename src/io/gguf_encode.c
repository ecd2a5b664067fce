/* Floats to the storage types of GGUF:
 *   F16, BF16   rounded to nearest, ties to even
 *   the others  gguf_fit.c
 * Blocks are divided among the context's threads; the bits of a block depend only on its own weights. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/context.h"
#include "base/misuse.h"
#include "base/parallel.h"
#include "io/gguf_fit.h"
#include "io/gguf_types.h"
#include "tensor/bf16.h"
#include "tensor/f16.h"
#include "winnow/gguf.h"

static bool encode_f32(const float *x, uint8_t *out) {
  memcpy(out, x, sizeof *x);
  return true;
}

static bool encode_f16(const float *x, uint8_t *out) {
  uint16_t half;
  const bool fits = wn_gguf_half(*x, &half);
  memcpy(out, &half, sizeof half);
  return fits;
}

static bool encode_bf16(const float *x, uint8_t *out) {
  const uint16_t half = wn_bf16_round(*x);
  memcpy(out, &half, sizeof half);
  return (half & 0x7fff) != 0x7f80 || isinf(*x);
}

/* Byte offset of the first half float in a block. */
static size_t scale_place(wn_gguf_type type) {
  return type == WN_GGUF_Q6_K ? 208 : 0;
}

static bool block_of_nan(wn_gguf_type type, uint8_t *out) {
  static const uint16_t nan_half = 0x7e00;
  memset(out, 0, wn_gguf_block_bytes(type));
  if (type == WN_GGUF_Q6_K) memset(out + 192, 1, 16); /* the scales */
  memcpy(out + scale_place(type), &nan_half, sizeof nan_half);
  return true;
}

/* A block that holds NaN or infinity becomes NaN as a whole, so that the fault stays visible. */
static bool encode_block(wn_gguf_type type, wn_gguf_encode_block_fn encode, const float *x, uint8_t *out) {
  float fault = 0; /* a sum of zeros; NaN if any number is not finite */
  for (int64_t i = 0; i < wn_gguf_block_weights(type); i++) fault += x[i] - x[i];
  return fault == 0 ? encode(x, out) : block_of_nan(type, out);
}

void wn_gguf_store(const wn_context *ctx, wn_gguf_type type, const float *x, int64_t n, void *out) {
  if (type == WN_GGUF_F16) {
    wn_f16_from_f32(n, x, out);
    return;
  }
  const int64_t weights = wn_gguf_block_weights(type);
  const wn_gguf_encode_block_fn encode = wn_gguf_block_encoder(ctx, type);
  uint8_t *to = out;
  for (int64_t i = 0; i < n; i += weights, to += wn_gguf_block_bytes(type))
    if (!encode_block(type, encode, x + i, to)) (void)block_of_nan(type, to);
}

bool wn_gguf_can_encode(wn_gguf_type type) {
  WN_CHECK_OR(false, WN_ENUM(type, WN_GGUF_TYPE_COUNT));
  return true;
}

struct encode_blocks {
  wn_gguf_type type;
  wn_gguf_encode_block_fn encode;
  const float *x;
  uint8_t *out;
  atomic_bool unfit;
};
static void encode_one(void *args, int64_t i) {
  struct encode_blocks *a = args;
  const int64_t weights = wn_gguf_block_weights(a->type);
  const float *from = a->x + i * weights;
  uint8_t *to = a->out + (size_t)i * wn_gguf_block_bytes(a->type);
  if (!(weights > 1 ? encode_block(a->type, a->encode, from, to) : a->encode(from, to))) a->unfit = true;
}

wn_status wn_gguf_encode(wn_context *ctx, wn_gguf_type type, const float *x, int64_t n, void *out) {
  WN_CHECK_WORK(WN_ENUM(type, WN_GGUF_TYPE_COUNT), WN_ARRAY(x, n), WN_ARRAY(out, n));
  static const wn_gguf_encode_block_fn plain[WN_GGUF_TYPE_COUNT] = {
      [WN_GGUF_F32] = encode_f32, [WN_GGUF_F16] = encode_f16, [WN_GGUF_BF16] = encode_bf16};
  const int64_t weights = wn_gguf_block_weights(type);
  const wn_gguf_encode_block_fn fitted = wn_gguf_block_encoder(ctx, type);
  struct encode_blocks a = {.type = type, .encode = fitted ? fitted : plain[type], .x = x, .out = out};
  if (n < 0 || n % weights != 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%lld weights are no whole blocks of %s", (long long)n,
                   wn_gguf_type_name(type));
  wn_parallel_for(n < 1 << 14 ? 1 : ctx->threads, n / weights, encode_one, &a);
  if (!a.unfit) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT, "a weight is too large for %s", wn_gguf_type_name(type));
}
