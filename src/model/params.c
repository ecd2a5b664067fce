/* The named table of parameters: which tensors a configuration has, their shapes, their order in the flat array and in
 * the checkpoint, their initialisation, whether they may be packed, and where a layer finds them. A tensor is one row
 * here and one field in struct wn_layer_params or struct wn_outer_params (params.h).
 *
 * Projections are [out, in]. Initialisation, unless "model.init" says otherwise (init.h): normal with init_std;
 * projections into the residual stream are scaled by 1/sqrt(2L), so that the stream's variance does not grow with depth
 * (Radford et al. 2019); norms' weights are 1, biases 0. Weight decay applies to tensors of two dimensions or more. */
#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/registry.h"
#include "base/alloc.h"
#include "base/error.h"
#include "model/config.h"
#include "model/init.h"

enum { PARAM_ALIGN = 16 };

/* ---- the table ---- */

enum param_size {
  ONE_DIMENSION, /* as the second dimension: the tensor is a vector */
  VOCABULARY,
  CONTEXT,
  WIDTH,
  Q_NORM,  /* D, or H D if the norm is over all heads */
  K_NORM,  /* D, or Hkv D */
  QUERIES, /* H D */
  KEYS,    /* 2 Hkv D: keys and values */
  QKV,     /* all three */
  INNER,   /* F */
  IN,      /* F, or 2 F with a gate */
  ANGLES,  /* R/2 */
  EXPERTS,
  SHARED, /* the shared expert's F */
  SHARED_IN,
  PARAM_SIZES
};

/* Facts about a configuration. A row exists if all of its facts hold. */
enum param_fact {
  BIAS = 1 << 0,
  QKV_BIAS = 1 << 1,
  NORM_BIAS = 1 << 2,
  QK_NORM = 1 << 3,
  CROSS = 1 << 4, /* attention over an encoder's states */
  LEARNED_POSITIONS = 1 << 5,
  EMBED_NORM = 1 << 6,
  ROPE_FACTORS = 1 << 7,
  ROPE_LONG = 1 << 16,
  FINAL_NORM = 1 << 8,
  UNTIED = 1 << 9,
  BRANCH_NORM = 1 << 10,
  BASE_NORM = 1 << 11, /* norms before the branches, or after the additions */
  ONE_FFN = 1 << 12,   /* no experts */
  MIXTURE = 1 << 13,
  SHARED_EXPERT = 1 << 14,
  SHARED_GATE = 1 << 15,
  OUT_BIAS = 1 << 17
};

enum param_start { ZERO, GAIN /* 1 */, NORMAL, RESIDUAL };

struct param_row {
  const char *name; /* the name in a checkpoint; for a layer's tensor without "layers.N." */
  enum param_size size[2];
  unsigned when; /* of enum param_fact */
  enum param_start start;
  enum wn_init_class of; /* the class of "model.init"; Q stands for the classes of the tensor's modules */
  bool packs;            /* only matrix products and token lookups read it, so it may be packed */
  size_t index;          /* offset of its field in struct wn_layer_params or struct wn_outer_params */
};
#define LAYER(field) offsetof(struct wn_layer_params, field)
#define OUTER(field) offsetof(struct wn_outer_params, field)
#define ROW(name_, index_, ...)                                                                                        \
  { .name = (name_), .index = (index_), __VA_ARGS__ }

static const struct param_row outer_rows[] = {
    ROW("embed.weight", OUTER(embed), .start = NORMAL, .of = WN_INIT_EMBEDDINGS, .packs = true,
        .size = {VOCABULARY, WIDTH}),
    ROW("pos.weight", OUTER(pos), .when = LEARNED_POSITIONS, .start = NORMAL, .of = WN_INIT_POSITIONS,
        .size = {CONTEXT, WIDTH}),
    ROW("embed_norm.gain", OUTER(embed_gain), .when = EMBED_NORM, .start = GAIN, .size = {WIDTH}),
    ROW("embed_norm.shift", OUTER(embed_shift), .when = EMBED_NORM | NORM_BIAS, .size = {WIDTH}),
    /* constants: they never get a gradient */
    ROW("rope.factors", OUTER(rope_factors), .when = ROPE_FACTORS, .start = GAIN, .size = {ANGLES}),
    ROW("rope.short_factors", OUTER(rope_short), .when = ROPE_LONG, .start = GAIN, .size = {ANGLES}),
    ROW("rope.long_factors", OUTER(rope_long), .when = ROPE_LONG, .start = GAIN, .size = {ANGLES}),
};

