/* The attention mechanisms: one file and one row each. A row gives its configuration keys (and with them parsing,
 * range checks, help and config.json), its check, its arrays (and with them case files, checkpoint tensors and their
 * gradients), what it puts into the attention operation, and the cases that the tests draw on. */
#ifndef WN_ATTENTION_REGISTRY_H
#define WN_ATTENTION_REGISTRY_H

#include "attention/params.h"
#include "base/fields.h"
#include "winnow/attention.h"

struct wn_attention;  /* ops/attention.h */
struct wn_score_kind; /* ops/score.h */

/* The model's side of a check; heads 0: not known yet. */
struct wn_attention_shape {
  int64_t heads, kv_heads, head_size;
};

/* An array of a mechanism in addition to q, k, v, y. */
struct wn_attention_dims {
  int64_t B, T, H, Hkv, D;
};
enum wn_array_role {
  WN_ARRAY_INPUT,     /* differentiable, computed by the model from its layer's input or given in a case */
  WN_ARRAY_PARAMETER, /* a parameter tensor of each layer */
  WN_ARRAY_SHARED,    /* a parameter tensor of the model, used by every layer */
  WN_ARRAY_RESULT
};
struct wn_mechanism_array {
  const char *name; /* in case files and in wn_attention_arrays */
  enum wn_array_role role;
  const char *param; /* parameters: the tensor's name after "layers.N." (without it when shared) */
  bool (*present)(const wn_attention_config *config);
  int (*shape)(const wn_attention_config *config, const struct wn_attention_dims *dims, int64_t shape[4]); /* ndim */
  wn_dtype dtype;               /* of results that do not have the call's; WN_F32 stands for the call's */
  size_t array, array_gradient; /* offsets into wn_attention_arrays; results: no gradient, 0 */
  size_t op, op_gradient;       /* offsets into struct wn_attention; 0: not there */
  /* Parameters: the value they start with (NULL: 0), random when init_std > 0; ratios are clamped to [0,1] after each
   * step and never decayed, nor are positive ones, kept at 0 or above. */
  double (*init)(const wn_attention_config *config);
  double init_std;
  enum wn_param_range range;
  double neutral; /* the value that a model without the mechanism starts with when it is adapted (docs/adapt.md) */
  bool (*is_scheduled)(const wn_attention_config *config); /* training sets it, from 0 to 1; NULL: it never does */
};

/* How the model computes an array of role INPUT from its layer's input x, for every token: y = transform(x w^T + b). */
enum wn_input_transform { WN_INPUT_LINEAR, WN_INPUT_SIGMOID };
enum wn_input_source { WN_INPUT_OF_NOTHING, WN_INPUT_OF_QUERIES, WN_INPUT_OF_KEYS };
struct wn_mechanism_input {
  const char *array;  /* its row among the mechanism's arrays */
  const char *weight; /* tensors of every layer, after "layers.N.": [heads*size, C], which starts as projections do, */
  const char *bias;   /* and [heads*size]; or NULL */
  int64_t (*heads)(const wn_attention_config *config, const struct wn_attention_dims *dims);
  int64_t (*size)(const wn_attention_config *config, const struct wn_attention_dims *dims); /* NULL: 1 */
  bool of_keys;    /* a row for each key, also for those of a cache or of earlier blocks; else one for each query */
  bool before_out; /* the tensors' place in files: before attn.out.weight, else after ffn.out.bias */
  enum wn_input_transform transform;
  double bias_init; /* the value that the bias starts with */
  size_t strides;   /* of its struct wn_stride in struct wn_attention */
  /* When a model without the mechanism is adapted the weights start at 0 and the bias at bias_neutral; or the weights
   * stay random, or are rows of the model's own projections: those of head source_head of each of `heads` groups. */
  double bias_neutral;
  enum wn_input_source source;
  int64_t (*source_head)(const wn_attention_config *config);
};

/* The least cap of soft-capping, of attention's logits and of the model's: its inverse is a float with room above. */
#define WN_SOFTCAP_LEAST 1e-6

/* Where a field's pointer lies. */
#define WN_ARRAY_AT(field) offsetof(wn_attention_arrays, field)
#define WN_OP_AT(field) offsetof(struct wn_attention, field)

struct wn_mechanism {
  const char *name;                  /* "selective" */
  const char *summary;               /* one line, with the paper */
  uint32_t terms;                    /* those of struct wn_attention that it turns on: WN_TERM_ bits (ops/terms.h) */
  const struct wn_score_kind *score; /* a term of its own; or NULL */
  const struct wn_field *fields;     /* offsets into wn_attention_config, or into the settings where there are some */
  int field_count;
  size_t settings; /* bytes of its own struct of settings, 0: its keys are members of wn_attention_config */
  void (*init)(wn_attention_config *config); /* its defaults, on a zeroed struct; NULL: zeros */
  bool (*is_enabled)(const wn_attention_config *config);
  /* What ranges of single keys cannot say. `where` stands for the file. */
  wn_status (*check)(wn_context *ctx, const char *where, const wn_attention_config *config,
                     const struct wn_attention_shape *shape);
  /* out->H and out->Hkv are set. layer: for patterns over the layers; -1: as if in force. */
  void (*fill)(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out);
  const struct wn_mechanism_array *arrays;
  int array_count;
  const struct wn_mechanism_input *inputs; /* a row for each array of role INPUT */
  int input_count;
  void (*layout)(const struct wn_attention_dims *dims, struct wn_attention *out); /* strides of contiguous arrays */
  const char *const *cases; /* JSON of "attention" objects that exercise it, NULL-terminated */
  /* The key under which it starts without effect in a model that is adapted, and its value; a value of NULL: the
   * model's context. A key of NULL: none is needed, or no start is without effect. */
  const char *adapt_key, *adapt_value;
};

