/* Score maps (ops/score.h) on tiles, row by row. */
#ifndef WN_BACKENDS_CPU_ATTENTION_SCORE_H
#define WN_BACKENDS_CPU_ATTENTION_SCORE_H

#include "backends/cpu/attention/bias.h"

/* Maps tile[rows,64], the strip's logits with relative positions and biases. */
void wn_score_tile(const struct wn_attention_plan *p, const struct wn_terms_strip *s, float *tile);
/* Replaces G[rows,64], the gradient of the mapped logits y[rows,64], by that of the logits. */
void wn_score_tile_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *y,
                            float *G);
/* Does the gradient depend on the logits? Then backward keeps them. */
bool wn_score_bends(const struct wn_attention *a);
/* Completes a strip's logits scale * q[rows,Dp] . k: adds relative positions and biases, then applies maps. */
static inline void wn_logits_complete(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q,
                                      float *tile) {
  if (p->a->relative.P > 0) wn_terms_relative(p, s, q, tile);
  if (p->bias) wn_bias_add(p, s, tile);
  if (p->a->maps > 0) wn_score_tile(p, s, tile);
}
/* Maps n logits of head h and the row at `position`, for keys at distances x. */
void wn_score_distances(const struct wn_attention_plan *p, int64_t h, int64_t position, const int32_t *x, int64_t n,
                        float *logits);

#endif