/* Names of rows that stand for all mechanisms' inputs at this place in files; each input has a weight and a
 * bias, and so has its hidden layer. */
static const char inputs_before_out[] = "inputs before attn.out", inputs_of_layer[] = "inputs";

static const struct param_row layer_rows[] = {
    ROW("norm1.gain", LAYER(norm1_gain), .when = BASE_NORM, .start = GAIN, .size = {WIDTH}),
    ROW("norm1.shift", LAYER(norm1_shift), .when = BASE_NORM | NORM_BIAS, .size = {WIDTH}),
    ROW("attn.qkv.weight", LAYER(qkv_weight), .start = NORMAL, .of = WN_INIT_Q, .packs = true, .size = {QKV, WIDTH}),
    ROW("attn.qkv.bias", LAYER(qkv_bias), .when = QKV_BIAS, .size = {QKV}),
    ROW("attn.q_norm.gain", LAYER(q_gain), .when = QK_NORM, .start = GAIN, .size = {Q_NORM}),
    ROW("attn.k_norm.gain", LAYER(k_gain), .when = QK_NORM, .start = GAIN, .size = {K_NORM}),
    {.name = inputs_before_out, .size = {0}},
    ROW("attn.out.weight", LAYER(out_weight), .start = RESIDUAL, .of = WN_INIT_OUTPUT, .packs = true,
        .size = {WIDTH, QUERIES}),
    ROW("attn.out.bias", LAYER(out_bias), .when = OUT_BIAS, .size = {WIDTH}),
    ROW("norm2.gain", LAYER(norm2_gain), .when = BASE_NORM, .start = GAIN, .size = {WIDTH}),
    ROW("norm2.shift", LAYER(norm2_shift), .when = BASE_NORM | NORM_BIAS, .size = {WIDTH}),
    ROW("ffn.in.weight", LAYER(in_weight), .when = ONE_FFN, .start = NORMAL, .of = WN_INIT_FFN_IN, .packs = true,
        .size = {IN, WIDTH}),
    ROW("ffn.in.bias", LAYER(in_bias), .when = BIAS, .size = {IN}),
    ROW("ffn.out.weight", LAYER(ffn_out_weight), .when = ONE_FFN, .start = RESIDUAL, .of = WN_INIT_FFN_OUT,
        .packs = true, .size = {WIDTH, INNER}),
    ROW("ffn.out.bias", LAYER(ffn_out_bias), .when = BIAS, .size = {WIDTH}),
    ROW("router.weight", LAYER(router), .when = MIXTURE, .start = NORMAL, .size = {EXPERTS, WIDTH}),
    ROW("shared.in.weight", LAYER(shared_in), .when = SHARED_EXPERT, .start = NORMAL, .of = WN_INIT_FFN_IN,
        .packs = true, .size = {SHARED_IN, WIDTH}),
    ROW("shared.out.weight", LAYER(shared_out), .when = SHARED_EXPERT, .start = RESIDUAL, .of = WN_INIT_FFN_OUT,
        .packs = true, .size = {WIDTH, SHARED}),
    ROW("shared.gate.weight", LAYER(shared_gate), .when = SHARED_GATE, .size = {WIDTH}),
    {.name = inputs_of_layer, .size = {0}},
    ROW("post_norm1.gain", LAYER(post_norm1_gain), .when = BRANCH_NORM, .start = GAIN, .size = {WIDTH}),
    ROW("post_norm1.shift", LAYER(post_norm1_shift), .when = BRANCH_NORM | NORM_BIAS, .size = {WIDTH}),
    ROW("post_norm2.gain", LAYER(post_norm2_gain), .when = BRANCH_NORM, .start = GAIN, .size = {WIDTH}),
    ROW("post_norm2.shift", LAYER(post_norm2_shift), .when = BRANCH_NORM | NORM_BIAS, .size = {WIDTH}),
    ROW("cross.norm.gain", LAYER(cross_gain), .when = CROSS, .start = GAIN, .size = {WIDTH}),
    ROW("cross.norm.shift", LAYER(cross_shift), .when = CROSS | NORM_BIAS, .size = {WIDTH}),
    ROW("cross.q.weight", LAYER(cross_q_weight), .when = CROSS, .start = NORMAL, .of = WN_INIT_Q, .packs = true,
        .size = {QUERIES, WIDTH}),
    ROW("cross.q.bias", LAYER(cross_q_bias), .when = CROSS | BIAS, .size = {QUERIES}),
    ROW("cross.kv.weight", LAYER(cross_kv_weight), .when = CROSS, .start = NORMAL, .of = WN_INIT_K, .packs = true,
        .size = {KEYS, WIDTH}),
    ROW("cross.kv.bias", LAYER(cross_kv_bias), .when = CROSS | BIAS, .size = {KEYS}),
    ROW("cross.out.weight", LAYER(cross_out_weight), .when = CROSS, .start = RESIDUAL, .of = WN_INIT_OUTPUT,
        .packs = true, .size = {WIDTH, QUERIES}),
    ROW("cross.out.bias", LAYER(cross_out_bias), .when = CROSS | BIAS, .size = {WIDTH}),
};

