/* Score maps (ops/score.h) on tiles: rows of logits, one after the other. */
#ifndef WN_BACKENDS_CPU_ATTENTION_SCORE_H
#define WN_BACKENDS_CPU_ATTENTION_SCORE_H

#include "backends/cpu/attention/bias.h"

/* tile[rows,64], the strip's logits with positions and biases, mapped. */
void wn_score_tile(const struct wn_attention_plan *p, const struct wn_terms_strip *s, float *tile);
/* G[rows,64], the gradient of the mapped logits y[rows,64], becomes that of the logits. */
void wn_score_tile_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *y,
                            float *G);
/* Does the gradient depend on the logits? Then backward keeps them. */
bool wn_score_bends(const struct wn_attention *a);
/* What a strip's logits scale * q[rows,Dp] . k are to become: relative positions and biases are added, then maps run.
 */
static inline void wn_logits_complete(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q,
                                      float *tile) {
  if (p->a->relative.P > 0) wn_terms_relative(p, s, q, tile);
  if (p->bias) wn_bias_add(p, s, tile);
  if (p->a->maps > 0) wn_score_tile(p, s, tile);
}
/* n logits of head h and the row at `position`, of keys at distances x. */
void wn_score_distances(const struct wn_attention_plan *p, int64_t h, int64_t position, const int32_t *x, int64_t n,
                        float *logits);

#endif
