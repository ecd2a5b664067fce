/* Parts of our configuration that families read and write by more than an assignment. */
#ifndef WN_FORMATS_CONFIG_SET_H
#define WN_FORMATS_CONFIG_SET_H

#include "winnow/model.h"

/* The window of `window` tokens (0: none) in those layers of which `windowed` says so. */
wn_status wn_config_set_window(wn_context *ctx, const char *where, int64_t window,
                               bool (*windowed)(const void *user, int64_t layer), const void *user,
                               wn_model_config *config);
/* The number of a mechanism of attention by its key ("softcap.cap"), as mechanisms keep their settings to themselves;
 * 0 where there is no such key, and WN_ERR_UNSUPPORTED to set it. */
double wn_config_attention(const wn_model_config *config, const char *key);
wn_status wn_config_set_attention(wn_context *ctx, const char *where, const char *key, double value,
                                  wn_model_config *config);
/* Is attention's scale 1/sqrt(head_size)? */
bool wn_config_scale_is_plain(const wn_model_config *config);

#endif