/* Tensors after the layers. An encoder has them too, except the output (its configuration is tied). */
static const struct param_row tail_rows[] = {
    ROW("final_norm.gain", OUTER(norm_gain), .when = FINAL_NORM, .start = GAIN, .size = {WIDTH}),
    ROW("final_norm.shift", OUTER(norm_shift), .when = FINAL_NORM | NORM_BIAS, .size = {WIDTH}),
    /* no bias, as in GPT-2 and Llama */
    ROW("output.weight", OUTER(output), .when = UNTIED, .start = NORMAL, .of = WN_INIT_LOGITS, .packs = true,
        .size = {VOCABULARY, WIDTH}),
};
#define ROWS(table) ((int64_t)(sizeof(table) / sizeof *(table)))

/* The tensors of each expert, after the layer's other rows. */
static const struct param_row expert_rows[2] = {
    ROW("experts.%lld.in.weight", LAYER(experts), .when = MIXTURE, .start = NORMAL, .of = WN_INIT_FFN_IN, .packs = true,
        .size = {IN, WIDTH}),
    {.name = "experts.%lld.out.weight",
     .size = {WIDTH, INNER},
     .when = MIXTURE,
     .start = RESIDUAL,
     .of = WN_INIT_FFN_OUT,
     .packs = true},
};

static unsigned param_facts(const wn_model_config *c) {
  return (c->bias ? BIAS : 0) | (c->bias || c->qkv_bias ? QKV_BIAS : 0) | (c->bias || c->out_bias ? OUT_BIAS : 0) |
         (c->bias && c->norm == WN_NORM_LAYER ? NORM_BIAS : 0) | (c->qk_norm ? QK_NORM : 0) |
         (c->encoder.layers > 0 ? CROSS : 0) | (c->position == WN_POS_LEARNED ? LEARNED_POSITIONS : 0) |
         (c->embed_norm ? EMBED_NORM : 0) | (c->rope_factors ? ROPE_FACTORS : 0) |
         (c->rope_scaling.type == WN_ROPE_LONG ? ROPE_LONG : 0) | (!wn_norm_is_post(c) ? FINAL_NORM : 0) |
         (wn_norm_on_branch(c) ? BRANCH_NORM : 0) | (c->norm_place != WN_NORM_BRANCH ? BASE_NORM : 0) |
         (!c->tied ? UNTIED : 0) | (c->experts.count > 0 ? MIXTURE : ONE_FFN) |
         (c->experts.shared_width > 0 ? SHARED_EXPERT : 0) | (c->experts.shared_gate ? SHARED_GATE : 0);
}

