/* Reading and writing single keys of Hugging Face transformers' config.json
 * (https://github.com/huggingface/transformers, src/transformers/models). families/ use these functions for their
 * configurations. Keys that a class of transformers does not read have no effect there, and none here. A missing key
 * has the class's default. */
#ifndef WN_FORMATS_HF_KEYS_H
#define WN_FORMATS_HF_KEYS_H

#include <jansson.h>
#include "winnow/model.h"

/* ---- reading ---- */

struct wn_hf_keys {
  wn_context *ctx;
  const char *where;    /* the file, for messages */
  const json_t *object; /* NULL: as if it had no keys */
};

/* NULL if the key is missing or null. */
const json_t *wn_hf_find(const struct wn_hf_keys *keys, const char *key);
/* Reads a whole number of at least 0. otherwise: the value if the key is missing; negative: it must not be missing. */
wn_status wn_hf_int(const struct wn_hf_keys *keys, const char *key, int64_t otherwise, int64_t *out);
/* Reads a whole number that must be there and at least 1. */
wn_status wn_hf_count(const struct wn_hf_keys *keys, const char *key, int64_t *out);
wn_status wn_hf_real(const struct wn_hf_keys *keys, const char *key, double otherwise, double *out);
wn_status wn_hf_flag(const struct wn_hf_keys *keys, const char *key, bool otherwise, bool *out);
/* Refuses a flag that is true; why: the end of the message. */
wn_status wn_hf_not(const struct wn_hf_keys *keys, const char *key, const char *why);
/* *out is borrowed from the object. */
wn_status wn_hf_text(const struct wn_hf_keys *keys, const char *key, const char *otherwise, const char **out);
/* Reads what wn_hf_put_sizes writes, and the vocabulary, the context and the norm's epsilon. kv_heads: used if
 * num_key_value_heads is missing; negative: it must not be missing; 0: num_attention_heads. head_size: used if head_dim
 * is missing. */
wn_status wn_hf_sizes(const struct wn_hf_keys *keys, int64_t kv_heads, int64_t head_size, wn_model_config *config);
/* Refuses keys that change what is computed in some class, except those in `read` (NULL-terminated, or NULL), which the
 * family reads itself. */
wn_status wn_hf_refuse(const struct wn_hf_keys *keys, const char *const *read);

/* Reads the rotary positions: rope_theta (`theta` if it is missing), rope_scaling, rope_parameters. */
wn_status wn_hf_rope(const struct wn_hf_keys *keys, double theta, wn_model_config *config);
/* The default rope_theta of most classes. */
#define WN_HF_ROPE_THETA 10000.0
/* The same from one object (named `key` in messages); theta and partial are used where it has no rope_theta and
 * partial_rotary_factor. For llama3 and yarn transformers takes original_max_position_embeddings from the whole file,
 * `outer`, if it is there; NULL: only from the object itself. */
wn_status wn_hf_rope_object(const struct wn_hf_keys *inside, const struct wn_hf_keys *outer, const char *key,
                            double theta, double partial, wn_model_config *config);

/* Sets a sliding window of `window` tokens in the layers that layer_types lists; if that key is missing, in those for
 * which `windowed` is true. */
wn_status wn_hf_window(const struct wn_hf_keys *keys, int64_t window, bool (*windowed)(const void *user, int64_t layer),
                       const void *user, wn_model_config *config);

/* ---- writing ---- */

struct wn_hf_object {
  json_t *json;
  bool failed; /* memory ran out: something is missing */
};
/* Takes over the reference to value. */
void wn_hf_put(struct wn_hf_object *object, const char *key, json_t *value);
/* Writes width, layers, heads and head sizes under the names of Llama's config.json. */
void wn_hf_put_sizes(struct wn_hf_object *object, const wn_model_config *config);
/* The value of rope_scaling; JSON null for plain angles, NULL if memory ran out. */
json_t *wn_hf_rope_scaling(const wn_model_config *config);
/* Writes layer_types: which layers have the window. */
void wn_hf_put_layer_types(struct wn_hf_object *object, const wn_model_config *config);

#endif
