/* A mixture's router, which every backend takes from the reference: it costs nothing beside the experts. */
#ifndef WN_BACKENDS_REF_EXPERTS_H
#define WN_BACKENDS_REF_EXPERTS_H

#include "ops/ops.h"

/* Does row m count for evenness? */
bool wn_experts_counts(const struct wn_experts *a, int64_t m);
/* a->prob holds the logits [M,E] and becomes probabilities; choices, weights, places and a->balance follow. end [E] or
 * NULL: the row of `in` after each expert's last. */
void wn_experts_route(const struct wn_exec *exec, const struct wn_experts *a, int32_t *end);
/* From the weights' gradients dw [M,top] to those of the logits [M,E], of exec's dtype; evenness included. */
void wn_experts_route_back(const struct wn_exec *exec, const struct wn_experts *a, const double *dw, void *dlogits);

#endif
