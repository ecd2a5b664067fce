/* Gives tests access to a backend's arrays, also on backend guard (WINNOW_GUARD), whose arrays the host cannot touch.
 * With it tests read and write parameters and activations, and pass gradient arrays of their own to a step. For host
 * memory it does nothing. The engine itself must not use it. */
#ifndef WN_TESTS_REACH_H
#define WN_TESTS_REACH_H

#include "model/model.h"

/* The address at which the host can read and write the array element that the backend has at p. */
void *reach(const void *p);
/* Like wn_model_step, but step->grads may also be in host memory. */
wn_status reach_step(struct wn_model *model, wn_workspace *ws, const struct wn_batch *batch, const struct wn_step *step,
                     struct wn_step_result *result);
#ifndef WN_TESTS_REACH_INSIDE
#define wn_model_step reach_step
#endif

#endif
