/* Interface between the sources that launch attention kernels (attention.cu). */
#ifndef WN_BACKENDS_CUDA_ATTENTION_CALL_CUH
#define WN_BACKENDS_CUDA_ATTENTION_CALL_CUH

#include "backends/cuda/device.cuh"

#include "backends/cuda/attention.h"

struct wn_evictions;
struct wn_exec;

namespace wn_cuda {

/* Lays out scratch; base NULL: only measures it. */
struct room {
  char *base;
  size_t used;
  template <class T> T *take(int64_t n) {
    T *p = base ? reinterpret_cast<T *>(base + used) : nullptr;
    used += (size_t)(n * (int64_t)sizeof(T) + 255) / 256 * 256;
    return p;
  }
};

enum pass { MEASURE_FORWARD, MEASURE_BACKWARD, FORWARD, BACKWARD };
struct outcome {
  size_t bytes;
  const char *error;
};
outcome run_floats(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
outcome run_bf16(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
/* The same with terms that only some calls have (terms.cuh). */
outcome run_floats_terms(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
outcome run_bf16_terms(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
outcome run_stored(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
/* The evictions of a call's rows; MEASURE_FORWARD: only measures scratch. */
outcome run_evictions(pass what, const wn_evictions *op, void *scratch, cudaStream_t stream);

WN_BOTH bool is_keyed(wn_score_id id) {
  return id >= WN_SCORE_FORGET && id <= WN_SCORE_FADE;
}
/* Are a call's maps ALiBi, soft-capping, or both in this order, so that they can be applied to raw logits? keyed: there
 * may be keyed maps between them. */
inline bool maps_are_raw(const wn_attention *c, bool keyed) {
  int64_t n = 0;
  if (n < c->maps && c->map[n].kind->id == WN_SCORE_ALIBI) n++;
  while (keyed && n < c->maps && is_keyed(c->map[n].kind->id)) n++;
  if (n < c->maps && c->map[n].kind->id == WN_SCORE_SOFTCAP) n++;
  return n == c->maps && (c->maps == 0 || c->scale > 0);
}
outcome run_sm90(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream);
/* Forward of at most this many rows over a cache is decoding, if decoding serves the call. */
enum { DECODE_ROWS = 8 };
bool is_decode(const wn_attention *c);
outcome run_decode(pass what, const wn_attention *c, void *scratch, cudaStream_t stream);
/* Those of n independent calls that are decoding, several in a launch. */
const char *run_decode_together(const wn_exec *exec, const wn_attention *calls, int64_t n, cudaStream_t stream);

} // namespace wn_cuda

#endif