static int64_t param_size(const wn_model_config *c, enum param_size size) {
  const int64_t D = c->head_size, kv = 2 * c->kv_heads * D;
  const int64_t sizes[PARAM_SIZES] = {
      [VOCABULARY] = c->vocab_size,
      [CONTEXT] = c->context,
      [WIDTH] = c->width,
      [Q_NORM] = c->qk_norm_whole ? c->heads * D : D,
      [K_NORM] = c->qk_norm_whole ? c->kv_heads * D : D,
      [QUERIES] = c->heads * D,
      [KEYS] = kv,
      [QKV] = c->heads * D + kv,
      [INNER] = c->ffn_width,
      [IN] = wn_ffn_in_width(c),
      [ANGLES] = (c->rope_size ? c->rope_size : D) / 2,
      [EXPERTS] = c->experts.count,
      [SHARED] = c->experts.shared_width,
      [SHARED_IN] = 2 * c->experts.shared_width,
  };
  return sizes[size];
}

/* How many rows each module has in a tensor with this first dimension that several modules share. */
static void param_modules(const wn_model_config *c, enum param_size size, int64_t rows, int64_t module[3]) {
  const int64_t kv = c->kv_heads * c->head_size;
  const bool qkv = size == QKV, keys = size == KEYS, gated = (size == IN && wn_ffn_has_gate(c)) || size == SHARED_IN;
  module[0] = qkv ? rows - 2 * kv : keys || gated ? rows / 2 : rows;
  module[1] = qkv ? kv : rows - module[0];
  module[2] = rows - module[0] - module[1];
}

/* The class of module k of a tensor: q, k and v share a tensor, or k and v. */
static enum wn_init_class param_class(const struct param_row *of, int k) {
  const bool shared = of->size[0] == QKV || of->size[0] == KEYS;
  return shared && of->of != WN_INIT_NONE ? (enum wn_init_class)((int)of->of + k) : of->of;
}

/* Fills in a tensor of the table; row->ndim stays 0 if the configuration does not have it. */
static void param_own(const wn_model_config *c, const struct param_row *of, struct wn_param *row) {
  const bool there = (of->when & ~param_facts(c)) == 0;
  row->packs = of->packs;
  if (!there) return;
  row->ndim = of->size[1] == ONE_DIMENSION ? 1 : 2;
  for (int d = 0; d < row->ndim; d++) row->shape[d] = param_size(c, of->size[d]);
  param_modules(c, of->size[0], row->shape[0], row->module);
  row->decay = row->ndim > 1;
  row->matrix = of->of >= WN_INIT_Q && of->of <= WN_INIT_FFN_OUT;
  if (of->start == NORMAL) row->init_std = c->init_std;
  if (of->start == RESIDUAL) row->init_std = c->init_std / sqrt(2.0 * (double)c->layers);
  if (of->start == GAIN) row->init_value = 1;
  for (int k = 0; k < 3; k++) wn_init_start(c, param_class(of, k), row->shape[1], &row->start[k]);
}

static struct wn_attention_dims param_dims(const wn_model_config *c) {
  return (struct wn_attention_dims){
      .B = 1, .T = c->context + c->recurrence, .H = c->heads, .Hkv = c->kv_heads, .D = c->head_size};
}

/* Fills in parameter i of the attention mechanisms, one of each layer or one shared by all layers. Returns its name. */
static const char *param_of_mechanism(const wn_model_config *c, enum wn_array_role role, int i, struct wn_param *row) {
  const struct wn_attention_dims dims = param_dims(c);
  bool present = false;
  const struct wn_mechanism_array *array = wn_mechanism_parameter(role, i, &c->attention, &present);
  if (!array) return "";
  if (!present) return array->param;
  int64_t shape[4];
  row->ndim = array->shape(&c->attention, &dims, shape);
  for (int d = 0; d < row->ndim; d++) row->shape[d] = shape[d];
  row->init_std = array->init_std;
  if (array->array == WN_ARRAY_AT(p)) wn_init_start(c, WN_INIT_POSITIONS, shape[1], &row->start[0]);
  row->init_value = array->init ? array->init(&c->attention) : 0;
  row->range = array->range;
  row->mechanism = true;
  row->neutral = row->adapted = array->neutral;
  row->scheduled = array->is_scheduled && array->is_scheduled(&c->attention);
  row->decay = row->ndim > 1;
  return array->param;
}

