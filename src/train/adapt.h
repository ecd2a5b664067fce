/* A model that continues another one's training: its parameters, and new mechanisms that start without effect. */
#ifndef WN_TRAIN_ADAPT_H
#define WN_TRAIN_ADAPT_H

#include "model/model.h"
#include "winnow/train.h"

/* Every parameter of `model` from `given`, which may differ in all that has none: losses, dropout, masks. What `given`
 * has beyond that is told. With config->adapt (config may be NULL) the model may have mechanisms' parameters that
 * `given` has not: those start neutral. Messages name the file `from`. */
wn_status wn_adapt_start(wn_context *ctx, const char *from, const struct wn_model *given, const wn_train_config *config,
                         struct wn_model *model);
/* WN_ERR_CONFIG unless both give the same logits for a sequence of T tokens, up to rounding. inputs: what the encoder
 * reads; NULL without one. */
wn_status wn_adapt_check(wn_context *ctx, const char *from, struct wn_model *given, struct wn_model *model,
                         const wn_model_inputs *inputs, const int32_t *tokens, int64_t T);

#endif
