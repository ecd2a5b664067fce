/* Settings of winnow's configuration that need more than an assignment when a family reads or writes them. */
#ifndef WN_FORMATS_CONFIG_SET_H
#define WN_FORMATS_CONFIG_SET_H

#include "winnow/model.h"

/* Sets a window of `window` tokens (0: none) in the layers for which `windowed` is true. */
wn_status wn_config_set_window(wn_context *ctx, const char *where, int64_t window,
                               bool (*windowed)(const void *user, int64_t layer), const void *user,
                               wn_model_config *config);
/* Reads or sets a number of an attention mechanism by its key ("softcap.cap"); mechanisms' settings are private. Where
 * there is no such key reading gives 0 and setting WN_ERR_UNSUPPORTED. */
double wn_config_attention(const wn_model_config *config, const char *key);
wn_status wn_config_set_attention(wn_context *ctx, const char *where, const char *key, double value,
                                  wn_model_config *config);
/* Is attention's scale 1/sqrt(head_size)? */
bool wn_config_scale_is_plain(const wn_model_config *config);

#endif