/* The tensors of a mechanism's input, in the order of files. */
enum input_tensor { KEY_GAIN, HIDDEN_WEIGHT, HIDDEN_BIAS, INPUT_WEIGHT, INPUT_BIAS, INPUT_TENSORS };
static const size_t input_index[INPUT_TENSORS] = {LAYER(key_gain), LAYER(hidden_weight), LAYER(hidden_bias),
                                                  LAYER(input_weight), LAYER(input_bias)};

/* Fills in a tensor of the mechanisms' input number `slot`, if its place in files is `before_out`. Returns its name. */
static const char *param_of_input(const wn_model_config *c, int slot, enum input_tensor tensor, bool before_out,
                                  struct wn_param *row) {
  const struct wn_attention_dims dims = param_dims(c);
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_attention_inputs(&c->attention, &dims, in);
  const bool gain = tensor == KEY_GAIN, hidden = tensor == HIDDEN_WEIGHT || tensor == HIDDEN_BIAS;
  const bool vector = gain || tensor == HIDDEN_BIAS || tensor == INPUT_BIAS;
  for (int i = 0; i < n; i++) {
    const struct wn_mechanism_input *how = in[i].how;
    const char *names[INPUT_TENSORS] = {how->key_gain, how->hidden_weight, how->hidden_bias, how->weight, how->bias};
    if (in[i].slot != slot || how->before_out != before_out || !names[tensor] || (hidden && in[i].hidden == 0) ||
        (gain && !in[i].from_keys))
      continue;
    const int64_t first = in[i].from_keys ? 2 * c->head_size : c->width; /* columns of the first product */
    row->ndim = vector ? 1 : 2;
    row->shape[0] = gain ? first : hidden ? in[i].hidden : in[i].width;
    row->shape[1] = vector ? 0 : hidden || in[i].hidden == 0 ? first : in[i].hidden / in[i].groups;
    row->init_std = vector ? 0 : c->init_std;
    row->init_value = tensor == INPUT_BIAS ? how->bias_init : gain;
    row->decay = !vector;
    row->packs = !vector && !in[i].from_keys; /* a head's network has some of the rows */
    row->matrix = row->packs && (hidden || (in[i].size > 1 && !in[i].array->map));
    row->mechanism = true;
    row->neutral = tensor == INPUT_BIAS ? how->bias_neutral : tensor == HIDDEN_WEIGHT ? NAN : gain;
    row->adapted = tensor == INPUT_BIAS ? how->bias_adapted : row->neutral;
    row->projects = tensor == INPUT_WEIGHT ? how : NULL;
    return names[tensor];
  }
  return "";
}

/* ---- slots: the table's rows for every layer, in order, present or not ---- */

enum {
  HEAD_SLOTS = ROWS(outer_rows) + WN_MECHANISM_PARAMETERS_MAX,
  INPUT_SLOTS = INPUT_TENSORS * WN_MECHANISM_INPUTS_MAX,
  LAYER_SLOTS = ROWS(layer_rows) - 2 + 2 * INPUT_SLOTS + WN_MECHANISM_PARAMETERS_MAX,
  TAIL_SLOTS = ROWS(tail_rows),
};

/* The number of slots of a layer, experts included. */
static int64_t layer_slots(const wn_model_config *c) {
  return LAYER_SLOTS + 2 * c->experts.count;
}

static int64_t encoder_slots(const wn_model_config *c) {
  return c->encoder.layers > 0 ? WN_MECHANISM_PARAMETERS_MAX + layer_slots(c) * c->encoder.layers + TAIL_SLOTS : 0;
}

int64_t wn_param_slot_count(const wn_model_config *c) {
  return HEAD_SLOTS + encoder_slots(c) + layer_slots(c) * c->layers + TAIL_SLOTS;
}

enum { NOWHERE = -1 };
/* Fills in slot s of a layer. Returns its name; *index is the offset of its field in struct wn_layer_params (NOWHERE:
 * it has none, since it follows another row). A "%lld" in the name stands for the expert's number. */
