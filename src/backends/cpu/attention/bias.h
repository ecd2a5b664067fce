/* Position biases, and open rows (an encoder's, or over another sequence's keys), of the fused attention. */
#ifndef WN_BACKENDS_CPU_ATTENTION_BIAS_H
#define WN_BACKENDS_CPU_ATTENTION_BIAS_H

#include "backends/cpu/attention/terms.h"

/* Floats of scratch for the heads' biases by distance, in the order of a row's keys: [H][width]. In backward their
 * gradients follow, one set for each sequence (own units) or for each part of a team. */
int64_t wn_bias_floats(const struct wn_attention_plan *p, bool backward);
/* `at`: that much scratch. Fills it and sets the plan's pointers. */
void wn_bias_begin(struct wn_attention_plan *p, float *at, bool backward);
/* The bias of head h at distance x. */
float wn_bias_of(const struct wn_attention_plan *p, int64_t h, int64_t x);
/* tile[rows,64] += the strip's biases. */
void wn_bias_add(const struct wn_attention_plan *p, const struct wn_terms_strip *s, float *tile);
/* Set n of the gradients; NULL: there are none. */
float *wn_bias_part(const struct wn_attention_plan *p, int64_t n);
/* Adds a strip's G to part[H]. */
void wn_bias_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *G, float *part);
/* Adds the sets to dtable, in order. */
void wn_bias_end(const struct wn_attention_plan *p);

/* Open rows: no causality, hence no terms that look back; see struct wn_attention. */
struct wn_arrays wn_open_scratch(const struct wn_attention_plan *p, bool backward);
void wn_open_forward_run(const struct wn_attention_plan *p);
void wn_open_backward_run(const struct wn_attention_plan *p);
/* The same with selection. Backward divides columns into parts. */
int64_t wn_open_parts(const struct wn_attention_plan *p);
struct wn_arrays wn_open_select_scratch(const struct wn_attention_plan *p, bool backward);
void wn_open_select_forward_run(const struct wn_attention_plan *p);
void wn_open_select_backward_run(const struct wn_attention_plan *p);

#endif
