/* What tests do with a backend's arrays that the engine may not, on backend guard as well (WINNOW_GUARD): they look
 * into parameters and activations, fill them, and hand in gradients of their own. On the host's memory all of it is
 * nothing. */
#ifndef WN_TESTS_REACH_H
#define WN_TESTS_REACH_H

#include "model/model.h"

/* Where the host can read and write what the backend has at p. */
void *reach(const void *p);
/* wn_model_step with gradients that may be the host's. */
wn_status reach_step(struct wn_model *model, wn_workspace *ws, const struct wn_batch *batch, const struct wn_step *step,
                     struct wn_step_result *result);
#ifndef WN_TESTS_REACH_INSIDE
#define wn_model_step reach_step
#endif

#endif