static const char *layer_slot(const wn_model_config *c, int64_t s, struct wn_param *row, size_t *index) {
  if (s >= LAYER_SLOTS) {
    const struct param_row *of = &expert_rows[s % 2 == LAYER_SLOTS % 2 ? 0 : 1];
    *index = s == LAYER_SLOTS ? of->index : (size_t)NOWHERE;
    param_own(c, of, row);
    return of->name;
  }
  for (int64_t i = 0; i < ROWS(layer_rows); i++) {
    const struct param_row *of = &layer_rows[i];
    const bool inputs = of->name == inputs_before_out || of->name == inputs_of_layer;
    const int64_t slots = inputs ? INPUT_SLOTS : 1;
    if (s >= slots) {
      s -= slots;
      continue;
    }
    if (inputs) {
      const enum input_tensor tensor = (enum input_tensor)(s % INPUT_TENSORS);
      *index = input_index[tensor] + (size_t)(s / INPUT_TENSORS) * sizeof(int);
      return param_of_input(c, (int)(s / INPUT_TENSORS), tensor, of->name == inputs_before_out, row);
    }
    *index = of->index;
    param_own(c, of, row);
    return of->name;
  }
  *index = LAYER(mechanism) + (size_t)s * sizeof(int);
  return param_of_mechanism(c, WN_ARRAY_PARAMETER, (int)s, row);
}

/* The prefix of names: "encoder." for an encoder's tensors. */
static const char *stack_name(const wn_model_config *c) {
  return wn_is_encoder(c) ? "encoder." : "";
}

/* Writes a tensor's full name. expert: the number for a "%lld" in the name. */
static void layer_name(char *out, size_t bytes, const wn_model_config *c, int64_t l, const char *name, int64_t expert) {
  const char *mark = strstr(name, "%lld");
  if (!mark)
    snprintf(out, bytes, "%slayers.%lld.%s", stack_name(c), (long long)l, name);
  else
    snprintf(out, bytes, "%slayers.%lld.%.*s%lld%s", stack_name(c), (long long)l, (int)(mark - name), name,
             (long long)expert, mark + 4);
}

/* Fills in slot s of the layers and the tensors after them. */
static void stack_slot(const wn_model_config *c, int64_t s, struct wn_param *row) {
  const int64_t each = layer_slots(c), tail = s - each * c->layers;
  if (tail < 0) {
    size_t unused;
    const char *name = layer_slot(c, s % each, row, &unused);
    layer_name(row->name, sizeof row->name, c, s / each, name, (s % each - LAYER_SLOTS) / 2);
    return;
  }
  param_own(c, &tail_rows[tail], row);
  snprintf(row->name, sizeof row->name, "%s%s", stack_name(c), tail_rows[tail].name);
}

static void shared_slot(const wn_model_config *c, int64_t s, struct wn_param *row) {
  const char *name = param_of_mechanism(c, WN_ARRAY_SHARED, (int)s, row);
  snprintf(row->name, sizeof row->name, "%s%s", stack_name(c), name);
}

/* Fills in slot s of the encoder: what its layers share, its layers, its final norm. */
static void encoder_slot(const wn_model_config *model, int64_t s, struct wn_param *row) {
  wn_model_config c;
  wn_encoder_config(model, &c);
  if (s < WN_MECHANISM_PARAMETERS_MAX)
    shared_slot(&c, s, row);
  else
    stack_slot(&c, s - WN_MECHANISM_PARAMETERS_MAX, row);
}

wn_status wn_param_slot(wn_context *ctx, const wn_model_config *c, int64_t p, struct wn_param *row) {
  const int64_t before = HEAD_SLOTS + encoder_slots(c);
  memset(row, 0, sizeof *row);
  if (p < ROWS(outer_rows)) {
    param_own(c, &outer_rows[p], row);
    snprintf(row->name, sizeof row->name, "%s", outer_rows[p].name);
  } else if (p < HEAD_SLOTS) {
    shared_slot(c, p - ROWS(outer_rows), row);
  } else if (p < before) {
    encoder_slot(c, p - HEAD_SLOTS, row);
  } else {
    stack_slot(c, p - before, row);
  }
  size_t count = row->ndim ? 1 : 0;
  for (int i = 0; i < row->ndim; i++)
    if (row->shape[i] <= 0 || !wn_mul_size(count, (size_t)row->shape[i], &count) || count > SIZE_MAX / 64)
      return wn_fail(ctx, WN_ERR_CONFIG, "tensor %s: its size does not fit in memory", row->name);
  row->count = count;
  return WN_OK;
}

