/* The attention mechanisms: each is one file with one struct wn_mechanism. It gives the configuration keys (and with
 * them parsing, range checks, help and config.json), a check of the configuration, the arrays (and with them case
 * files, checkpoint tensors and their gradients), what the mechanism sets in the attention operation, and the cases for
 * tests. */
#ifndef WN_ATTENTION_REGISTRY_H
#define WN_ATTENTION_REGISTRY_H

#include "attention/params.h"
#include "base/fields.h"
#include "winnow/attention.h"

struct wn_attention;  /* ops/attention.h */
struct wn_score_kind; /* ops/score.h */
struct wn_score_map;

/* The model's shape, for a check; heads 0: not known yet. */
struct wn_attention_shape {
  int64_t heads, kv_heads, head_size;
};

/* Dimensions, for the shapes of a mechanism's arrays. */
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
  const char *name; /* its name in case files and in wn_attention_arrays */
  enum wn_array_role role;
  const char *param; /* of a parameter: the tensor's name after "layers.N." (a shared one has no such prefix) */
  bool (*present)(const wn_attention_config *config);
  int (*shape)(const wn_attention_config *config, const struct wn_attention_dims *dims, int64_t shape[4]); /* ndim */
  wn_dtype dtype;                  /* of a result; WN_F32 stands for the call's dtype */
  size_t array, array_gradient;    /* offsets into wn_attention_arrays; a result has no gradient: 0 */
  size_t op, op_gradient;          /* offsets into struct wn_attention; 0: not there */
  const struct wn_score_kind *map; /* instead of these: of the call's map of this kind theta, or, of an input, key */
  /* Of a parameter: its first value (NULL: 0), random when init_std > 0. After each step a ratio is clamped to [0,1]
   * and a positive one to 0 and above; neither decays. */
  double (*init)(const wn_attention_config *config);
  double init_std;
  enum wn_param_range range;
  double neutral; /* the value that a model without the mechanism starts with when it is adapted (docs/adapt.md) */
  bool (*is_scheduled)(const wn_attention_config *config); /* does training set it, from 0 to 1? NULL: no */
};

/* How the model computes an array of role INPUT from its layer's input x, for every token: y = transform(x w^T + b);
 * or, with a hidden layer, y = transform(silu(x v^T + a) w^T + b). Or from keys, each key-value head by a network of
 * its own on its key k before rotation and after it, y = transform(gelu([rms(k) r; rms(R k) s] v^T + a) w^T + b). */
enum wn_input_transform {
  WN_INPUT_LINEAR,
  WN_INPUT_SIGMOID,
  WN_INPUT_LOG_SIGMOID,
  WN_INPUT_LOG_SIGMOID_SUMS /* the running sum of these over the tokens of a sequence */
};
enum wn_input_source { WN_INPUT_OF_NOTHING, WN_INPUT_OF_QUERIES, WN_INPUT_OF_KEYS };
struct wn_mechanism_input {
  const char *array;  /* the name of the array, one of the mechanism's */
  const char *weight; /* names after "layers.N.": w [heads*size, C], initialised as projections are, */
  const char *bias;   /* and b [heads*size]; or NULL */
  int64_t (*hidden)(const wn_attention_config *config); /* units of the hidden layer; 0 or NULL: there is none */
  const char *hidden_weight; /* v [hidden,C]; random also when a model is adapted; w is then [heads*size,hidden] */
  const char *hidden_bias;   /* a [hidden] */
  bool (*from_keys)(const wn_attention_config *config); /* of one mechanism, which then has a hidden layer, and an entry
                                                           per key; v is [heads*hidden,2D]. NULL: no */
  const char *key_gain;                                 /* r and s [2D] */
  int64_t (*heads)(const wn_attention_config *config, const struct wn_attention_dims *dims);
  int64_t (*size)(const wn_attention_config *config, const struct wn_attention_dims *dims); /* NULL: 1 */
  bool of_keys;    /* true: one entry per key, also for keys of a cache or of earlier blocks; false: one per query */
  bool before_out; /* where files have its tensors; true: before attn.out.weight; false: after ffn.out.bias */
  enum wn_input_transform transform;
  double bias_init; /* the value that the bias starts with */
  /* Of gates with a loss that asks for less of what they keep (wn_gate_share, `ages` or not): its coefficient, and the
   * share that it lets stay, 0 to 1 (0: it asks for ever less, and training raises the coefficient; else the share
   * falls from 1 in training). NULL: there is none. */
  bool kept_by_age;
  void (*kept_loss)(const wn_attention_config *config, double *coefficient, double *keep);
  /* Of gates: what x w^T + b is divided by before the transform, and whether training adds noise to it first (wn_noise;
   * one mechanism may have noise). NULL: 1, none. */
  void (*relaxed)(const wn_attention_config *config, double *temperature, bool *noise);
  double (*floor)(const wn_attention_config *config); /* of a gate: the least that it can be. NULL: 0 */
  size_t strides; /* offset of its struct wn_stride in struct wn_attention; unused for a map's */
  /* When a model without the mechanism is adapted: w starts at 0 and b at bias_neutral, or w stays random, or w is
   * copied from the model's query or key projection (`source`), from head source_head of each of `heads` groups. At
   * bias_neutral a sigmoid has no slope to learn by: a ceiling on b falls from there to bias_adapted, over
   * train.strength_steps. */
  double bias_neutral, bias_adapted;
  enum wn_input_source source;
  int64_t (*source_head)(const wn_attention_config *config);
};

