/* The named table of parameters (params.c): one row per tensor of a model. All tensors lie in one flat array, gradients
 * and optimizer state in arrays of the same layout; a matrix that is used as a file has it has no place in them. */
#ifndef WN_MODEL_PARAMS_H
#define WN_MODEL_PARAMS_H

#include "attention/params.h"
#include "ops/packed.h"
#include "winnow/model.h"

/* How the values of a tensor, or of one of its modules, start. */
enum wn_param_start_kind { WN_START_CONSTANT, WN_START_NORMAL, WN_START_UNIFORM };
struct wn_param_start {
  enum wn_param_start_kind kind;
  double scale; /* the value; the standard deviation; the bound on both sides of 0 */
};

struct wn_param {
  char name[96]; /* "embed.weight", "layers.3.attn.qkv.weight", ... */
  int ndim;
  int64_t shape[3];
  size_t offset, count;    /* in the flat array, elements; offset a multiple of 16; count 0: packed */
  struct wn_packed packed; /* the values where the flat array does not have them; count 0: it does */
  double init_std;         /* > 0: normal; 0: constant init_value; unless a rule of "model.init" says otherwise: */
  double init_value;
  struct wn_param_start start[3]; /* of each module */
  int64_t module[3]; /* rows of the modules that share the tensor (q, k and v; a gate and what it gates); 0: no more */
  bool matrix;       /* a projection of a layer, from vectors to vectors: what optimizers for hidden matrices are for */
  bool decay;        /* weight decay applies (two dimensions and more) */
  enum wn_param_range
      range;      /* clamped to it after each optimizer step (spans, strengths); such a row is never decayed */
  bool mechanism; /* of an attention mechanism: what a model without it has not */
  bool scheduled; /* training sets it (train/adapt_rows.h): it does not learn */
  double neutral; /* of a mechanism: where it starts when a model without it is adapted */
  const struct wn_mechanism_input *projects; /* the weight that a mechanism's input is computed with, or NULL */
  bool packs; /* reaches its operations as a matrix alone (projections, token tables): it may be packed */
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
/* Elements of the tensor, wherever they lie. */
size_t wn_param_elements(const struct wn_param *row);
/* Row index by name, -1 when absent. */
int wn_param_find(const struct wn_param_table *table, const char *name);

/* Position p of the table's slots, present or not: the table without the memory for it, so that a hostile
 * configuration can be checked against a file first. row->ndim is 0 for a slot that this configuration leaves out. */
int64_t wn_param_slot_count(const wn_model_config *config);
wn_status wn_param_slot(wn_context *ctx, const wn_model_config *config, int64_t p, struct wn_param *row);
/* Takes the packed rows [table->count] (count 0: dense) out of the flat array, checked. */
wn_status wn_param_table_pack(wn_context *ctx, const wn_model_config *config, const struct wn_packed *rows_of_table,
                              struct wn_param_table *table);

/* Where a layer finds its tensors: rows of the table, -1 where the configuration has none. norm1 is the first, norm2
 * after the attention: with norms after the additions, the first is the last layer's norm2 (none for layer 0). */
struct wn_layer_params {
  int norm1_gain, norm1_shift, qkv_weight, qkv_bias, q_gain, k_gain, out_weight, out_bias;
  int norm2_gain, norm2_shift, in_weight, in_bias, ffn_out_weight, ffn_out_bias;
  int router, shared_in, shared_out, shared_gate, experts; /* experts: expert e's are experts + 2e and the next */
  int post_norm1_gain, post_norm1_shift, post_norm2_gain, post_norm2_shift; /* on what the two branches add */
  int input_weight[WN_MECHANISM_INPUTS_MAX],
      input_bias[WN_MECHANISM_INPUTS_MAX]; /* of the mechanisms' inputs, by slot */
  /* The attention over an encoder's states. */
  int cross_gain, cross_shift, cross_q_weight, cross_q_bias, cross_kv_weight, cross_kv_bias, cross_out_weight,
      cross_out_bias;
  int mechanism[WN_MECHANISM_PARAMETERS_MAX]; /* the attention mechanisms' own, in their registry's order */
  int shared[WN_MECHANISM_PARAMETERS_MAX];    /* the same that all layers share */
};
void wn_layer_params_find(const struct wn_param_table *table, const wn_model_config *config, int64_t l,
                          struct wn_layer_params *out);
/* The same for tensors outside the layers. Tied: output is embed's row. Norms after the additions: the last norm is the
 * last layer's norm2. */
struct wn_outer_params {
  int embed, pos, embed_gain, embed_shift, rope_factors, rope_short, rope_long, norm_gain, norm_shift, output;
};
void wn_outer_params_find(const struct wn_param_table *table, const wn_model_config *config,
                          struct wn_outer_params *out);

#endif
