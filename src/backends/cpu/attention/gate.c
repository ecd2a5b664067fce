#include "backends/cpu/attention/gate.h"

#include <string.h>

#include "base/arrays.h"
#include "base/error.h"
#include "base/parallel.h"

/* Lays out the gradient of the rows before the gates: [B,Tq,H,D], contiguous. */
static float *gate_lay(const struct wn_attention *a, struct wn_arrays *l) {
  float *dz = NULL;
  const struct wn_array arrays[] = {
      WN_ARRAY_FOR(dz, "gradient before the gates", true, WN_DIMS(a->B, a->Tq, a->H, a->D)),
  };
  WN_ARRAYS_LAY(l, arrays);
  return dz;
}

/* Offset of head h of token n = b * Tq + r in an array. */
static int64_t gate_at(const struct wn_attention *a, struct wn_stride s, int64_t n, int64_t h) {
  return n / a->Tq * s.b + n % a->Tq * s.t + h * s.h;
}

static void gate_row_forward(void *args, int64_t n) {
  const struct wn_attention *a = args;
  const int64_t D = a->D;
  for (int64_t h = 0; h < a->H; h++) {
    float *y = (float *)a->y + gate_at(a, a->s_y, n, h);
    const float *g = (const float *)a->gate.g + gate_at(a, a->gate.s_g, n, h);
    if (a->gate.ungated) memcpy((float *)a->gate.ungated + (n * a->H + h) * D, y, (size_t)D * sizeof *y);
    for (int64_t d = 0; d < D; d++) y[d] *= g[a->gate.elementwise ? d : 0];
  }
}

struct gate_gradient {
  const struct wn_attention *a;
  float *dz;
};
static void gate_row_backward(void *args, int64_t n) {
  const struct gate_gradient *x = args;
  const struct wn_attention *a = x->a;
  const int64_t D = a->D;
  for (int64_t h = 0; h < a->H; h++) {
    const int64_t at_g = gate_at(a, a->gate.s_g, n, h), row = (n * a->H + h) * D;
    const float *dy = (const float *)a->dy + gate_at(a, a->s_y, n, h), *g = (const float *)a->gate.g + at_g;
    const float *z = (const float *)a->gate.ungated + row;
    float *dz = x->dz + row, *dg = a->gate.dg ? (float *)a->gate.dg + at_g : NULL, sum = 0;
    for (int64_t d = 0; d < D; d++) dz[d] = dy[d] * g[a->gate.elementwise ? d : 0];
    if (!dg) continue;
    for (int64_t d = 0; a->gate.elementwise && d < D; d++) dg[d] = dy[d] * z[d];
    for (int64_t d = 0; !a->gate.elementwise && d < D; d++) sum += dy[d] * z[d];
    if (!a->gate.elementwise) dg[0] = sum;
  }
}

wn_status wn_gate_run(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                      wn_attention_kernels *kernels) {
  if (!a->gate.on) return kernels(exec, a, backward);
  struct wn_attention ungated = *a;
  ungated.gate.on = false;
  if (!backward) {
    WN_TRY(kernels(exec, &ungated, false));
    /* For few rows waking threads is not worthwhile. */
    wn_parallel_for(a->B * a->Tq * a->H * a->D < 16384 ? 1 : exec->threads, a->B * a->Tq, gate_row_forward, a);
    return WN_OK;
  }
  if (!a->gate.ungated)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT,
                   "attention: gate.ungated: expected the array that forward filled, found NULL");
  struct wn_arrays l = {.base = exec->scratch};
  float *dz = gate_lay(a, &l);
  wn_parallel_for(exec->threads, a->B * a->Tq, gate_row_backward, &(struct gate_gradient){a, dz});
  ungated.y = a->gate.ungated;
  ungated.dy = dz;
  ungated.s_y = (struct wn_stride){a->Tq * a->H * a->D, a->H * a->D, a->D};
  const struct wn_exec inner = wn_exec_behind(exec, l.bytes);
  return kernels(&inner, &ungated, true);
}

size_t wn_gate_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                       wn_attention_scratch_slot *scratch) {
  if (!a->gate.on) return scratch(exec, a, backward);
  struct wn_attention ungated = *a;
  ungated.gate.on = false;
  if (!backward) return scratch(exec, &ungated, false);
  struct wn_arrays l = {0};
  gate_lay(a, &l);
  return wn_arrays_bytes(&l) + scratch(exec, &ungated, true);
}
