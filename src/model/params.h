/* The named table of parameters (params.c): one row per tensor of a model. All tensors lie in one flat array, gradients
 * and optimizer state in arrays of the same layout. A packed matrix has no place in them. */
#ifndef WN_MODEL_PARAMS_H
#define WN_MODEL_PARAMS_H

#include "attention/params.h"
#include "ops/packed.h"
#include "winnow/model.h"

/* The initialisation of a tensor, or of one of its modules. */
enum wn_param_start_kind { WN_START_CONSTANT, WN_START_NORMAL, WN_START_UNIFORM };
struct wn_param_start {
  enum wn_param_start_kind kind;
  double scale; /* by kind: the value; the standard deviation; the bound on both sides of 0 */
};

struct wn_param {
  char name[96]; /* "embed.weight", "layers.3.attn.qkv.weight", ... */
  int ndim;
  int64_t shape[3];
  size_t offset, count;    /* in the flat array, in elements; offset is a multiple of 16; count 0: packed */
  struct wn_packed packed; /* the values, if they are not in the flat array; packed.count 0: they are */
  double init_std;         /* > 0: normal; 0: constant init_value. A rule of "model.init" goes first */
  double init_value;
  struct wn_param_start start[3]; /* of each module */
  int64_t module[3]; /* how many rows each module that shares the tensor has (q, k and v; a gate and what it gates); 0:
                        no more modules */
  bool matrix;       /* a projection inside a layer, as optimizers for hidden matrices (Muon) take them */
  bool decay;        /* weight decay applies (two dimensions and more) */
  /* values are clamped to it after each optimizer step (spans, strengths); such a tensor never decays */
  enum wn_param_range range;
  bool mechanism; /* belongs to an attention mechanism; a model without that mechanism lacks it */
  bool scheduled; /* training sets it (train/adapt_rows.h); it is not learned */
  double neutral; /* of a mechanism: its first value when a model without the mechanism is adapted; NAN: random */
  double adapted; /* where a ceiling on its values falls to from `neutral` in adapting; equal: there is none */
  const struct wn_mechanism_input *projects; /* set if this is the weight of a mechanism's input; or NULL */
  bool packs;                                /* may be packed: a projection or a token table */
};

#define WN_NO_GRADIENT SIZE_MAX
struct wn_param_table {
  struct wn_param *rows;           /* [count] */
  const struct wn_param **by_name; /* [count] the same, sorted */
  int count;
  size_t total; /* elements, with padding */
};
wn_status wn_param_table_create(wn_context *ctx, const wn_model_config *config, struct wn_param_table *out);
void wn_param_table_clear(struct wn_param_table *table);
/* Number of elements of the tensor, packed or not. */
size_t wn_param_elements(const struct wn_param *row);
/* Row index by name, -1 when absent. */
int wn_param_find(const struct wn_param_table *table, const char *name);

/* Slot p of the table. Slots also count tensors that the configuration lacks; row->ndim is 0 for these. With slots a
 * hostile configuration can be checked against a file before memory is allocated for its table. */
int64_t wn_param_slot_count(const wn_model_config *config);
wn_status wn_param_slot(wn_context *ctx, const wn_model_config *config, int64_t p, struct wn_param *row);
/* Checks the packed matrices rows_of_table [table->count] (count 0: not packed) and takes them out of the flat
 * array. */
wn_status wn_param_table_pack(wn_context *ctx, const wn_model_config *config, const struct wn_packed *rows_of_table,
                              struct wn_param_table *table);

/* Where a layer finds its tensors: rows of the table; -1: the configuration has no such tensor. norm1 is the norm at
 * the layer's entry, norm2 the one after the attention. With norms after the additions norm1 is norm2 of the layer
 * before; layer 0 has none. */
struct wn_layer_params {
  int norm1_gain, norm1_shift, qkv_weight, qkv_bias, q_gain, k_gain, out_weight, out_bias;
  int norm2_gain, norm2_shift, in_weight, in_bias, ffn_out_weight, ffn_out_bias;
  int router, shared_in, shared_out, shared_gate, experts; /* expert e has rows experts + 2e and experts + 2e + 1 */
  int post_norm1_gain, post_norm1_shift, post_norm2_gain, post_norm2_shift; /* norms on the two branches' outputs */
  int input_weight[WN_MECHANISM_INPUTS_MAX],
      input_bias[WN_MECHANISM_INPUTS_MAX], /* for the mechanisms' inputs, by slot */
      hidden_weight[WN_MECHANISM_INPUTS_MAX], hidden_bias[WN_MECHANISM_INPUTS_MAX], /* for their hidden layers */
      key_gain[WN_MECHANISM_INPUTS_MAX]; /* and for the norms of keys that they read */
  /* The attention over an encoder's states. */
  int cross_gain, cross_shift, cross_q_weight, cross_q_bias, cross_kv_weight, cross_kv_bias, cross_out_weight,
      cross_out_bias;
  int mechanism[WN_MECHANISM_PARAMETERS_MAX]; /* the mechanisms' parameters of each layer, in the registry's order */
  int shared[WN_MECHANISM_PARAMETERS_MAX];    /* those that all layers share */
};
void wn_layer_params_find(const struct wn_param_table *table, const wn_model_config *config, int64_t l,
                          struct wn_layer_params *out);
/* The same for tensors outside the layers. If the output is tied it is embed's row. With norms after the additions the
 * final norm is the last layer's norm2. */
struct wn_outer_params {
  int embed, pos, embed_gain, embed_shift, rope_factors, rope_short, rope_long, norm_gain, norm_shift, output;
};
void wn_outer_params_find(const struct wn_param_table *table, const wn_model_config *config,
                          struct wn_outer_params *out);

#endif
