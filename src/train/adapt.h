/* Starting a model from another one's parameters, with new mechanisms that have no effect at first. */
#ifndef WN_TRAIN_ADAPT_H
#define WN_TRAIN_ADAPT_H

#include "model/model.h"
#include "winnow/train.h"

/* Copies every parameter of `model` from `given`. The two may differ in everything without parameters: losses, dropout,
 * masks. Parameters that only `given` has are reported. With config->adapt (config may be NULL) `model` may have
 * parameters of mechanisms that `given` lacks; these get their neutral value. Messages name the file `from`. */
wn_status wn_adapt_start(wn_context *ctx, const char *from, const struct wn_model *given, const wn_train_config *config,
                         struct wn_model *model);
/* WN_ERR_CONFIG unless both models give the same logits for a sequence of T tokens, up to rounding. inputs: of the
 * encoder; NULL without one. */
wn_status wn_adapt_check(wn_context *ctx, const char *from, struct wn_model *given, struct wn_model *model,
                         const wn_model_inputs *inputs, const int32_t *tokens, int64_t T);

#endif
