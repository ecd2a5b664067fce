/* Learned sinks in the fused attention: n keys and values that every row sees, without mask, span, selection or
 * dropout.
 *
 * Forward: a row block processes them before its first tile. Backward: they are an extra column block for each row
 * block and head. W and G come from the row's sum of exponentials; dq is added to the tiles' dq; dk and dv are summed
 * in parts, each by one thread in a fixed order, then the parts are added in order. 4 D n operations per row and head
 * forward, 10 D n backward. */
#include <string.h>
#include "backends/cpu/attention/terms.h"

void wn_terms_sinks(const struct wn_attention_plan *p, const float *q, int64_t q_step, int64_t g, int64_t rows,
                    float *m, float *l, float *acc) {
  const struct wn_attention *a = p->a;
  _Alignas(64) float tile[WN_TILE_AREA] = {0};
  uint64_t seen[WN_TILE];
  for (int64_t at = 0; at < a->sinks.n; at += WN_TILE) {
    const int64_t count = wn_min_i64(WN_TILE, a->sinks.n - at), from = (g * a->sinks.n + at) * a->D;
    for (int64_t i = 0; i < rows; i++) {
      seen[i] = ~UINT64_C(0) >> (WN_TILE - count);
      p->ops->decode_logits(tile + i * WN_TILE, q + i * q_step, (const float *)a->sinks.k + from, a->D, count, a->D,
                            (float)a->scale);
    }
    p->ops->softmax(&(struct wn_tile_softmax){
        .a = tile, .seen = seen, .rows = rows, .width = WN_TILE, .m = m, .l = l, .acc = acc, .acc_width = p->Dp});
    for (int64_t i = 0; i < rows; i++)
      p->ops->decode_values(acc + i * p->Dp, tile + i * WN_TILE, (const float *)a->sinks.v + from, a->D, count, a->D);
  }
}

/* Floats in one part: dk and dv of all key-value heads. */
static int64_t part_floats(const struct wn_attention_plan *p) {
  return 2 * p->a->Hkv * p->a->sinks.n * p->Dp;
}

void wn_sinks_lay(const struct wn_attention_plan *p, struct wn_arrays *l, bool backward, struct wn_terms_scratch *s) {
  const bool sums = backward && p->a->sinks.n > 0;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(s->sink_sums, "sums of sinks", sums, WN_DIMS(wn_terms_parts(p), part_floats(p))),
  };
  WN_ARRAYS_LAY(l, rows);
}

float *wn_sinks_part(const struct wn_attention_plan *p, int64_t n) {
  return p->terms.sink_sums ? p->terms.sink_sums + n * part_floats(p) : NULL;
}

void wn_sinks_part_clear(const struct wn_attention_plan *p, float *part) {
  if (part) memset(part, 0, (size_t)part_floats(p) * sizeof *part);
}

/* to[n,Dp] += x[rows,64]^T from[rows,Dp], for the first n columns of x. */
static void add_columns(const struct wn_attention_plan *p, float *to, const float *x, const float *from, int64_t rows,
                        int64_t n) {
  float column[WN_TILE];
  for (int64_t s = 0; s < n; s++) {
    for (int64_t i = 0; i < rows; i++) column[i] = x[i * WN_TILE + s];
    p->ops->decode_values(to + s * p->Dp, column, from, p->Dp, rows, p->Dp);
  }
}

void wn_sinks_gradient(const struct wn_attention_plan *p, int64_t g, int64_t rows, const float *q, const float *dy,
                       const float *lse, const float *delta, float *dq, float *part) {
  const struct wn_attention *a = p->a;
  _Alignas(64) float w[WN_TILE_AREA] = {0}, G[WN_TILE_AREA] = {0};
  uint64_t seen[WN_TILE];
  float *dk = part + 2 * g * a->sinks.n * p->Dp, *dv = dk + a->sinks.n * p->Dp;
  for (int64_t at = 0; at < a->sinks.n; at += WN_TILE) {
    const int64_t count = wn_min_i64(WN_TILE, a->sinks.n - at), from = (g * a->sinks.n + at) * a->D;
    const float *k = (const float *)a->sinks.k + from, *v = (const float *)a->sinks.v + from;
    for (int64_t i = 0; i < rows; i++) {
      seen[i] = ~UINT64_C(0) >> (WN_TILE - count);
      p->ops->decode_logits(w + i * WN_TILE, q + i * p->Dp, k, a->D, count, a->D, (float)a->scale);
      p->ops->decode_logits(G + i * WN_TILE, dy + i * p->Dp, v, a->D, count, a->D, 1.0f);
    }
    p->ops->gradient(&(struct wn_tile_gradient){.a = w,
                                                .w = w,
                                                .g = G,
                                                .seen = seen,
                                                .rows = rows,
                                                .width = wn_div_up(count, 16) * 16,
                                                .lse = lse,
                                                .delta = delta});
    for (int64_t i = 0; i < rows; i++) p->ops->decode_values(dq + i * p->Dp, G + i * WN_TILE, k, a->D, count, a->D);
    add_columns(p, dk + at * p->Dp, G, q, rows, count);
    add_columns(p, dv + at * p->Dp, w, dy, rows, count);
  }
}

void wn_sinks_end(const struct wn_attention_plan *p) {
  const struct wn_attention *a = p->a;
  const int64_t parts = wn_terms_parts(p), n = a->sinks.n;
  if (!p->terms.sink_sums) return;
  for (int64_t g = 0; g < a->Hkv; g++)
    for (int64_t s = 0; s < 2 * n; s++) {
      float *to = s < n ? a->sinks.dk : a->sinks.dv;
      const double factor = s < n ? a->scale : 1;
      for (int64_t d = 0; to && d < a->D; d++) {
        double sum = 0;
        for (int64_t part = 0; part < parts; part++)
          sum += (double)p->terms.sink_sums[part * part_floats(p) + (2 * g * n + s) * p->Dp + d];
        float *at = to + (g * n + s % n) * a->D + d;
        *at = (float)((double)*at + factor * sum);
      }
    }
}
