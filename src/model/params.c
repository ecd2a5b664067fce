/* The named table of parameters: the only place that knows which tensors a configuration has, their shapes, their
 * order in the flat array and in the checkpoint, and how they start.
 *
 * Maps are [out, in]. Starts: normal with init_std; maps into the residual stream are scaled by 1/sqrt(2L), so that
 * the stream's variance does not grow with depth (Radford et al. 2019); gains 1; biases and shifts 0. */
#include "model/layer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
  OWN_SLOTS = 26, /* of a layer, beside its mechanisms' */
  LAYER_SLOTS = OWN_SLOTS + WN_MECHANISM_PARAMETERS_MAX,
  OUTER_SLOTS = 5,
  HEAD_SLOTS = OUTER_SLOTS + WN_MECHANISM_PARAMETERS_MAX,
  ENCODER_SLOTS = WN_MECHANISM_PARAMETERS_MAX + 2, /* of an encoder, beside its layers' */
  TAIL_SLOTS = 3,
  PARAM_ALIGN = 16
};

static int64_t encoder_slots(const wn_model_config *c) {
  return c->encoder.layers > 0 ? ENCODER_SLOTS + LAYER_SLOTS * c->encoder.layers : 0;
}

int64_t wn_param_slot_count(const wn_model_config *c) {
  return HEAD_SLOTS + encoder_slots(c) + LAYER_SLOTS * c->layers + TAIL_SLOTS;
}

static void set_matrix(struct wn_param *row, int64_t rows, int64_t columns, double std) {
  row->ndim = 2;
  row->shape[0] = rows;
  row->shape[1] = columns;
  row->init_std = std;
  row->decay = true;
}

static void set_vector(struct wn_param *row, int64_t n, double value) {
  row->ndim = 1;
  row->shape[0] = n;
  row->init_value = value;
}

/* Parameter i of the attention mechanisms, of each layer or shared by all. Returns its name. */
static const char *mechanism_slot(const wn_model_config *c, enum wn_array_role role, int i, struct wn_param *row) {
  const struct wn_attention_dims dims = {
      .B = 1, .T = c->context + c->memory, .H = c->heads, .Hkv = c->kv_heads, .D = c->head_size};
  bool present = false;
  const struct wn_mechanism_array *array = wn_mechanism_parameter(role, i, &c->attention, &present);
  if (!array) return "";
  if (!present) return array->param;
  int64_t shape[4];
  row->ndim = array->shape(&c->attention, &dims, shape);
  for (int d = 0; d < row->ndim; d++) row->shape[d] = shape[d];
  row->init_std = array->init_std;
  row->init_value = array->init ? array->init(&c->attention) : 0;
  row->range = array->range;
  row->mechanism = true;
  row->decay = row->ndim > 1;
  return array->param;
}

/* Slot s of a layer. The names are the checkpoint's. */
static const char *layer_slot(const wn_model_config *c, int s, struct wn_param *row) {
  const int64_t C = c->width, HD = c->heads * c->head_size, D = c->head_size;
  const int64_t N = (c->heads + 2 * c->kv_heads) * c->head_size;
  const int64_t F = c->ffn_width, in = c->ffn == WN_FFN_SWIGLU ? 2 * F : F;
  const double std = c->init_std, out_std = c->init_std / sqrt(2.0 * (double)c->layers);
  const bool shift = c->norm == WN_NORM_LAYER && c->bias;
  const wn_selective_config *sel = &c->attention.selective;
  const bool bilinear = sel->enabled && sel->bilinear;
  const int64_t selections = wn_attention_selections(&c->attention, c->kv_heads);
  const bool cross = c->encoder.layers > 0;
  row->mechanism = s == 6 || s == 7 || s == 16 || s == 17;
  switch (s) {
  case 0:
    set_vector(row, C, 1);
    return "norm1.gain";
  case 1:
    if (shift) set_vector(row, C, 0);
    return "norm1.shift";
  case 2:
    set_matrix(row, N, C, std);
    return "attn.qkv.weight";
  case 3:
    if (c->bias || c->qkv_bias) set_vector(row, N, 0);
    return "attn.qkv.bias";
  case 4:
    if (c->qk_norm) set_vector(row, D, 1);
    return "attn.q_norm.gain";
  case 5:
    if (c->qk_norm) set_vector(row, D, 1);
    return "attn.k_norm.gain";
  case 6:
    if (bilinear) set_matrix(row, selections * D, C, std);
    return "attn.select_q.weight";
  case 7:
    if (bilinear) set_matrix(row, selections * D, C, std);
    return "attn.select_k.weight";
  case 8:
    set_matrix(row, C, HD, out_std);
    return "attn.out.weight";
  case 9:
    if (c->bias) set_vector(row, C, 0);
    return "attn.out.bias";
  case 10:
    set_vector(row, C, 1);
    return "norm2.gain";
  case 11:
    if (shift) set_vector(row, C, 0);
    return "norm2.shift";
  case 12:
    set_matrix(row, in, C, std);
    return "ffn.in.weight";
  case 13:
    if (c->bias) set_vector(row, in, 0);
    return "ffn.in.bias";
  case 14:
    set_matrix(row, C, F, out_std);
    return "ffn.out.weight";
  case 15:
    if (c->bias) set_vector(row, C, 0);
    return "ffn.out.bias";
  case 16:
    if (wn_span_is_dynamic(c)) set_matrix(row, c->heads, C, std);
    return "attn.span.weight";
  case 17: /* spans start short: sigmoid(-4) = 0.018 of the limit (Sukhbaatar et al. 2019, section 4) */
    if (wn_span_is_dynamic(c)) set_vector(row, c->heads, -4);
    return "attn.span.bias";
  case 18:
    if (cross) set_vector(row, C, 1);
    return "cross.norm.gain";
  case 19:
    if (cross && shift) set_vector(row, C, 0);
    return "cross.norm.shift";
  case 20:
    if (cross) set_matrix(row, HD, C, std);
    return "cross.q.weight";
  case 21:
    if (cross && c->bias) set_vector(row, HD, 0);
    return "cross.q.bias";
  case 22:
    if (cross) set_matrix(row, N - HD, C, std);
    return "cross.kv.weight";
  case 23:
    if (cross && c->bias) set_vector(row, N - HD, 0);
    return "cross.kv.bias";
  case 24:
    if (cross) set_matrix(row, C, HD, out_std);
    return "cross.out.weight";
  case 25:
    if (cross && c->bias) set_vector(row, C, 0);
    return "cross.out.bias";
  default:
    return mechanism_slot(c, WN_ARRAY_PARAMETER, s - OWN_SLOTS, row);
  }
}

