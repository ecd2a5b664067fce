/* How parameters are initialised: the rules of "model.init" (init.c). */
#ifndef WN_MODEL_INIT_H
#define WN_MODEL_INIT_H

#include "model/params.h"

/* The classes of tensors that rules are for; each is a key of "init". */
enum wn_init_class {
  WN_INIT_NONE, /* always init_std */
  WN_INIT_EMBEDDINGS,
  WN_INIT_POSITIONS,
  WN_INIT_Q,
  WN_INIT_K,
  WN_INIT_V,
  WN_INIT_OUTPUT,
  WN_INIT_FFN_IN,
  WN_INIT_FFN_OUT,
  WN_INIT_LOGITS,
  WN_INIT_CLASSES
};

/* WN_ERR_CONFIG names the first rule that cannot be read. */
wn_status wn_init_check(wn_context *ctx, const wn_model_config *config);
/* Sets *out to the rule of a class, for a tensor with fan_in columns; *out stays as it is if the class has no rule.
 * Rules have been checked before. */
void wn_init_start(const wn_model_config *config, enum wn_init_class of, int64_t fan_in, struct wn_param_start *out);

#endif