/* ---- the table of a configuration ---- */

static int param_by_name(const void *a, const void *b) {
  const struct wn_param *const *x = a, *const *y = b;
  return strcmp((*x)->name, (*y)->name);
}

/* Sorts the rows by name: with experts there are tens of thousands, and each is looked up when a model starts from
 * another. */
static wn_status param_index(wn_context *ctx, struct wn_param_table *table) {
  WN_TRY(WN_ALLOC(ctx, "names of parameters", table->count, &table->by_name));
  for (int i = 0; i < table->count; i++) table->by_name[i] = &table->rows[i];
  qsort(table->by_name, (size_t)table->count, sizeof *table->by_name, param_by_name);
  return WN_OK;
}

wn_status wn_param_table_create(wn_context *ctx, const wn_model_config *config, struct wn_param_table *out) {
  memset(out, 0, sizeof *out);
  const int64_t slots = wn_param_slot_count(config);
  struct wn_param row;
  int64_t rows = 0;
  size_t total = 0;
  for (int64_t p = 0; p < slots; p++) {
    WN_TRY(wn_param_slot(ctx, config, p, &row));
    if (!row.ndim) continue;
    size_t padded;
    if (!wn_add_size(row.count, PARAM_ALIGN - 1, &padded) ||
        !wn_add_size(total, padded / PARAM_ALIGN * PARAM_ALIGN, &total) || total > SIZE_MAX / 64 || ++rows > INT32_MAX)
      return wn_fail(ctx, WN_ERR_CONFIG, "the model's parameters do not fit in memory (at tensor %s)", row.name);
  }
  WN_TRY(WN_ALLOC(ctx, "parameter table", rows, &out->rows));
  for (int64_t p = 0; p < slots; p++) {
    WN_TRY(wn_param_slot(ctx, config, p, &row));
    if (!row.ndim) continue;
    row.offset = out->total;
    out->total += (row.count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    out->rows[out->count++] = row;
  }
  const wn_status status = param_index(ctx, out);
  if (status != WN_OK) wn_param_table_clear(out);
  return status;
}

size_t wn_param_elements(const struct wn_param *row) {
  size_t n = 1; /* no overflow: wn_param_slot has checked the product */
  for (int i = 0; i < row->ndim; i++) n *= (size_t)row->shape[i];
  return n;
}

static wn_status param_check_packed(wn_context *ctx, const wn_model_config *config, const struct wn_param *row,
                                    const struct wn_packed *p) {
  if (!row->packs)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "tensor %s cannot be packed: only projections and token tables can",
                   row->name);
  if (config->recurrence > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "tensor %s is packed: segment recurrence needs floats", row->name);
  if (p->count < 0 || p->count > WN_PACKED_PARTS)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "tensor %s: %d packed parts, expected 1 to %d", row->name, p->count,
                   WN_PACKED_PARTS);
  int64_t rows = 0;
  for (int i = 0; i < p->count; i++) {
    const struct wn_packed_part *part = &p->part[i];
    if ((int)part->type < 0 || part->type >= WN_GGUF_TYPE_COUNT || !part->data)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "tensor %s: packed part %d has no known type or no data", row->name, i);
    if (row->shape[1] % wn_gguf_block_weights(part->type))
      return wn_fail(ctx, WN_ERR_SHAPE, "tensor %s: rows of %lld weights are no whole blocks of %s", row->name,
                     (long long)row->shape[1], wn_gguf_type_name(part->type));
    if (part->rows < 1 || part->rows > row->shape[0] - rows)
      return wn_fail(ctx, WN_ERR_SHAPE, "tensor %s: packed part %d has %lld rows, expected %lld in all", row->name, i,
                     (long long)part->rows, (long long)row->shape[0]);
    rows += part->rows;
  }
  if (rows == row->shape[0]) return WN_OK;
  return wn_fail(ctx, WN_ERR_SHAPE, "tensor %s: %lld packed rows, expected %lld", row->name, (long long)rows,
                 (long long)row->shape[0]);
}