/* "encoder." before the names of an encoder's tensors. */
static const char *stack_name(const wn_model_config *c) {
  return wn_is_encoder(c) ? "encoder." : "";
}

static void layer_name(char *out, size_t bytes, const wn_model_config *c, int64_t l, const char *name) {
  snprintf(out, bytes, "%slayers.%lld.%s", stack_name(c), (long long)l, name);
}

/* Slot s of the encoder's: what its layers share, its layers, its final norm. */
static void encoder_slot(const wn_model_config *model, int64_t s, struct wn_param *row) {
  wn_model_config c;
  wn_encoder_config(model, &c);
  const int64_t own = s - WN_MECHANISM_PARAMETERS_MAX, tail = own - LAYER_SLOTS * c.layers;
  if (own < 0) {
    const char *name = mechanism_slot(&c, WN_ARRAY_SHARED, (int)s, row);
    snprintf(row->name, sizeof row->name, "encoder.%s", name);
  } else if (tail < 0) {
    const char *name = layer_slot(&c, (int)(own % LAYER_SLOTS), row);
    layer_name(row->name, sizeof row->name, &c, own / LAYER_SLOTS, name);
  } else if (tail == 0) {
    snprintf(row->name, sizeof row->name, "encoder.final_norm.gain");
    set_vector(row, c.width, 1);
  } else {
    snprintf(row->name, sizeof row->name, "encoder.final_norm.shift");
    if (c.norm == WN_NORM_LAYER && c.bias) set_vector(row, c.width, 0);
  }
}

