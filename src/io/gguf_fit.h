/* Quantisers of blocks (gguf_fit.c), private to src/io. Every instruction set gives the same bits. */
#ifndef WN_IO_GGUF_FIT_H
#define WN_IO_GGUF_FIT_H

#include <stdbool.h>
#include <stdint.h>
#include "winnow/gguf.h"

/* Quantises one block of a type that stores scales. x: the
 * block's weights, all finite. False: a scale is too large for a half float. */
typedef bool (*wn_gguf_encode_block_fn)(const float *x, uint8_t *out);
/* NULL: the type is not one of these. */
wn_gguf_encode_block_fn wn_gguf_block_encoder(const wn_context *ctx, wn_gguf_type type);

/* Rounds to nearest, ties to even; false if a finite number becomes infinite (gguf_encode.c). */
bool wn_gguf_half(float x, uint16_t *out);
#endif
