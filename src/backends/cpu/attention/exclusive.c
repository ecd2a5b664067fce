/* Exclusive self attention (Zhai) in the fused attention: z = y - gate (y.v)/|v|^2 v, where v is the row's own value.
 *
 * Forward: applied at the end of a row block, while its y is in cache. Backward: a row block packs dy' = dy - gate
 * (dy.v)/|v|^2 v; the gradient of the rows' own values goes to their tiles of dv first, then the keys' gradients are
 * added. About 4 D operations per row and head forward, 16 D backward; no array except y.v, which forward stores. */
#include <string.h>
#include "backends/cpu/attention/terms.h"

static struct wn_tile_exclusive exclusive_rows_of(const struct wn_attention *a, int64_t b, int64_t h, int64_t r,
                                                  int64_t rows) {
  float *dot = a->exclusive.dot;
  return (struct wn_tile_exclusive){.v = wn_floats_at(a->v, a->s_v, b, r + a->Tk - a->Tq, h / (a->H / a->Hkv)),
                                    .v_stride = a->s_v.t,
                                    .y = wn_floats_out(a->y, a->s_y, b, r, h),
                                    .y_stride = a->s_y.t,
                                    .dy = a->dy ? wn_floats_at(a->dy, a->s_y, b, r, h) : NULL,
                                    .dot = dot ? dot + (b * a->H + h) * a->Tq + r : NULL,
                                    .rows = rows,
                                    .D = a->D,
                                    .gate = a->exclusive.gate ? (double)((const float *)a->exclusive.gate)[h] : 1};
}

void wn_exclusive_rows(const struct wn_attention_plan *p, int64_t b, int64_t h, int64_t r, int64_t rows) {
  const struct wn_attention *a = p->a;
  const struct wn_tile_exclusive x = exclusive_rows_of(a, b, h, r, rows);
  /* A row that sees only its own key: y equals v exactly, so the row becomes zero. */
  for (int64_t i = 0; !(a->dropout.p > 0) && i < rows; i++)
    if (wn_terms_single(a, b, h / p->group, r + i + p->offset))
      memcpy(x.y + i * x.y_stride, x.v + i * x.v_stride, (size_t)a->D * sizeof(float));
  p->ops->exclusive(&x);
}

void wn_exclusive_gradient(const struct wn_attention_plan *p, int64_t b, int64_t h, int64_t r, int64_t rows, float *out,
                           float *delta) {
  struct wn_tile_exclusive x = exclusive_rows_of(p->a, b, h, r, rows);
  x.out = out, x.out_stride = p->Dp, x.delta = delta;
  p->ops->exclusive_gradient(&x);
}

void wn_exclusive_values(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c, float *dv) {
  const struct wn_attention *a = p->a;
  const int64_t from = wn_max_i64(c * WN_TILE, wn_max_i64(p->offset, a->dk_from)),
                to = wn_min_i64((c + 1) * WN_TILE, a->Tk);
  for (int64_t h = 0; from < to && h < u->heads; h++) {
    struct wn_tile_exclusive x = exclusive_rows_of(a, u->b, u->h0 + h, from - p->offset, to - from);
    x.out = dv + (h / p->group * WN_TILE + from - c * WN_TILE) * p->Dp, x.out_stride = p->Dp;
    p->ops->exclusive_values(&x);
  }
}
