/* Score maps on tiles. Each map's function for this instruction set is called once per row, on up to 64 logits. */
#include "backends/cpu/attention/score.h"

static enum wn_isa score_isa(const struct wn_attention_plan *p) {
#if WN_HAS_AVX512
  if (p->ops == &wn_tile_ops_avx512) return WN_ISA_AVX512;
#endif
  (void)p;
  return WN_ISA_AVX2;
}

/* Row i of the strip. */
static struct wn_score_segment score_row(const struct wn_terms_strip *s, int64_t i) {
  const struct wn_attention *a = s->a;
  const int64_t own = s->r + i + (a->open ? 0 : a->Tk - a->Tq), kv_head = s->h / (a->H / a->Hkv);
  const int32_t *at = wn_slot_positions(a, s->b, kv_head);
  return (struct wn_score_segment){.head = wn_model_head(a, s->h),
                                   .position = at ? at[own] : own,
                                   .first = s->j0,
                                   .at = at ? at + s->j0 : NULL,
                                   .n = wn_min_i64(s->width, a->Tk - s->j0)};
}

void wn_score_tile(const struct wn_attention_plan *p, const struct wn_terms_strip *s, float *tile) {
  const struct wn_attention *a = s->a;
  const enum wn_isa isa = score_isa(p);
  for (int64_t i = 0; i < s->rows; i++) {
    const struct wn_score_segment row = score_row(s, i);
    for (int64_t n = 0; n < a->maps; n++) a->map[n].kind->forward_float[isa](&a->map[n], &row, tile + i * WN_TILE);
  }
}

void wn_score_tile_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *y,
                            float *G) {
  const struct wn_attention *a = s->a;
  const struct wn_score_map *last = a->map + a->maps - 1; /* the others have the identity as gradient */
  if (!wn_score_bends(a)) return;
  for (int64_t i = 0; i < s->rows; i++) {
    const struct wn_score_segment row = score_row(s, i);
    last->kind->backward_float[score_isa(p)](last, &row, y + i * WN_TILE, G + i * WN_TILE);
  }
}

bool wn_score_bends(const struct wn_attention *a) {
  return a->maps > 0 && a->map[a->maps - 1].kind->backward_double;
}

void wn_score_distances(const struct wn_attention_plan *p, int64_t h, int64_t position, const int32_t *x, int64_t n,
                        float *logits) {
  const struct wn_attention *a = p->a;
  int32_t at[WN_TILE];
  const struct wn_score_segment row = {.head = wn_model_head(a, h), .position = position, .at = at, .n = n};
  for (int64_t i = 0; i < n; i++) at[i] = (int32_t)position - x[i];
  for (int64_t m = 0; m < a->maps; m++) a->map[m].kind->forward_float[score_isa(p)](&a->map[m], &row, logits);
}