/* The least cap of soft-capping, for attention's logits and the model's: 1/cap is still far from a float's overflow. */
#define WN_SOFTCAP_LEAST 1e-6

/* Sets an array's pointer and its gradient's in a call. */
void wn_mechanism_bind(const struct wn_mechanism_array *array, const void *value, void *gradient,
                       struct wn_attention *out);
/* The same of the gradient alone. */
void wn_mechanism_bind_gradient(const struct wn_mechanism_array *array, void *gradient, struct wn_attention *out);
/* Where a call has the strides of an input's array. */
struct wn_stride *wn_mechanism_strides(const struct wn_mechanism_input *input, const struct wn_mechanism_array *array,
                                       struct wn_attention *out);

/* The offset of a field's pointer. */
#define WN_ARRAY_AT(field) offsetof(wn_attention_arrays, field)
#define WN_OP_AT(field) offsetof(struct wn_attention, field)
/* A row of an array and its gradient, `name` and d`name` in wn_attention_arrays; last its shape, and what else there
 * is: WN_ARRAY_ROW(INPUT, zt, span.z, span.dz, shape_zt, .present = is_dynamic). */
#define WN_ARRAY_ROW(role_, name_, op_, op_gradient_, ...)                                                             \
  {                                                                                                                    \
    .name = #name_, .role = WN_ARRAY_##role_, .array = WN_ARRAY_AT(name_), .array_gradient = WN_ARRAY_AT(d##name_),    \
    .op = WN_OP_AT(op_), .op_gradient = WN_OP_AT(op_gradient_), .shape = __VA_ARGS__                                   \
  }
/* In an entry: its fields, arrays or inputs, and how many there are. */
#define WN_MECHANISM_TABLE(what, rows) .what##s = (rows), .what##_count = sizeof(rows) / sizeof *(rows)

struct wn_mechanism {
  const char *name;    /* "selective" */
  const char *summary; /* one line, with the paper */
  uint32_t terms;      /* the terms of struct wn_attention that it turns on: WN_TERM_ bits (ops/terms.h) */
  const struct wn_score_kind *score; /* a score term of its own (ops/score.h); or NULL */
  const struct wn_field *fields;     /* offsets are into wn_attention_config, or into its own settings if it has some */
  int field_count;
  size_t settings; /* size of its own struct of settings; 0: its keys are members of wn_attention_config */
  void (*init)(wn_attention_config *config); /* its defaults, on a zeroed struct; NULL: zeros */
  bool (*is_enabled)(const wn_attention_config *config);
  /* Checks what ranges of single keys cannot express. `where` names the file in messages. */
  wn_status (*check)(wn_context *ctx, const char *where, const wn_attention_config *config,
                     const struct wn_attention_shape *shape);
  /* Sets its terms in the operation. out->H and out->Hkv are set before. layer: for patterns over the layers; -1:
   * ignore patterns. */
  void (*fill)(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out);
  const struct wn_mechanism_array *arrays;
  int array_count;
  const struct wn_mechanism_input *inputs; /* one for each array of role INPUT */
  int input_count;
  void (*layout)(const struct wn_attention_dims *dims,
                 struct wn_attention *out); /* sets the strides of contiguous arrays */
  const char *const *cases;                 /* JSON of "attention" objects that exercise it, NULL-terminated */
  /* A key and its value with which the mechanism starts without effect in a model that is adapted. Value NULL: the
   * model's context. Key NULL: none is needed, or there is no such start. */
  const char *adapt_key, *adapt_value;
};

/* All mechanisms. Their order is that of configuration keys, arrays and score maps. */
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
  X(forget)                                                                                                            \
  X(write)                                                                                                             \
  X(fade)                                                                                                              \
  X(softcap)                                                                                                           \
  X(off_by_one)                                                                                                        \
  X(gate)
#define WN_MECHANISM_DECLARE(name) extern const struct wn_mechanism wn_mechanism_##name;
WN_MECHANISMS(WN_MECHANISM_DECLARE)
/* One more mechanism, for a test that brings its own; else NULL. */
extern const struct wn_mechanism *wn_mechanism_of_test;
#define WN_MECHANISMS_MAX 32
int wn_mechanism_count(void);
const struct wn_mechanism *wn_mechanism_at(int i);

