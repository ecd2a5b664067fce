/* A random quantised weight matrix, and the floats that it stands for. */
#ifndef WN_TESTS_PACKED_WEIGHTS_H
#define WN_TESTS_PACKED_WEIGHTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "io/gguf_types.h"
#include "ops/packed.h"

struct packed_weights {
  struct wn_packed packed;
  float *dense; /* [N,K] */
  uint8_t *blocks;
};

/* Any bits will do, except in scales: half floats (or bf16, floats) of either sign, around `scale`. */
static inline void packed_scale(uint8_t *p, uint64_t seed, uint64_t i) {
  /* 2^-7 .. 2^-5: biased exponents 8 to 9 */
  const uint16_t h = (uint16_t)((wn_random_below(seed, WN_STREAM_TEST, 91, i, 2) + 8) << 10 |
                                wn_random_below(seed, WN_STREAM_TEST, 92, i, 1024) |
                                wn_random_below(seed, WN_STREAM_TEST, 93, i, 2) << 15);
  memcpy(p, &h, sizeof h);
}

/* The scales of a block. Types without blocks: the weight itself. */
static inline void packed_scales(wn_gguf_type type, uint8_t *p, uint64_t seed, uint64_t i) {
  const float value = (float)wn_random_normal(seed, WN_STREAM_TEST, 95, i);
  uint32_t word;
  memcpy(&word, &value, sizeof word);
  switch (type) {
  case WN_GGUF_F32:
    memcpy(p, &value, sizeof value);
    break;
  case WN_GGUF_BF16:
    p[0] = (uint8_t)(word >> 16), p[1] = (uint8_t)(word >> 24);
    break;
  case WN_GGUF_Q6_K:
    packed_scale(p + 208, seed, i);
    break;
  case WN_GGUF_Q4_1:
  case WN_GGUF_Q5_1:
  case WN_GGUF_Q4_K:
  case WN_GGUF_Q5_K:
    packed_scale(p, seed, 2 * i);
    packed_scale(p + 2, seed, 2 * i + 1);
    break;
  default: /* also F16 */
    packed_scale(p, seed, i);
  }
}

static inline void packed_block(wn_gguf_type type, uint8_t *p, uint64_t seed, uint64_t i) {
  const size_t bytes = wn_gguf_block_bytes(type);
  for (size_t k = 0; k < bytes; k++) p[k] = (uint8_t)wn_random_below(seed, WN_STREAM_TEST, 94, i * 256 + k, 256);
  packed_scales(type, p, seed, i);
}

/* N rows of K weights, in `parts` runs of rows with the given types. */
static inline void packed_weights_make(struct packed_weights *w, int64_t N, int64_t K, int parts,
                                       const wn_gguf_type *types, uint64_t seed) {
  memset(w, 0, sizeof *w);
  size_t bytes = 0;
  w->packed.count = parts;
  for (int i = 0; i < parts; i++) {
    w->packed.part[i].type = types[i];
    w->packed.part[i].rows = N * (i + 1) / parts - N * i / parts;
    bytes += (size_t)w->packed.part[i].rows * wn_packed_row_bytes(types[i], K);
  }
  w->blocks = malloc(bytes + 1);
  w->dense = malloc((size_t)(N * K) * sizeof(float));
  assert_non_null(w->blocks);
  assert_non_null(w->dense);
  uint8_t *at = w->blocks + 1; /* an odd address: alignment must not be needed */
  float *dense = w->dense;
  for (int i = 0; i < parts; i++) {
    const struct wn_packed_part *part = &w->packed.part[i];
    const int64_t blocks = part->rows * (K / wn_gguf_block_weights(types[i]));
    w->packed.part[i].data = at;
    for (int64_t b = 0; b < blocks; b++, at += wn_gguf_block_bytes(types[i]))
      packed_block(types[i], at, seed + (uint64_t)i, (uint64_t)b);
    wn_gguf_decode(types[i], part->data, 0, part->rows * K, dense);
    dense += part->rows * K;
  }
}

/* Moves the blocks of weights that were just made to an address that is as aligned as an allocation's. */
static inline void packed_weights_align(struct packed_weights *w, int64_t K) {
  size_t bytes = 0;
  for (int i = 0; i < w->packed.count; i++) {
    struct wn_packed_part *part = &w->packed.part[i];
    bytes += (size_t)part->rows * wn_packed_row_bytes(part->type, K);
    part->data = (const uint8_t *)part->data - 1;
  }
  memmove(w->blocks, w->blocks + 1, bytes);
}

static inline void packed_weights_clear(struct packed_weights *w) {
  free(w->dense);
  free(w->blocks);
}

#endif
