/* The keys of a GGUF file that describe a model, one by one ("llama.context_length", under its architecture's name):
 * what families/ read and write their configurations with. */
#ifndef WN_FORMATS_GGUF_KEYS_H
#define WN_FORMATS_GGUF_KEYS_H

#include "io/tensors.h"
#include "winnow/model.h"

/* ---- reading ---- */

enum { WN_GGUF_KEY_BYTES = 160 };

struct wn_gguf_keys {
  wn_context *ctx;
  const char *where, *architecture;
  const wn_gguf *file;
  const struct wn_tensors *tensors;
};

/* The architecture's key, its whole name in `full`; NULL when absent. */
const wn_gguf_value *wn_gguf_keys_find(const struct wn_gguf_keys *keys, const char *key, char full[WN_GGUF_KEY_BYTES]);
/* Whole numbers of at least 0, or a list of equal ones (what some programs write for layers that could differ);
 * `otherwise` where the key is missing, which negative means that it must not be. */
wn_status wn_gguf_keys_int(const struct wn_gguf_keys *keys, const char *key, int64_t otherwise, int64_t *out);
wn_status wn_gguf_keys_real(const struct wn_gguf_keys *keys, const char *key, double otherwise, double *out);
/* A string without NUL into out, cut. */
bool wn_gguf_keys_text(const wn_gguf_value *value, char *out, size_t bytes);
bool wn_gguf_keys_has_tensor(const struct wn_gguf_keys *keys, const char *name);
/* Refuses keys of the architecture that are neither known to all nor in `more` (NULL-terminated, or NULL): one that is
 * not known might change what is computed. And what is no decoder, or one that no family here is. */
wn_status wn_gguf_keys_refuse(const struct wn_gguf_keys *keys, const char *const *more);
/* The sizes that every family has; the vocabulary's and whether the output is tied are what the tensors say. */
wn_status wn_gguf_keys_sizes(const struct wn_gguf_keys *keys, wn_model_config *config);
/* rope.*, and the tensor of factors. */
wn_status wn_gguf_keys_rope(const struct wn_gguf_keys *keys, wn_model_config *config);

/* ---- writing: the key "<architecture>.<key>" ---- */

struct wn_gguf_out {
  wn_gguf_values *values;
  const char *architecture;
};
void wn_gguf_out_int(const struct wn_gguf_out *out, const char *key, int64_t value);
void wn_gguf_out_real(const struct wn_gguf_out *out, const char *key, double value);
void wn_gguf_out_text(const struct wn_gguf_out *out, const char *key, const char *value);
void wn_gguf_out_sizes(const struct wn_gguf_out *out, const wn_model_config *config);
void wn_gguf_out_rope(const struct wn_gguf_out *out, const wn_model_config *config);

#endif
