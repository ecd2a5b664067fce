/* Attention on a GPU (ops/attention.h). Arrays are in device memory. Calls are queued on a stream and return at once
 * (work on a second stream, beside.cuh, starts and ends in the first). Kernels are in attention/: for float rows (no
 * TF32), and for bf16 rows with sums in float. Equal inputs give equal bits. Scratch grows linearly with Tk: arrays
 * with an entry per pair exist only for a chunk of rows at a time. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_H
#define WN_BACKENDS_CUDA_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus /* C++ has no such initialisers of single members */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif
#include "ops/attention.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "ops/terms.h"
#ifdef __cplusplus
#pragma GCC diagnostic pop
#endif

/* Terms that the fused kernels serve: in forward and backward, and in forward only (ops/terms.h). Calls with other
 * terms, heads wider than 128 or F for inspection use kernels that store the attention weights of a chunk of rows
 * (attention/stored.cuh). */
enum {
  WN_CUDA_ATTENTION_FUSED = WN_TERM_SELECTION | WN_TERM_WINDOW | WN_TERM_STRIDED | WN_TERM_SQUARE_ROOT | WN_TERM_SPAN |
                            WN_TERM_SINKS | WN_TERM_EXCLUSIVE | WN_TERM_GATE | WN_TERM_DROPOUT | WN_TERM_DOCUMENTS |
                            WN_TERM_EVICTION | WN_TERM_EVICTION_BY_HEAD | WN_TERM_CONSTANT_KEYS | WN_TERM_SOME_HEADS |
                            WN_TERM_BF16 | WN_TERM_SCORE_MAP,
  WN_CUDA_ATTENTION_FUSED_FORWARD = WN_CUDA_ATTENTION_FUSED | WN_TERM_POSITIONS | WN_TERM_POSITIONS_BY_HEAD,
  WN_CUDA_ATTENTION_SERVED =
      WN_CUDA_ATTENTION_FUSED | WN_TERM_RELATIVE | WN_TERM_THRESHOLD | WN_TERM_OPEN | WN_TERM_KEYED,
  WN_CUDA_ATTENTION_FORWARD =
      WN_CUDA_ATTENTION_SERVED | WN_TERM_POSITIONS | WN_TERM_POSITIONS_BY_HEAD | WN_TERM_SUMS | WN_TERM_HALF
};
/* For a call whose terms are all served: what else in it is not served, or NULL. */
const char *wn_cuda_attend_lacks(const struct wn_attention *a, bool backward);
/* Do the kernels for sm_90 take this call, on a device and in a build that have them? */
bool wn_cuda_attend_sm90(const struct wn_attention *a, bool backward);
/* Bytes of scratch. rows: in a chunk, rounded up to tiles; 0: at most 4096 (with stored attention weights 128). */
size_t wn_cuda_attend_scratch(const struct wn_attention *a, bool backward, int64_t rows);
/* scratch: aligned to 16 bytes, for the same rows. Returns NULL or CUDA's error text. stream: a cudaStream_t. */
const char *wn_cuda_attend_forward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream);
const char *wn_cuda_attend_backward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream);

#ifdef __cplusplus
}
#endif

#endif
