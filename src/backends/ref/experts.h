/* The router of a mixture of experts. Every host backend uses ref's: next to the experts it costs nothing. */
#ifndef WN_BACKENDS_REF_EXPERTS_H
#define WN_BACKENDS_REF_EXPERTS_H

#include "ops/ops.h"

/* Does row m count for the balance? */
bool wn_experts_counts(const struct wn_experts *a, int64_t m);
/* Replaces the logits in a->prob [M,E] by probabilities and sets choices, weights, places and a->balance. end [E] or
 * NULL: the row of `in` after each expert's last one. */
void wn_experts_route(const struct wn_exec *exec, const struct wn_experts *a, int32_t *end);
/* From dw [M,top], the gradients of the weights, to those of the logits [M,E] in exec's dtype, including the
 * balance. */
void wn_experts_route_back(const struct wn_exec *exec, const struct wn_experts *a, const double *dw, void *dlogits);

#endif