/* A mechanism's own settings in a configuration, zeroed before `init`: WN_MECHANISM_SETTINGS(NAME) defines NAME_of,
 * which returns its struct NAME_settings, and NAME_set, which returns it to be changed. */
#define WN_MECHANISM_NUMBER(name) WN_MECHANISM_##name,
enum { WN_MECHANISMS(WN_MECHANISM_NUMBER) WN_MECHANISM_own /* of a test */ };
#define WN_MECHANISM_SETTINGS_BYTES (sizeof((wn_attention_config *)0)->settings[0])
#define WN_MECHANISM_SETTINGS(name)                                                                                    \
  _Static_assert(sizeof(struct name##_settings) <= WN_MECHANISM_SETTINGS_BYTES, "widen wn_attention_config.settings"); \
  __attribute__((unused)) static inline struct name##_settings *name##_set(wn_attention_config *config) {              \
    return (void *)config->settings[WN_MECHANISM_##name];                                                              \
  }                                                                                                                    \
  static inline const struct name##_settings *name##_of(const wn_attention_config *config) {                           \
    return (const void *)config->settings[WN_MECHANISM_##name];                                                        \
  }
/* The name of a configuration's first term that lacks one of the traits; NULL: all terms have them. */
const char *wn_attention_config_lacks(const wn_attention_config *config, uint32_t traits);
/* The name of a configuration's first term that is not in `served`, a mask of WN_TERM_ bits; NULL: all are. */
const char *wn_attention_config_unserved(const wn_attention_config *config, uint32_t served);

/* Parameter i among the parameters of one role of all mechanisms. Mechanisms that are off count, so that i means the
 * same for every configuration. NULL past the last. *present: does this configuration have it? */
const struct wn_mechanism_array *wn_mechanism_parameter(enum wn_array_role role, int i,
                                                        const wn_attention_config *config, bool *present);

/* The inputs of the mechanisms that are on, in the registry's order. slot: a number that is the same for every
 * configuration. */
struct wn_attention_input {
  int slot;
  const struct wn_mechanism_input *how;
  const struct wn_mechanism_array *array;
  int64_t heads, size, width; /* width: heads * size numbers per token */
  int64_t hidden;             /* units of its hidden layer, or 0; from keys, of the layers of all heads */
  int64_t groups;             /* networks side by side: from keys one for each head, else 1 */
  bool from_keys;
};
int wn_attention_inputs(const wn_attention_config *config, const struct wn_attention_dims *dims,
                        struct wn_attention_input out[WN_MECHANISM_INPUTS_MAX]);
/* The name of an input array with entries per key that caches do not keep, or NULL. (Caches keep selective
 * attention's, and score maps'.) */
const char *wn_attention_input_not_cached(const wn_attention_config *config);

/* The field groups of all mechanisms, for a wn_attention_config at offset `base`; returns how many (at most
 * WN_MECHANISMS_MAX). prefix is borrowed. */
int wn_attention_field_groups(const char *prefix, size_t base, struct wn_field_group *out);
wn_status wn_attention_config_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                                    const struct wn_attention_shape *shape);

/* wn_attention_config_parse, but keys that `text` lacks stay as they are. */
wn_status wn_attention_config_add(wn_context *ctx, const char *text, wn_attention_config *out);

/* Sets the terms of the operation that the configuration decides, for layer `layer` (-1: patterns over the layers are
 * ignored): the scale (1/sqrt(head_size) unless given), which terms are on, and their numbers. out->H and out->Hkv are
 * set before. The caller sets the arrays, dropout's seed, and dropout.p = 0 outside training. */
void wn_attention_terms(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out);

/* In training no map is idle. */
void wn_attention_in_training(struct wn_attention *call);

/* The operation of a public call, checked. The plan in run.c adds the arrays that backward needs. */
wn_status wn_attention_call(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays,
                            struct wn_attention *out);

/* Do rows see keys that are no tokens: learned sinks, or the key of softmax off by one? */
bool wn_attention_has_sinks(const wn_attention_config *config);
/* Are outputs gated? */
bool wn_attention_has_gate(const wn_attention_config *config);

/* The configuration's keyed maps (ops/score.h), in the order of a call's; returns how many. */
int64_t wn_attention_keyed(const wn_attention_config *config, int64_t heads, int64_t kv_heads,
                           struct wn_score_map *out /* [WN_SCORE_MAPS_MAX] */);

/* Number of selections F in a layer: 0 without selective attention, else 1 or the number of key-value heads. */
int64_t wn_attention_selections(const wn_attention_config *config, int64_t kv_heads);

/* Is a pattern of '1' and '0', repeated over the layers, on for this layer? Always for "" and for layer -1. */
bool wn_layer_pattern_has(const char *pattern, int64_t layer);
wn_status wn_layer_pattern_check(wn_context *ctx, const char *where, const char *key, const char *pattern);

#endif
