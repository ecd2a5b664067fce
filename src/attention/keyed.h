/* What mechanisms share whose term is a number of each key (ops/score.h, a keyed map): the number is computed from the
 * layer's input of the key's token, one for each key-value head, or one for each of its query heads. */
#ifndef WN_ATTENTION_KEYED_H
#define WN_ATTENTION_KEYED_H

#include "attention/registry.h"
#include "ops/attention.h"
#include "ops/terms.h"

static inline int64_t keyed_heads(const wn_attention_config *c, const struct wn_attention_dims *d) {
  (void)c;
  return d->Hkv;
}
static inline void keyed_layout(const struct wn_score_kind *kind, const struct wn_attention_dims *d,
                                struct wn_attention *out) {
  for (struct wn_score_map *t = out->map; t < out->map + out->maps; t++)
    if (t->kind == kind)
      t->s_key = (struct wn_stride){.b = d->T * d->Hkv * t->gates, .t = d->Hkv * t->gates, .h = t->gates};
}

/* An entry's array NAME, the input that computes it, and its layout. bias: the value that the gate's bias starts with;
 * when a model is adapted it is 20, and sigmoid(20) = 1 - 2e-9, then 7: half of a forget gate's or a retention gate's
 * key is left after 760 tokens. Last what the input has besides. */
#define WN_KEYED_INPUT(NAME, KIND, TRANSFORM, BIAS, ...)                                                               \
  static int64_t NAME##_size(const wn_attention_config *c, const struct wn_attention_dims *d) {                        \
    struct wn_attention call = {.H = d->H, .Hkv = d->Hkv};                                                             \
    NAME##_fill(c, -1, d->D, &call);                                                                                   \
    return call.map[0].gates;                                                                                          \
  }                                                                                                                    \
  static int NAME##_shape(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {         \
    shape[0] = d->B, shape[1] = d->T, shape[2] = d->Hkv * NAME##_size(c, d);                                           \
    return 3;                                                                                                          \
  }                                                                                                                    \
  static const struct wn_mechanism_array NAME##_arrays[] = {{.name = #NAME,                                            \
                                                             .role = WN_ARRAY_INPUT,                                   \
                                                             .shape = NAME##_shape,                                    \
                                                             .array = WN_ARRAY_AT(NAME),                               \
                                                             .array_gradient = WN_ARRAY_AT(d##NAME),                   \
                                                             .map = &(KIND)}};                                         \
  static const struct wn_mechanism_input NAME##_inputs[] = {{.array = #NAME,                                           \
                                                             .weight = "attn." #NAME ".weight",                        \
                                                             .bias = "attn." #NAME ".bias",                            \
                                                             .heads = keyed_heads,                                     \
                                                             .size = NAME##_size,                                      \
                                                             .of_keys = true,                                          \
                                                             .transform = (TRANSFORM),                                 \
                                                             .bias_init = (BIAS),                                      \
                                                             .bias_neutral = 20,                                       \
                                                             .bias_adapted = 7,                                        \
                                                             __VA_ARGS__}};                                            \
  static void NAME##_layout(const struct wn_attention_dims *d, struct wn_attention *out) {                             \
    keyed_layout(&(KIND), d, out);                                                                                     \
  }
#define WN_KEYED_ENTRY(NAME, KIND)                                                                                     \
  .score = &(KIND), .terms = WN_TERM_KEYED, WN_MECHANISM_TABLE(field, NAME##_fields),                                  \
  .settings = sizeof(struct NAME##_settings), .is_enabled = NAME##_is_enabled, .fill = NAME##_fill,                    \
  WN_MECHANISM_TABLE(array, NAME##_arrays), WN_MECHANISM_TABLE(input, NAME##_inputs), .layout = NAME##_layout,         \
  .cases = NAME##_cases
enum { KEYED_TRAITS = WN_TRAIT_HALF | WN_TRAIT_BACKWARD };

#endif