wn_status wn_param_table_pack(wn_context *ctx, const wn_model_config *config, const struct wn_packed *rows_of_table,
                              struct wn_param_table *table) {
  table->total = 0;
  for (int i = 0; i < table->count; i++) {
    struct wn_param *row = &table->rows[i];
    if (rows_of_table[i].count) {
      WN_TRY(param_check_packed(ctx, config, row, &rows_of_table[i]));
      row->packed = rows_of_table[i];
      row->count = 0;
    }
    row->offset = table->total;
    table->total += (row->count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
  }
  return WN_OK;
}

void wn_param_table_clear(struct wn_param_table *table) {
  wn_free(table->by_name);
  wn_free(table->rows);
  memset(table, 0, sizeof *table);
}

static int param_is_named(const void *name, const void *row) {
  return strcmp(name, (*(const struct wn_param *const *)row)->name);
}

int wn_param_find(const struct wn_param_table *table, const char *name) {
  const struct wn_param **row =
      bsearch(name, table->by_name, (size_t)table->count, sizeof *table->by_name, param_is_named);
  return row ? (int)(*row - table->rows) : -1;
}

/* ---- where layers find their tensors ---- */

/* How many rows come before the layers, and how many each layer has. */
static void layer_extent(const struct wn_param_table *t, const wn_model_config *c, int *head, int *each) {
  int i = 0;
  char first[32];
  layer_name(first, sizeof first, c, 0, "", 0);
  const size_t n = strlen(first);
  while (i < t->count && strncmp(t->rows[i].name, first, n) != 0) i++;
  *head = i;
  while (i < t->count && !strncmp(t->rows[i].name, first, n)) i++;
  *each = i - *head;
}

static void set_index(void *params, size_t index, int row) {
  memcpy((char *)params + index, &row, sizeof row);
}

/* A layer's rows are contiguous, in the order of its slots. */
static void layer_find(const struct wn_param_table *t, const wn_model_config *c, int64_t l,
                       struct wn_layer_params *out) {
  int head, each;
  layer_extent(t, c, &head, &each);
  int next = head + (int)l * each;
  memset(out, 0xff, sizeof *out); /* -1 */
  for (int64_t s = 0; s < layer_slots(c); s++) {
    struct wn_param row = {0};
    size_t index;
    layer_slot(c, s, &row, &index);
    if (row.ndim && index != (size_t)NOWHERE) set_index(out, index, next);
    next += row.ndim != 0;
  }
}

void wn_layer_params_find(const struct wn_param_table *t, const wn_model_config *c, int64_t l,
                          struct wn_layer_params *out) {
  struct wn_layer_params before = {.norm2_gain = -1, .norm2_shift = -1};
  layer_find(t, c, l, out);
  if (wn_norm_is_post(c)) {
    /* With norms after the additions the norm at a layer's entry is the last one of the layer before. */
    if (l > 0) layer_find(t, c, l - 1, &before);
    out->norm2_gain = out->norm1_gain, out->norm2_shift = out->norm1_shift;
    out->norm1_gain = before.norm2_gain, out->norm1_shift = before.norm2_shift;
  }
  for (int i = 0; i < WN_MECHANISM_PARAMETERS_MAX; i++) {
    struct wn_param row = {0};
    shared_slot(c, i, &row);
    out->shared[i] = row.ndim ? wn_param_find(t, row.name) : -1;
  }
}

void wn_outer_params_find(const struct wn_param_table *t, const wn_model_config *c, struct wn_outer_params *out) {
  for (int64_t i = 0; i < ROWS(outer_rows); i++)
    set_index(out, outer_rows[i].index, wn_param_find(t, outer_rows[i].name));
  for (int64_t i = 0; i < ROWS(tail_rows); i++) {
    char name[96];
    snprintf(name, sizeof name, "%s%s", stack_name(c), tail_rows[i].name);
    set_index(out, tail_rows[i].index, wn_param_find(t, name));
  }
  if (c->tied) out->output = out->embed;
  if (!wn_norm_is_post(c)) return;
  struct wn_layer_params last;
  layer_find(t, c, c->layers - 1, &last);
  out->norm_gain = last.norm2_gain, out->norm_shift = last.norm2_shift;
}