wn_status wn_param_slot(wn_context *ctx, const wn_model_config *c, int64_t p, struct wn_param *row) {
  memset(row, 0, sizeof *row);
  const int64_t before = HEAD_SLOTS + encoder_slots(c), tail = p - before - LAYER_SLOTS * c->layers;
  if (p == 0) {
    snprintf(row->name, sizeof row->name, "embed.weight");
    set_matrix(row, c->vocab_size, c->width, c->init_std);
  } else if (p == 1) {
    snprintf(row->name, sizeof row->name, "pos.weight");
    if (c->position == WN_POS_LEARNED) set_matrix(row, c->context, c->width, c->init_std);
  } else if (p == 2) {
    snprintf(row->name, sizeof row->name, "embed_norm.gain");
    if (c->embed_norm) set_vector(row, c->width, 1);
  } else if (p == 3) {
    snprintf(row->name, sizeof row->name, "embed_norm.shift");
    if (c->embed_norm && c->norm == WN_NORM_LAYER && c->bias) set_vector(row, c->width, 0);
  } else if (p == 4) { /* constants: no gradient ever reaches them */
    snprintf(row->name, sizeof row->name, "rope.factors");
    if (c->rope_factors) set_vector(row, (c->rope_size ? c->rope_size : c->head_size) / 2, 1);
  } else if (p < HEAD_SLOTS) {
    const char *name = mechanism_slot(c, WN_ARRAY_SHARED, (int)p - OUTER_SLOTS, row);
    snprintf(row->name, sizeof row->name, "%s", name);
  } else if (p < before) {
    encoder_slot(c, p - HEAD_SLOTS, row);
  } else if (tail < 0) {
    const char *name = layer_slot(c, (int)((p - before) % LAYER_SLOTS), row);
    layer_name(row->name, sizeof row->name, c, (p - before) / LAYER_SLOTS, name);
  } else if (tail == 0) {
    snprintf(row->name, sizeof row->name, "final_norm.gain");
    if (!wn_norm_is_post(c)) set_vector(row, c->width, 1);
  } else if (tail == 1) {
    snprintf(row->name, sizeof row->name, "final_norm.shift");
    if (!wn_norm_is_post(c) && c->norm == WN_NORM_LAYER && c->bias) set_vector(row, c->width, 0);
  } else { /* no bias here: as GPT-2 and Llama have it */
    snprintf(row->name, sizeof row->name, "output.weight");
    if (!c->tied) set_matrix(row, c->vocab_size, c->width, c->init_std);
  }
  size_t count = row->ndim ? 1 : 0;
  for (int i = 0; i < row->ndim; i++)
    if (row->shape[i] <= 0 || !wn_mul_size(count, (size_t)row->shape[i], &count) || count > SIZE_MAX / 64)
      return wn_fail(ctx, WN_ERR_CONFIG, "tensor %s: its size does not fit in memory", row->name);
  row->count = count;
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
  size_t bytes;
  if (!wn_mul_size((size_t)rows, sizeof row, &bytes))
    return wn_fail(ctx, WN_ERR_CONFIG, "the table of %lld parameters does not fit in memory", (long long)rows);
  void *memory = NULL;
  WN_TRY(wn_alloc(ctx, "parameter table", bytes, &memory));
  out->rows = memory;
  for (int64_t p = 0; p < slots; p++) {
    WN_TRY(wn_param_slot(ctx, config, p, &row));
    if (!row.ndim) continue;
    row.offset = out->total;
    out->total += (row.count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    out->rows[out->count++] = row;
  }
  return WN_OK;
}

size_t wn_param_elements(const struct wn_param *row) {
  size_t n = 1; /* no overflow: wn_param_slot has checked the product */
  for (int i = 0; i < row->ndim; i++) n *= (size_t)row->shape[i];
  return n;
}

/* The rows that reach their operations as a matrix alone: maps and token tables. */
static bool can_be_packed(const struct wn_param *row) {
  static const char *const names[] = {"embed.weight",     "output.weight",        "attn.qkv.weight",
                                      "attn.out.weight",  "attn.select_q.weight", "attn.select_k.weight",
                                      "attn.span.weight", "ffn.in.weight",        "ffn.out.weight",
                                      "cross.q.weight",   "cross.kv.weight",      "cross.out.weight"};
  const size_t length = strlen(row->name);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const size_t n = strlen(names[i]);
    if (length < n || strcmp(row->name + length - n, names[i])) continue;
    if (length == n || row->name[length - n - 1] == '.') return true;
  }
  return false;
}

static wn_status check_packed(wn_context *ctx, const wn_model_config *config, const struct wn_param *row,
                              const struct wn_packed *p) {
  if (!can_be_packed(row))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "tensor %s cannot be packed: only maps and token tables can", row->name);
  if (config->memory > 0)
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
      WN_TRY(check_packed(ctx, config, row, &rows_of_table[i]));
      row->packed = rows_of_table[i];
      row->count = 0;
    }
    row->offset = table->total;
    table->total += (row->count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
  }
  return WN_OK;
}

void wn_param_table_clear(struct wn_param_table *table) {
  wn_free(table->rows);
  memset(table, 0, sizeof *table);
}

int wn_param_find(const struct wn_param_table *table, const char *name) {
  for (int i = 0; i < table->count; i++)
    if (!strcmp(table->rows[i].name, name)) return i;
  return -1;
}

/* The rows before the layers' and those of one layer. */
static void layer_rows(const struct wn_param_table *t, const wn_model_config *c, int *head, int *each) {
  int i = 0;
  char first[32];
  layer_name(first, sizeof first, c, 0, "");
  const size_t n = strlen(first);
  while (i < t->count && strncmp(t->rows[i].name, first, n) != 0) i++;
  *head = i;
  while (i < t->count && !strncmp(t->rows[i].name, first, n)) i++;
  *each = i - *head;
}

