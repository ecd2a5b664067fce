/* The keys of Hugging Face transformers' config.json, one by one: what families/ read and write their configurations
 * with (https://github.com/huggingface/transformers, src/transformers/models). Keys that a class of transformers does
 * not read have no effect there and none here; a key that is left out has the class's default. */
#ifndef WN_FORMATS_HF_KEYS_H
#define WN_FORMATS_HF_KEYS_H

#include <jansson.h>
#include "winnow/model.h"

/* ---- reading ---- */

struct wn_hf_keys {
  wn_context *ctx;
  const char *where;    /* the file, for messages */
  const json_t *object; /* NULL: no key is there */
};

/* NULL for a key that is not there, or null. */
const json_t *wn_hf_find(const struct wn_hf_keys *keys, const char *key);
/* Whole numbers of at least 0; `otherwise` where the key is missing, which negative means that it must not be. */
wn_status wn_hf_int(const struct wn_hf_keys *keys, const char *key, int64_t otherwise, int64_t *out);
/* One that must be there and at least 1. */
wn_status wn_hf_count(const struct wn_hf_keys *keys, const char *key, int64_t *out);
wn_status wn_hf_real(const struct wn_hf_keys *keys, const char *key, double otherwise, double *out);
wn_status wn_hf_flag(const struct wn_hf_keys *keys, const char *key, bool otherwise, bool *out);
/* Borrowed from the object. */
wn_status wn_hf_text(const struct wn_hf_keys *keys, const char *key, const char *otherwise, const char **out);
/* Refuses keys that change what is computed in any class, but those in `read` (NULL-terminated, or NULL), which the
 * family reads itself. */
wn_status wn_hf_refuse(const struct wn_hf_keys *keys, const char *const *read);

/* Rotary positions: rope_theta (`theta` where it is nowhere), rope_scaling, rope_parameters. */
wn_status wn_hf_rope(const struct wn_hf_keys *keys, double theta, wn_model_config *config);
/* `theta` of most classes. */
#define WN_HF_ROPE_THETA 10000.0
/* The same from one object of them (`key` in messages), with rope_theta and partial_rotary_factor where it has none.
 * The class takes original_max_position_embeddings of llama3 and yarn from `outer`, the whole file, where that has it;
 * NULL: of several objects each has its own. */
wn_status wn_hf_rope_object(const struct wn_hf_keys *inside, const struct wn_hf_keys *outer, const char *key,
                            double theta, double partial, wn_model_config *config);

/* A sliding window of `window` tokens in the layers of which layer_types says so; where that list is missing, in those
 * that `windowed` names. */
wn_status wn_hf_window(const struct wn_hf_keys *keys, int64_t window, bool (*windowed)(const void *user, int64_t layer),
                       const void *user, wn_model_config *config);

/* ---- writing ---- */

struct wn_hf_object {
  json_t *json;
  bool failed; /* something is not in it */
};
/* Takes the reference to value. */
void wn_hf_put(struct wn_hf_object *object, const char *key, json_t *value);
/* Width, layers, heads and their sizes, by the names that Llama's config.json and its successors' give them. */
void wn_hf_put_sizes(struct wn_hf_object *object, const wn_model_config *config);
/* rope_scaling's value; null for plain angles, NULL out of memory. */
json_t *wn_hf_rope_scaling(const wn_model_config *config);
/* layer_types: which layers have the window. */
void wn_hf_put_layer_types(struct wn_hf_object *object, const wn_model_config *config);

#endif
