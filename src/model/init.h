/* How parameters start: the rules of "model.init" (init.c). */
#ifndef WN_MODEL_INIT_H
#define WN_MODEL_INIT_H

#include "model/params.h"

/* Classes of tensors that a rule is for: a key of "init" each. */
enum wn_init_class {
  WN_INIT_NONE, /* init_std alone */
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
/* The start of a class in a tensor with fan_in columns, in *out; unchanged where the class has no rule. Rules have been
 * checked. */
void wn_init_start(const wn_model_config *config, enum wn_init_class of, int64_t fan_in, struct wn_param_start *out);

#endif
