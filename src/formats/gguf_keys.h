/* Reading and writing single keys of a GGUF file that describe a model ("llama.context_length", under the
 * architecture's name). families/ use these functions for their configurations. */
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

/* Reads a whole number of at least 0, or a list of equal numbers (some programs write one per layer). otherwise: the
 * value if the key is missing; negative: it must not be missing. */
wn_status wn_gguf_keys_int(const struct wn_gguf_keys *keys, const char *key, int64_t otherwise, int64_t *out);
wn_status wn_gguf_keys_real(const struct wn_gguf_keys *keys, const char *key, double otherwise, double *out);
/* Copies a string into out, cut if need be. False: it is no string, or contains NUL. */
bool wn_gguf_keys_text(const wn_gguf_value *value, char *out, size_t bytes);
bool wn_gguf_keys_has_tensor(const struct wn_gguf_keys *keys, const char *name);
/* Refuses keys of the architecture that are neither common nor in `more` (NULL-terminated, or NULL), since an unknown
 * key might change what is computed. Also refuses models that are no decoders, or have a form that no family here
 * has. */
wn_status wn_gguf_keys_refuse(const struct wn_gguf_keys *keys, const char *const *more);
/* Reads the sizes that every family has. The tensors give the vocabulary's size and whether the output is tied. */
wn_status wn_gguf_keys_sizes(const struct wn_gguf_keys *keys, wn_model_config *config);
/* Reads the keys rope.*, and looks for the tensor of factors. */
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
