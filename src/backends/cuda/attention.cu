/* Entry points of attention, and the kernels for float rows. */
#include "backends/cuda/device.cuh"

#include "backends/cuda/attention/floats.cuh"
#include "backends/cuda/attention/run.cuh"
#include "backends/cuda/launch.cuh"

namespace wn_cuda {

outcome run_floats(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream) {
  return run<floats, no_terms>(what, c, scratch, rows, stream);
}

/* Can the fused kernels serve the call? When scratch is measured, arrays may still be missing. */
static bool is_fused(const wn_attention *c, bool backward, bool measures) {
  if (c->D > 128 || (c->sel.on && (c->sel.F || (c->sel.bilinear && c->row_type == WN_BF16)))) return false;
  if (!maps_are_raw(c, false) || c->dropout.p * 4294967296.0 > 4294967295.0) return false;
  if (backward && !measures && c->gate.on && !c->gate.ungated) return false;
  return !wn_call_lacks(c, backward ? WN_CUDA_ATTENTION_FUSED : WN_CUDA_ATTENTION_FUSED_FORWARD);
}
/* Which fused kernels to use. */
static decltype(&run_floats) fused_for(const wn_attention *c) {
  const bool terms = c->maps > 0 || c->sinks.n > 0 || c->gate.on || c->dropout.p > 0 || c->root.on;
  if (c->row_type == WN_BF16) return terms ? run_bf16_terms : run_bf16;
  return terms ? run_floats_terms : run_floats;
}
static outcome run_any(pass what, const wn_attention *c, void *scratch, int64_t rows, void *stream) {
  const bool measures = what == MEASURE_FORWARD || what == MEASURE_BACKWARD;
  const bool backward = what == BACKWARD || what == MEASURE_BACKWARD;
  const auto run_here = fused_for(c);
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  const bool fused = is_fused(c, backward, measures);
  if (what == FORWARD && is_decode(c)) return run_decode(what, c, scratch, on);
  /* Arrays may be missing while scratch is measured, and they decide which of these kernels the call takes: room for
   * the largest. */
  if ((what == MEASURE_FORWARD && c->Tq <= DECODE_ROWS) || (what == MEASURE_BACKWARD && c->gate.on)) {
    outcome most = run_stored(what, c, scratch, rows, on);
    const auto also = [&](const outcome &x) { most = x.bytes > most.bytes ? x : most; };
    if (!backward && is_decode(c)) also(run_decode(what, c, scratch, on));
    if (fused) also(run_here(what, c, scratch, rows, on));
    return most;
  }
  if (!fused) return run_stored(what, c, scratch, rows, on);
  if (!wn_cuda_attend_sm90(c, backward)) return run_here(what, c, scratch, rows, on);
  const outcome there = run_sm90(what, c, scratch, rows, on);
  if (!measures) return there;
  /* The same here: an array that comes later may need the kernels for sm_80. */
  const outcome here = run_here(what, c, scratch, rows, on);
  return here.bytes > there.bytes ? here : there;
}

} // namespace wn_cuda

const char *wn_cuda_attend_lacks(const struct wn_attention *a, bool backward) {
  if (a->B > 65535 || a->H > 65535 || a->B * wn_selection_groups(a) > 65535)
    return "more than 65535 sequences or heads";
  if (a->sel.on && !(a->scale > 0)) return "a selection with a scale that is not above 0";
  for (int64_t n = 0; n < a->maps; n++)
    if ((a->map[n].kind->id == WN_SCORE_OTHER && (!a->map[n].kind->kernels || a->scale == 0)) ||
        (n > 0 && a->map[n].kind == a->map[n - 1].kind))
      return a->map[n].kind->name;
  if (backward && a->exclusive.on && !a->exclusive.dot) return "exclusive attention without exclusive.dot";
  return NULL;
}

size_t wn_cuda_attend_scratch(const struct wn_attention *a, bool backward, int64_t rows) {
  return wn_cuda::run_any(backward ? wn_cuda::MEASURE_BACKWARD : wn_cuda::MEASURE_FORWARD, a, NULL, rows, NULL).bytes;
}
const char *wn_cuda_attend_forward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream) {
  return wn_cuda::run_any(wn_cuda::FORWARD, a, scratch, rows, stream).error;
}
const char *wn_cuda_attend_backward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream) {
  return wn_cuda::run_any(wn_cuda::BACKWARD, a, scratch, rows, stream).error;
}

/* ---- the backend's slots ---- */

static wn_status refused(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  const char *lacks = wn_cuda_attend_lacks(a, backward);
  if (!lacks) return WN_OK;
  return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "attention: backend cuda does not serve %s", lacks);
}
static wn_status outcome_of(const struct wn_exec *exec, const char *error) {
  return error ? wn_fail(exec->ctx, WN_ERR_IO, "attention on cuda: %s", error) : WN_OK;
}
size_t wn_cuda_attention_scratch(const struct wn_exec *, const struct wn_attention *a, bool backward) {
  return wn_cuda_attend_lacks(a, backward) ? 0 : wn_cuda_attend_scratch(a, backward, 0);
}
wn_status wn_cuda_attention_forward(const struct wn_exec *exec, const struct wn_attention *a) {
  WN_TRY(refused(exec, a, false));
  return outcome_of(exec, wn_cuda_attend_forward(a, exec->scratch, 0, wn_cuda_stream(exec)));
}
wn_status wn_cuda_attention_together(const struct wn_exec *exec, const struct wn_attention *a, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    WN_TRY(refused(&exec[i], &a[i], false));
    if (!wn_cuda::is_decode(&a[i])) WN_TRY(wn_cuda_attention_forward(&exec[i], &a[i]));
  }
  return outcome_of(exec, wn_cuda::run_decode_together(exec, a, n, wn_cuda_stream(exec)));
}
wn_status wn_cuda_attention_backward(const struct wn_exec *exec, const struct wn_attention *a) {
  WN_TRY(refused(exec, a, true));
  return outcome_of(exec, wn_cuda_attend_backward(a, exec->scratch, 0, wn_cuda_stream(exec)));
}
