/* Threshold in the fused attention: a row's choice among its content keys, and the masks that follow. */
#ifndef WN_BACKENDS_CPU_ATTENTION_THRESHOLD_H
#define WN_BACKENDS_CPU_ATTENTION_THRESHOLD_H

#include "backends/cpu/attention/terms.h"

/* Floats of scratch for one row's choice: the sorted keys, and the narrowing. */
static inline int64_t wn_threshold_floats(const struct wn_attention_plan *p) {
  const int64_t n = p->blocks * WN_TILE;
  return n * (int64_t)(sizeof(struct wn_ranked_key) / sizeof(float)) + 4 * (n + 32);
}

/* kept[rows] (row stride `stride`, columns from the strip's j0 on) = tile - F; -inf where unseen. F, seen: as in
 * softmax, or NULL. */
void wn_threshold_store(const struct wn_terms_strip *s, const float *tile, const float *F, const uint64_t *seen,
                        float *kept, int64_t stride);

/* From logits[rows] (row stride `stride`, all columns before `columns`) to cut[rows,2]; also writes the call's count
 * and cut. Of s only the rows are used. order: wn_threshold_floats of scratch. */
void wn_threshold_choose(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *logits,
                         int64_t stride, int64_t columns, void *order, double *cut);

/* own[rows] = the bits of seen (NULL: all) where the choice `cut` keeps tile - F. own may alias seen. */
const uint64_t *wn_threshold_mask(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const double *cut,
                                  const float *tile, const float *F, const uint64_t *seen, uint64_t *own);

/* Backward of rows that keep a single key: the key is hidden from the gradient, so that G is exactly zero and not a
 * rounding error. Below: sets the attention weight of such keys, which is 1, in weights[rows,64]. */
void wn_threshold_hide_single(const struct wn_terms_strip *s, const double *cut, uint64_t *own);
void wn_threshold_show_single(const struct wn_terms_strip *s, const double *cut, float *weights);

/* The saved choice for the strip's rows. */
static inline const double *wn_threshold_cut(const struct wn_terms_strip *s) {
  return s->a->threshold.cut + 2 * ((s->b * s->a->H + s->h) * s->a->Tq + s->r);
}

#endif
