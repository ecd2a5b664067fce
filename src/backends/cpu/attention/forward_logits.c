/* Rows of logits that forward keeps: a threshold needs all logits of a row before the first attention weight, and a
 * look (analysis) needs the attention weights. Scratch: 64 rows of Tk floats for each head kept at a time. */
#include "backends/cpu/attention/forward.h"

#include <math.h>
#include "backends/cpu/attention/threshold.h"

/* Are whole rows of logits kept? */
bool wn_forward_keeps_logits(const struct wn_attention *a) {
  return a->threshold.on || wn_attention_looks(a);
}
/* How many heads' rows are kept at a time: all heads if they share a selection, else one. */
int64_t wn_forward_logits_heads(const struct wn_attention *a, int64_t heads) {
  return a->sel.on ? heads : 1;
}
float *wn_forward_logits_of(const struct wn_attention_plan *p, const struct wn_forward_rows *r, int64_t h) {
  return r->logits ? r->logits + (p->a->sel.on ? h : 0) * p->blocks * WN_TILE_AREA : NULL;
}
int64_t wn_forward_order_floats(const struct wn_attention_plan *p) {
  const int64_t look = p->a->look.n > 0 ? 3 * (p->blocks * WN_TILE + 32) : 0;
  return wn_max_i64(p->a->threshold.on ? wn_threshold_floats(p) : 0, look);
}

/* Sets logits to -inf that no tile will store: those outside the tiles, and those beside the strips of the diagonal. */
void wn_forward_clear_logits(const struct wn_attention_plan *p, const struct wn_forward_rows *r, int64_t h) {
  const struct wn_attention *a = p->a;
  const bool all = a->doc_start || wn_terms_mask(a) || a->span.on || a->slots.evicted_at || a->slots.at;
  const int64_t stride = p->blocks * WN_TILE, end = (r->at.block + 1) * WN_TILE;
  float *logits = wn_forward_logits_of(p, r, h);
  for (int64_t i = 0; i < r->at.rows; i++)
    for (int64_t j = all ? 0 : end - WN_TILE; j < end; j++) logits[i * stride + j] = -INFINITY;
}

/* Threshold, once all logits of a row block are known: the choice for head h, then softmax and values of the kept
 * keys. */
static void forward_logits_threshold_head(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                                          const struct wn_forward_packed *k, const struct wn_forward_worker *w,
                                          const struct wn_forward_rows *r, int64_t h) {
  const struct wn_attention *a = p->a;
  const int64_t Dp = p->Dp, stride = p->blocks * WN_TILE, rows = r->at.rows, row = h * WN_TILE;
  float *logits = wn_forward_logits_of(p, r, h);
  struct wn_terms_strip s = {.a = a, .b = u->b, .h = u->h0 + h, .r = r->at.r0, .rows = rows, .width = WN_TILE};
  double cut[2 * WN_TILE];
  uint64_t seen[WN_TILE];
  wn_threshold_choose(p, &s, logits, stride, r->at.p0 + rows, w->order, cut);
  for (int64_t c = r->at.doc_min / WN_TILE; c <= r->at.block; c++) {
    s.j0 = c * WN_TILE;
    uint64_t some = 0;
    for (int64_t i = 0; i < rows; i++) {
      memcpy(w->tile + i * WN_TILE, logits + i * stride + s.j0, WN_TILE * sizeof *w->tile);
      seen[i] = p->ops->above(w->tile + i * WN_TILE, -INFINITY);
    }
    wn_threshold_mask(p, &s, cut, w->tile, NULL, seen, seen);
    for (int64_t i = 0; i < rows; i++) some |= seen[i];
    for (int64_t i = 0; a->look.rows && i < rows; i++)
      for (int64_t j = 0; j < WN_TILE; j++)
        if (!(seen[i] >> j & 1)) logits[i * stride + s.j0 + j] = -INFINITY;
    if (some == 0) continue;
    p->ops->softmax(&(struct wn_tile_softmax){.a = w->tile,
                                              .seen = seen,
                                              .rows = rows,
                                              .width = WN_TILE,
                                              .m = r->m + row,
                                              .l = r->l + row * WN_TILE_LANES,
                                              .acc = r->acc + row * Dp,
                                              .acc_width = Dp});
    if (a->dropout.p > 0) {
      wn_terms_dropout(p, &s, seen);
      wn_terms_drop(p, &s, seen, w->tile);
    }
    wn_product_values(p, rows, WN_TILE, wn_operand_at(p, k->v, (c * u->groups + h / p->group) * WN_TILE * Dp), w->tile,
                      r->acc + row * Dp);
  }
}

/* Uses the kept logits of head h, once those of a whole row block are complete. */
void wn_forward_use_logits(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                           const struct wn_forward_packed *k, const struct wn_forward_worker *w,
                           const struct wn_forward_rows *r, int64_t h) {
  const struct wn_attention *a = p->a;
  const int64_t stride = p->blocks * WN_TILE, head = u->h0 + h, end = (r->at.block + 1) * WN_TILE;
  float *logits = wn_forward_logits_of(p, r, h);
  for (int64_t i = 0; a->look.n > 0 && i < r->at.rows; i++) {
    double sum = 0;
    for (int n = 0; n < WN_TILE_LANES; n++) sum += (double)r->l[(h * WN_TILE + i) * WN_TILE_LANES + n];
    /* in a large log-sum, rounding would be too coarse for its logits */
    const bool known = sum > 0 && fabsf(r->m[h * WN_TILE + i]) < 100 && a->sinks.n == 0 && !a->threshold.on;
    p->ops->count(&(struct wn_tile_count){
        .logits = logits + i * stride,
        .n = r->at.p0 + i + 1,
        .control = a->look.control ? a->look.control + u->b * a->Tk : NULL,
        .lse = known ? (double)r->m[h * WN_TILE + i] + log(sum) : (double)NAN,
        .shares = a->look.n,
        .tau = a->look.tau,
        .count = a->look.count + ((u->b * a->H + head) * a->Tq + r->at.r0 + i) * a->look.n,
        .work = w->order,
    });
  }
  if (a->threshold.on) forward_logits_threshold_head(p, u, k, w, r, h);
  if (!a->look.rows) return;
  for (int64_t i = 0; i < r->at.rows; i++) {
    float sum = 0;
    for (int n = 0; n < WN_TILE_LANES; n++) sum += r->l[(h * WN_TILE + i) * WN_TILE_LANES + n];
    p->ops->show(logits + i * stride, end, r->m[h * WN_TILE + i], logf(sum));
  }
  a->look.rows(a->look.user, &(struct wn_attention_view){.a = a,
                                                         .b = u->b,
                                                         .h = head,
                                                         .r = r->at.r0,
                                                         .rows = r->at.rows,
                                                         .columns = wn_min_i64(end, a->Tk),
                                                         .stride = stride,
                                                         .w = logits,
                                                         .thread = wn_hand()});
}