/* Row of layer l's tensor; a layer's rows lie together. */
static int find_in_layer(const struct wn_param_table *table, const wn_model_config *c, int64_t l, const char *name) {
  char full[96];
  int head, each;
  if (l < 0) return -1;
  layer_rows(table, c, &head, &each);
  layer_name(full, sizeof full, c, l, name);
  const int first = head + (int)l * each;
  for (int i = first; i < table->count && i < first + each; i++)
    if (!strcmp(table->rows[i].name, full)) return i;
  return -1;
}

void wn_layer_params_find(const struct wn_param_table *t, const wn_model_config *c, int64_t l,
                          struct wn_layer_params *out) {
  /* After the residual additions, the norm that a layer reads at its entry is the last one of the layer before. */
  const struct {
    int *row;
    const char *name;
    int64_t layer;
  } rows[] = {
      {&out->norm1_gain, wn_norm_is_post(c) ? "norm2.gain" : "norm1.gain", wn_norm_is_post(c) ? l - 1 : l},
      {&out->norm1_shift, wn_norm_is_post(c) ? "norm2.shift" : "norm1.shift", wn_norm_is_post(c) ? l - 1 : l},
      {&out->qkv_weight, "attn.qkv.weight", l},
      {&out->qkv_bias, "attn.qkv.bias", l},
      {&out->q_gain, "attn.q_norm.gain", l},
      {&out->k_gain, "attn.k_norm.gain", l},
      {&out->select_q, "attn.select_q.weight", l},
      {&out->select_k, "attn.select_k.weight", l},
      {&out->out_weight, "attn.out.weight", l},
      {&out->out_bias, "attn.out.bias", l},
      {&out->norm2_gain, wn_norm_is_post(c) ? "norm1.gain" : "norm2.gain", l},
      {&out->norm2_shift, wn_norm_is_post(c) ? "norm1.shift" : "norm2.shift", l},
      {&out->in_weight, "ffn.in.weight", l},
      {&out->in_bias, "ffn.in.bias", l},
      {&out->ffn_out_weight, "ffn.out.weight", l},
      {&out->ffn_out_bias, "ffn.out.bias", l},
      {&out->span_weight, "attn.span.weight", l},
      {&out->span_bias, "attn.span.bias", l},
      {&out->cross_gain, "cross.norm.gain", l},
      {&out->cross_shift, "cross.norm.shift", l},
      {&out->cross_q_weight, "cross.q.weight", l},
      {&out->cross_q_bias, "cross.q.bias", l},
      {&out->cross_kv_weight, "cross.kv.weight", l},
      {&out->cross_kv_bias, "cross.kv.bias", l},
      {&out->cross_out_weight, "cross.out.weight", l},
      {&out->cross_out_bias, "cross.out.bias", l},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    *rows[i].row = find_in_layer(t, c, rows[i].layer, rows[i].name);
  int head, each;
  layer_rows(t, c, &head, &each);
  for (int i = 0; i < WN_MECHANISM_PARAMETERS_MAX; i++) {
    bool present = false;
    const struct wn_mechanism_array *array = wn_mechanism_parameter(WN_ARRAY_SHARED, i, &c->attention, &present);
    out->shared[i] = -1;
    char name[96] = "";
    if (array) snprintf(name, sizeof name, "%s%s", stack_name(c), array->param);
    for (int k = 0; array && present && k < head; k++)
      if (!strcmp(t->rows[k].name, name)) out->shared[i] = k;
    array = wn_mechanism_parameter(WN_ARRAY_PARAMETER, i, &c->attention, &present);
    out->mechanism[i] = array && present ? find_in_layer(t, c, l, array->param) : -1;
  }
}

void wn_outer_params_find(const struct wn_param_table *t, const wn_model_config *c, struct wn_outer_params *out) {
  const bool shift = c->norm == WN_NORM_LAYER && c->bias;
  int at = 0;
  out->embed = at++;
  out->pos = c->position == WN_POS_LEARNED ? at++ : -1;
  out->embed_gain = c->embed_norm ? at++ : -1;
  out->embed_shift = c->embed_norm && shift ? at++ : -1;
  out->rope_factors = c->rope_factors ? at++ : -1;
  out->output = c->tied ? 0 : t->count - 1;
  if (wn_is_encoder(c)) { /* its final norm lies behind its layers */
    int head, each;
    layer_rows(t, c, &head, &each);
    out->norm_gain = head + (int)c->layers * each;
    out->norm_shift = shift ? out->norm_gain + 1 : -1;
    return;
  }
  if (wn_norm_is_post(c)) {
    out->norm_gain = find_in_layer(t, c, c->layers - 1, "norm2.gain");
    out->norm_shift = find_in_layer(t, c, c->layers - 1, "norm2.shift");
    return;
  }
  const int tail = t->count - 1 - shift - !c->tied;
  out->norm_gain = tail;
  out->norm_shift = shift ? tail + 1 : -1;
}
