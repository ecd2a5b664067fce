/* Score maps (ops/score.h) of the fused attention. */
#ifndef WN_BACKENDS_CPU_ATTENTION_SCORE_H
#define WN_BACKENDS_CPU_ATTENTION_SCORE_H

#include "backends/cpu/attention/terms.h"

/* Floats of scratch for the heads' biases by distance, in the order of a row's keys: [H][width]. In backward the sums
 * for their parameters follow, one set for each sequence (own units) or for each part of a team; then those of the
 * keys' numbers. */
int64_t wn_score_floats(const struct wn_attention_plan *p, bool backward);
/* `at`: that much scratch. Fills it and sets the plan's pointers. */
void wn_score_begin(struct wn_attention_plan *p, float *at, bool backward);
/* Maps a strip's logits. */
void wn_score_tile(const struct wn_attention_plan *p, const struct wn_terms_strip *s, float *tile);
/* Completes a strip's logits scale * q[rows,Dp] . k: adds relative positions, then applies maps. */
static inline void wn_logits_complete(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q,
                                      float *tile) {
  if (p->a->relative.P > 0) wn_terms_relative(p, s, q, tile);
  if (p->a->maps > 0) wn_score_tile(p, s, tile);
}
/* Maps n <= 64 logits of head h at distances x[n]; calls with keyed maps do not gather keys. */
void wn_score_gathered(const struct wn_attention_plan *p, int64_t h, const int32_t *x, int64_t n, float *logits);
/* From the gradient G of mapped logits y to that of the logits before the curve. */
void wn_score_tile_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *y,
                            float *G);
/* Keyed maps, after that: turns G into the gradient of the logits before them, and adds what the keys' numbers get to
 * part [maps][Hkv][Tk]; y as above, for a map that scales. Below: sequence b's part of set n; NULL: not wanted. */
void wn_score_keys_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *y, float *G,
                            double *part);
double *wn_score_keys_part(const struct wn_attention_plan *p, int64_t n, int64_t b);
/* Set n of the sums for parameters; NULL: there are none. */
float *wn_score_part(const struct wn_attention_plan *p, int64_t n);
/* Adds a strip's G to part[H]. */
void wn_score_sum(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *G, float *part);
/* Adds the sets to the parameters' gradients, in order, and stores those of the keys' numbers. */
void wn_score_end(const struct wn_attention_plan *p);

#endif
