/* An attention operation on some of its heads: the same arrays, begun further on. */
#include "attention/registry.h"
#include "ops/ops.h"

/* Of keys and values, which may be half floats. */
static const void *key_at(const struct wn_attention *op, const void *base, int64_t elements, wn_dtype dtype) {
  return op->half && base ? (const uint16_t *)base + elements : wn_element(base, elements, dtype);
}

struct wn_attention wn_attention_of_heads(const struct wn_attention *op, wn_dtype dtype, int64_t g0, int64_t n) {
  struct wn_attention a = *op;
  const int64_t share = op->H / op->Hkv, h0 = g0 * share, G = wn_selection_groups(op), P = wn_slot_groups(op);
  a.H = n * share;
  a.Hkv = n;
  a.q = wn_element(op->q, h0 * op->s_q.h, dtype);
  a.k = key_at(op, op->k, g0 * op->s_k.h, dtype);
  a.v = key_at(op, op->v, g0 * op->s_v.h, dtype);
  a.y = wn_element(op->y, h0 * op->s_y.h, dtype);
  if (P > 1) {
    const int64_t first = g0 * wn_slot_stride(op);
    a.slots.groups = n;
    a.slots.stride = wn_slot_stride(op) * (n == 1 ? P : 1); /* a sequence's rows are as far apart as they were */
    if (op->slots.gone) a.slots.gone = op->slots.gone + first;
    if (op->slots.at) a.slots.at = op->slots.at + first;
    if (op->slots.at && op->threshold.control) a.threshold.control = op->threshold.control + first;
    a.slots.mass = wn_element(op->slots.mass, first, dtype);
  }
  if (op->sel.on && G > 1) {
    const int64_t first = g0 * wn_selection_stride(op);
    a.sel.groups = n;
    a.sel.f_stride = wn_selection_stride(op) * (n == 1 ? G : 1);
    a.sel.f_in = wn_element(op->sel.f_in, first, dtype);
    a.sel.f_out = wn_element(op->sel.f_out, first, dtype);
    a.sel.strength = wn_element(op->sel.strength, g0, dtype);
    a.sel.sq = wn_element(op->sel.sq, g0 * op->sel.s_sq.h, dtype);
    a.sel.sk = wn_element(op->sel.sk, g0 * op->sel.s_sk.h, dtype);
  }
  a.sel.F = a.sel.M = a.lse = a.exclusive.dot = NULL;
  a.sel.mem = false;
  a.threshold.count = NULL;
  a.threshold.cut = NULL;
  a.dropout.p = 0;
  a.span.z = wn_element(op->span.z, h0 * op->span.s_z.h, dtype);
  a.bias.table = wn_element(op->bias.table, h0, dtype);
  a.bias.stride = wn_bias_stride(op);
  a.sinks.k = wn_element(op->sinks.k, g0 * op->sinks.n * op->D, dtype);
  a.sinks.v = wn_element(op->sinks.v, g0 * op->sinks.n * op->D, dtype);
  a.exclusive.gate = wn_element(op->exclusive.gate, h0, dtype);
  return a;
}