/* The list: a file each. Its order is that of keys, arrays and score maps. */
#define WN_MECHANISMS(X)                                                                                               \
  X(dense)                                                                                                             \
  X(selective)                                                                                                         \
  X(span)                                                                                                              \
  X(relative)                                                                                                          \
  X(window)                                                                                                            \
  X(strided)                                                                                                           \
  X(square_root)                                                                                                       \
  X(sinks)                                                                                                             \
  X(exclusive)                                                                                                         \
  X(threshold)                                                                                                         \
  X(buckets)                                                                                                           \
  X(alibi)                                                                                                             \
  X(softcap)                                                                                                           \
  X(off_by_one)                                                                                                        \
  X(gate)
#define WN_MECHANISM_DECLARE(name) extern const struct wn_mechanism wn_mechanism_##name;
WN_MECHANISMS(WN_MECHANISM_DECLARE)
/* One more row, for a test that brings a mechanism of its own; NULL. */
extern const struct wn_mechanism *wn_mechanism_of_test;
#define WN_MECHANISMS_MAX 32
int wn_mechanism_count(void);
const struct wn_mechanism *wn_mechanism_at(int i);

/* A mechanism's settings in a configuration: zeroed before its init. */
const void *wn_mechanism_settings(const struct wn_mechanism *m, const wn_attention_config *config);
static inline void *wn_mechanism_settings_of(const struct wn_mechanism *m, wn_attention_config *config) {
  return (void *)(uintptr_t)wn_mechanism_settings(m, config);
}
/* Defines NAME_of: the settings, a struct NAME_settings, of mechanism NAME. */
#define WN_MECHANISM_SETTINGS(name)                                                                                    \
  static const struct name##_settings *name##_of(const wn_attention_config *config) {                                  \
    return wn_mechanism_settings(&wn_mechanism_##name, config);                                                        \
  }
bool wn_mechanism_settings_fit(void);
/* The name of the first term of a configuration without one of the traits; NULL: all have them. */
const char *wn_attention_config_lacks(const wn_attention_config *config, uint32_t traits);
/* The name of its first term that is not in `served`, a mask of WN_TERM_ bits; NULL: all are. */
const char *wn_attention_config_unserved(const wn_attention_config *config, uint32_t served);

/* Parameter i of all mechanisms' parameters of one role, in force or not, so that i means the same for every
 * configuration; NULL past the last. *present: is it there in this one? */
const struct wn_mechanism_array *wn_mechanism_parameter(enum wn_array_role role, int i,
                                                        const wn_attention_config *config, bool *present);

/* Inputs that are in force, in the registry's order. slot: the same for every configuration. */
struct wn_attention_input {
  int slot;
  const struct wn_mechanism_input *how;
  const struct wn_mechanism_array *array;
  int64_t heads, size, width; /* width: heads * size numbers per token */
};
int wn_attention_inputs(const wn_attention_config *config, const struct wn_attention_dims *dims,
                        struct wn_attention_input out[WN_MECHANISM_INPUTS_MAX]);
/* An input of keys that caches do not keep (they keep selective attention's): its array's name, or NULL. */
const char *wn_attention_input_not_cached(const wn_attention_config *config);

/* The groups of all mechanisms over a wn_attention_config at `base`; returns how many (at most WN_MECHANISMS_MAX).
 * prefix is borrowed. */
int wn_attention_field_groups(const char *prefix, size_t base, struct wn_field_group *out);
wn_status wn_attention_config_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                                    const struct wn_attention_shape *shape);

/* Fills the terms that come from the configuration, for layer `layer` (-1: patterns over the layers are ignored):
 * scale (1/sqrt(head_size) unless given), which terms are on and their numbers. out->H and out->Hkv are set before;
 * arrays and what differs between training and its opposite (dropout.p, set here, and its seed) stay the
 * caller's to change. */
void wn_attention_terms(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out);

/* The operation of a public call, checked; the plan of run.c adds what it keeps for backward. */
wn_status wn_attention_call(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays,
                            struct wn_attention *out);

/* Has a row keys that are no tokens: learned sinks, or the one of softmax off by one? */
bool wn_attention_has_sinks(const wn_attention_config *config);
/* Are outputs gated? */
bool wn_attention_has_gate(const wn_attention_config *config);

/* Selections F of a layer: 0 without selective attention, else 1 or one for each key-value head. */
int64_t wn_attention_selections(const wn_attention_config *config, int64_t kv_heads);

/* Is a pattern of '1' and '0', repeated over the layers, on for this one? "" and layer -1: yes. */
bool wn_layer_pattern_has(const char *pattern, int64_t layer);
wn_status wn_layer_pattern_check(wn_context *ctx, const char *where, const char *key, const char *pattern);

#endif
