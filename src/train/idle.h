/* Keys of a recipe that have no effect, because another key turns off what they change. */
#ifndef WN_TRAIN_IDLE_H
#define WN_TRAIN_IDLE_H

#include "winnow/train.h"

/* A warning for each key that is not at its default and does nothing: "train.muon.lr is 0.05 and has no effect:
 * train.optimizer is "adamw"". */
wn_status wn_recipe_warn_idle(wn_context *ctx, const wn_recipe *recipe);

#endif
