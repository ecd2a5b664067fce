/* The model's configuration: its table of keys and its file. */
#ifndef WN_MODEL_CONFIG_H
#define WN_MODEL_CONFIG_H

#include "winnow/model.h"

struct wn_field_group;

#define WN_MODEL_FIELD_GROUPS_MAX 33
/* The field groups of a wn_model_config at offset `base`: its own keys under `prefix` ("" or "model"), attention's
 * under `attention_prefix` ("attention" or "model.attention"). Returns how many. Prefixes are borrowed. */
int wn_model_field_groups(const char *prefix, const char *attention_prefix, size_t base, struct wn_field_group *out);

/* Loads a checkpoint's config.json; the result is resolved. */
wn_status wn_model_config_load(wn_context *ctx, const char *path, wn_model_config *out);
/* The same from JSON text; `where` names the file in messages. */
wn_status wn_model_config_parse(wn_context *ctx, const char *where, const char *text, size_t bytes,
                                wn_model_config *out);
/* Writes it (temporary file, sync, rename). */
wn_status wn_model_config_save(wn_context *ctx, const char *path, const wn_model_config *config);

/* The longest original context that longrope allows; the model's rotary table always covers it. */
enum { WN_ROPE_LONG_CONTEXT = 32768 };
/* Is a text of `tokens` tokens rotated by longrope's second set of divisors? */
static inline bool wn_rope_is_long(const wn_model_config *c, int64_t tokens) {
  return c->rope_scaling.type == WN_ROPE_LONG && tokens > c->rope_scaling.context;
}

static inline bool wn_norm_is_post(const wn_model_config *c) {
  return c->norm_place == WN_NORM_POST;
}
/* Are there norms on the branches' outputs? And before the branches? */
static inline bool wn_norm_on_branch(const wn_model_config *c) {
  return c->norm_place == WN_NORM_BOTH || c->norm_place == WN_NORM_BRANCH;
}
static inline bool wn_norm_before_branch(const wn_model_config *c) {
  return c->norm_place == WN_NORM_PRE || c->norm_place == WN_NORM_BOTH;
}
static inline bool wn_ffn_has_gate(const wn_model_config *c) {
  return c->ffn == WN_FFN_SWIGLU || c->ffn == WN_FFN_GEGLU;
}
/* Columns of the feed-forward's first projection. */
static inline int64_t wn_ffn_in_width(const wn_model_config *c) {
  return wn_ffn_has_gate(c) ? 2 * c->ffn_width : c->ffn_width;
}
/* The encoder's configuration, in the form of a model's. Only an encoder's configuration is bidirectional. */
void wn_encoder_config(const wn_model_config *config, wn_model_config *out);
static inline bool wn_is_encoder(const wn_model_config *c) {
  return c->attention.bidirectional;
}

/* The first mechanism whose gates have a loss that asks for less, noise in training, or a hidden layer
 * (attention/registry.h), as its array is called; NULL: there is none (inputs.c). */
enum wn_gates_have { WN_GATES_LOSS, WN_GATES_NOISE, WN_GATES_HIDDEN };
const char *wn_model_gates_with(const wn_model_config *config, enum wn_gates_have what);

/* Can the model have segment recurrence? */
wn_status wn_model_recurrence_check(wn_context *ctx, const char *where, const wn_model_config *config);

#endif
