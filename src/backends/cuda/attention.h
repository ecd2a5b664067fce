/* Attention on a GPU (ops/attention.h): arrays are the device's; calls are put on a stream and return at once (what
 * runs in another beside it, beside.cuh, begins and ends in that stream). Kernels: attention/, for rows in floats (no
 * TF32) and in bf16 with sums in floats. The same inputs give the same bits. Scratch grows linearly with Tk: what there
 * is for each pair is kept for a window of rows at a time. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_H
#define WN_BACKENDS_CUDA_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus /* C's initialisers of single members */
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

/* The terms that the fused kernels serve, forward and backward, and forward alone (ops/terms.h); and what calls with
 * any other of theirs, heads wider than 128 or F for inspection take: kernels that store the weights of a window of
 * rows (attention/stored.cuh). */
enum {
  WN_CUDA_ATTENTION_FUSED = WN_TERM_SELECTION | WN_TERM_WINDOW | WN_TERM_STRIDED | WN_TERM_SQUARE_ROOT | WN_TERM_SPAN |
                            WN_TERM_SINKS | WN_TERM_EXCLUSIVE | WN_TERM_GATE | WN_TERM_DROPOUT | WN_TERM_DOCUMENTS |
                            WN_TERM_EVICTION | WN_TERM_EVICTION_BY_HEAD | WN_TERM_CONSTANT_KEYS | WN_TERM_SOME_HEADS |
                            WN_TERM_BF16 | WN_TERM_SCORE_MAP,
  WN_CUDA_ATTENTION_FUSED_FORWARD = WN_CUDA_ATTENTION_FUSED | WN_TERM_POSITIONS | WN_TERM_POSITIONS_BY_HEAD,
  WN_CUDA_ATTENTION_SERVED =
      WN_CUDA_ATTENTION_FUSED | WN_TERM_RELATIVE | WN_TERM_BIAS | WN_TERM_THRESHOLD | WN_TERM_OPEN,
  WN_CUDA_ATTENTION_FORWARD =
      WN_CUDA_ATTENTION_SERVED | WN_TERM_POSITIONS | WN_TERM_POSITIONS_BY_HEAD | WN_TERM_SUMS | WN_TERM_HALF
};
/* Of a call whose terms are served: what in it is not, or NULL. */
const char *wn_cuda_attend_lacks(const struct wn_attention *a, bool backward);
/* Is it a call for the kernels of sm_90, on a device and in a build that has them? */
bool wn_cuda_attend_sm90(const struct wn_attention *a, bool backward);
/* rows: of a window, rounded up to tiles; 0: all up to 4096, else 4096 (of stored weights 128). */
size_t wn_cuda_attend_scratch(const struct wn_attention *a, bool backward, int64_t rows);
/* scratch: 16-byte aligned, of the same rows. Returns NULL, or what the run time said. stream: a cudaStream_t. */
const char *wn_cuda_attend_forward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream);
const char *wn_cuda_attend_backward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream);

#ifdef __cplusplus
}
#endif

#endif
