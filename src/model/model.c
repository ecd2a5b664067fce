/* A model: its configuration, the flat array of its parameters, and their initialisation. */
#include "model/run.h"

#include <string.h>

#include "base/misuse.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "text/declared.h"

/* A value depends only on (seed, tensor, element) and is rounded to float in every dtype: neither threads nor backend
 * nor precision change a model's first parameters. */
static float model_start(const struct wn_param_start *start, uint64_t seed, uint64_t tensor, uint64_t element) {
  switch (start->kind) {
  case WN_START_NORMAL:
    return (float)(start->scale * wn_random_normal(seed, WN_STREAM_INIT, tensor, element));
  case WN_START_UNIFORM:
    return (float)(start->scale * (2 * wn_random_uniform(seed, WN_STREAM_INIT, tensor, element) - 1));
  case WN_START_CONSTANT:
    break;
  }
  return (float)start->scale;
}

wn_status wn_model_params_open(const struct wn_model *model, void **out) {
  return wn_memory_open(model->ctx, model->backend->memory, "parameters", model->params,
                        model->table.total * wn_dtype_size(model->dtype), out);
}

wn_status wn_model_params_close(const struct wn_model *model, void *params, bool changed) {
  return wn_memory_close(model->ctx, model->backend->memory, model->params,
                         model->table.total * wn_dtype_size(model->dtype), params, changed);
}

/* The elements of one tensor, in up to three modules that start differently. */
struct model_start {
  const struct wn_model *model;
  struct wn_param_start start[3];
  int64_t second, third; /* where the other modules begin */
  uint64_t seed, tensor;
  void *p;
};
static void model_start_range(void *args, int64_t from, int64_t to) {
  const struct model_start *x = args;
  for (int64_t i = from; i < to; i++) {
    const struct wn_param_start *of = &x->start[i < x->second ? 0 : i < x->third ? 1 : 2];
    const float value = model_start(of, x->seed, x->tensor, (uint64_t)i);
    wn_number_set(x->p, i, x->model->dtype, (double)value);
  }
}

static wn_status model_init_params(struct wn_model *model, uint64_t seed) {
  void *params;
  WN_TRY(wn_model_params_open(model, &params));
  for (int t = 0; t < model->table.count; t++) {
    const struct wn_param *row = &model->table.rows[t];
    const int64_t n = (int64_t)row->count;
    const int64_t columns = row->shape[0] > 0 ? n / row->shape[0] : 1;
    struct model_start x = {.model = model, .seed = seed, .tensor = (uint64_t)t};
    struct wn_param_start *start = x.start;
    x.second = row->module[1] > 0 ? row->module[0] * columns : n;
    x.third = row->module[2] > 0 ? x.second + row->module[1] * columns : n;
    x.p = wn_element(params, (int64_t)row->offset, model->dtype);
    for (int k = 0; k < 3; k++) {
      start[k] = row->start[k];
      if (start[k].kind == WN_START_CONSTANT && row->init_std > 0)
        start[k] = (struct wn_param_start){WN_START_NORMAL, row->init_std};
      else if (start[k].kind == WN_START_CONSTANT)
        start[k].scale = row->init_value;
    }
    wn_parallel_blocks(model->ctx->threads, n, 4096, model_start_range, &x);
  }
  return wn_model_params_close(model, params, true);
}

/* The most rows of the model's rotary table: models declare contexts of up to a million tokens. Code that needs more
 * rows makes its own table. */
enum { ROTARY_ROWS = 32768 };

wn_status wn_model_rotary_refresh(struct wn_model *model) {
  const bool whole = model->config.encoder.layers > 0 || wn_is_encoder(&model->config);
  const int64_t context = model->config.context;
  int64_t rows = whole || context < ROTARY_ROWS ? context : ROTARY_ROWS;
  if (wn_rope_is_long(&model->config, rows))
    rows = model->config.rope_scaling.context; /* the table is that of short texts */
  wn_rotary_clear(&model->rotary);
  return wn_rotary_create(model, "model.context", rows, &model->rotary);
}

/* The encoder: a struct wn_model with its own configuration and layers on the same parameters. */
static wn_status model_encoder_create(struct wn_model *model) {
  wn_context *ctx = model->ctx;
  if (model->config.encoder.layers == 0) return WN_OK;
  WN_TRY(WN_ALLOC(ctx, "encoder", 1, &model->encoder));
  struct wn_model *e = model->encoder;
  *e = (struct wn_model){.ctx = ctx,
                         .backend = model->backend,
                         .dtype = model->dtype,
                         .table = model->table,
                         .params = model->params,
                         .zeros = model->zeros};
  wn_encoder_config(&model->config, &e->config);
  WN_TRY(WN_ALLOC(ctx, "layers", e->config.layers, &e->layers));
  wn_outer_params_find(&e->table, &e->config, &e->outer);
  for (int64_t l = 0; l < e->config.layers; l++) wn_layer_params_find(&e->table, &e->config, l, &e->layers[l]);
  return wn_model_rotary_refresh(e);
}

static void model_encoder_destroy(struct wn_model *encoder) {
  if (!encoder) return;
  wn_rotary_clear(&encoder->rotary);
  wn_free(encoder->layers);
  wn_free(encoder); /* everything else belongs to the model */
}

/* packed: one for each row of the table, or NULL. */
static wn_status model_allocate(wn_context *ctx, const wn_model_config *config, wn_dtype dtype,
                                const struct wn_packed *packed, struct wn_model **out) {
  *out = NULL;
  struct wn_model *model;
  wn_status status;
  WN_TRY(WN_ALLOC(ctx, "model", 1, &model));
  wn_handle_mark(model, WN_HANDLE_MODEL);
  model->users = 1;
  model->ctx = ctx;
  model->config = *config;
  model->dtype = dtype;
  WN_TRY_GOTO(wn_backend_of(ctx, &model->backend), fail);
  if (dtype != WN_F32 && (dtype != WN_F64 || !model->backend->doubles)) {
    status = wn_fail(ctx, WN_ERR_UNSUPPORTED, "model parameters of dtype %s on backend %s: %s", wn_dtype_name(dtype),
                     model->backend->name, "F32 is supported everywhere, F64 on ref only");
    goto fail;
  }
  WN_TRY_GOTO(wn_model_config_resolve(ctx, &model->config), fail);
  const wn_model_config *c = &model->config;
  WN_TRY_GOTO(wn_param_table_create(ctx, c, &model->table), fail);
  if (packed) WN_TRY_GOTO(wn_param_table_pack(ctx, c, packed, &model->table), fail);
  if (packed) WN_TRY_GOTO(wn_model_take_packed(ctx, model), fail);
  WN_TRY_GOTO(model->backend->memory->allocate(ctx, "model parameters", model->table.total * wn_dtype_size(dtype),
                                               &model->params),
              fail);
  if (!model->backend->memory->host)
    WN_TRY_GOTO(model->backend->memory->allocate(ctx, "zeros", (size_t)(c->kv_heads * c->head_size) * sizeof(double),
                                                 &model->zeros),
                fail);
  WN_TRY_GOTO(WN_ALLOC(ctx, "layers", c->layers, &model->layers), fail);
  wn_outer_params_find(&model->table, c, &model->outer);
  for (int64_t l = 0; l < c->layers; l++) wn_layer_params_find(&model->table, c, l, &model->layers[l]);
  WN_TRY_GOTO(wn_model_rotary_refresh(model), fail);
  WN_TRY_GOTO(model_encoder_create(model), fail);
  *out = model;
  return WN_OK;
fail:
  wn_model_destroy(model);
  return status;
}

wn_status wn_model_allocate(wn_context *ctx, const wn_model_config *config, wn_dtype dtype, struct wn_model **out) {
  return model_allocate(ctx, config, dtype, NULL, out);
}

wn_status wn_model_allocate_packed(wn_context *ctx, const wn_model_config *config,
                                   const struct wn_packed *rows_of_table, struct wn_model **out) {
  return model_allocate(ctx, config, WN_F32, rows_of_table, out);
}

wn_status wn_model_need_host(wn_context *ctx, const struct wn_model *model, const char *what) {
  if (model->backend->memory->host) return WN_OK;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s needs arrays in the host's memory, which those of backend %s are not",
                 what, model->backend->name);
}

wn_status wn_model_need_float(wn_context *ctx, const struct wn_model *model, const char *what) {
  for (int i = 0; i < model->table.count; i++) {
    const struct wn_param *row = &model->table.rows[i];
    if (row->packed.count)
      return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s needs weights as floats; tensor %s is packed (%s)", what, row->name,
                     wn_gguf_type_name(row->packed.part[0].type));
  }
  return WN_OK;
}

wn_status wn_model_check_ids(wn_context *ctx, const struct wn_model *model, const char *what, const int32_t *ids,
                             int64_t n) {
  const int64_t V = model->config.vocab_size;
  for (int64_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= V)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "%s %lld is %d, expected 0 to %lld", what, (long long)i, ids[i],
                     (long long)V - 1);
  return WN_OK;
}

wn_status wn_model_create_dtype(wn_context *ctx, const wn_model_config *config, uint64_t seed, wn_dtype dtype,
                                struct wn_model **out) {
  WN_TRY(wn_model_allocate(ctx, config, dtype, out));
  const wn_status status = model_init_params(*out, seed);
  if (status == WN_OK) return WN_OK;
  wn_model_destroy(*out);
  *out = NULL;
  return status;
}

wn_status wn_model_create(wn_context *ctx, const wn_model_config *config, uint64_t seed, wn_model **out) {
  WN_CHECK_WORK(WN_POINTER(config), WN_POINTER(out));
  return wn_model_create_dtype(ctx, config, seed, WN_F32, out);
}

const wn_declared *wn_model_declared(const wn_model *model) {
  WN_CHECK_OR(NULL, WN_HANDLE(model, MODEL));
  return &model->declared;
}

static void model_free(struct wn_model *model) {
  model_encoder_destroy(model->encoder);
  wn_rotary_clear(&model->rotary);
  wn_free(model->control);
  wn_declared_clear(&model->declared);
  wn_free(model->layers);
  if (model->backend) model->backend->memory->release(model->params);
  if (model->backend) model->backend->memory->release(model->zeros);
  wn_free(model->copy);
  if (model->backend) model->backend->memory->release(model->packed);
  if (model->backend) model->backend->memory->release(model->strips);
  wn_free(model->rounded);
  wn_param_table_clear(&model->table);
  if (model->source_close) model->source_close(model->source);
  wn_free(model);
}

void wn_model_keep(const struct wn_model *model) {
  atomic_fetch_add(&((struct wn_model *)(uintptr_t)model)->users, 1);
}

void wn_model_release(const struct wn_model *model) {
  struct wn_model *own = (struct wn_model *)(uintptr_t)model;
  if (atomic_fetch_sub(&own->users, 1) == 1) model_free(own);
}

void wn_model_destroy(wn_model *model) {
  WN_CHECK_OR(, WN_HANDLE(model, MODEL));
  if (!atomic_exchange(&model->destroyed, true)) wn_model_release(model);
}

const wn_model_config *wn_model_config_get(const wn_model *model) {
  WN_CHECK_OR(NULL, WN_HANDLE(model, MODEL));
  return &model->config;
}

uint64_t wn_model_parameter_count(const wn_model *model) {
  WN_CHECK_OR(0, WN_HANDLE(model, MODEL));
  uint64_t n = 0;
  for (int i = 0; i < model->table.count; i++) n += wn_param_elements(&model->table.rows[i]);
  return n;
}

int wn_model_tensor_count(const wn_model *model) {
  WN_CHECK_OR(0, WN_HANDLE(model, MODEL));
  return model->table.count;
}

/* Gives a tensor's values where the host can read them; valid until the next call. */
static wn_status model_show(const wn_model *model, const struct wn_param *row, const void **out) {
  struct wn_model *m = (struct wn_model *)(uintptr_t)model; /* const: the copy is only a cache */
  const struct wn_memory *memory = model->backend->memory;
  const void *at = wn_element(model->params, (int64_t)row->offset, model->dtype);
  *out = at;
  if (memory->host) return WN_OK;
  if (!m->copy)
    WN_TRY(
        wn_alloc(model->ctx, "a copy of the parameters", model->table.total * wn_dtype_size(model->dtype), &m->copy));
  void *to = wn_element(m->copy, (int64_t)row->offset, model->dtype);
  *out = to;
  return wn_memory_read(model->ctx, memory, to, at, row->count * wn_dtype_size(model->dtype));
}

/* NULL, and an error recorded: there is none. */
static const struct wn_param *model_row(const wn_model *model, int i) {
  if (i >= 0 && i < model->table.count) return &model->table.rows[i];
  wn_fail(model->ctx, WN_ERR_ARGUMENT, "tensor %d of a model that has %d", i, model->table.count);
  return NULL;
}

wn_status wn_model_tensor_at(const wn_model *model, int i, wn_safetensors_entry *out) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(model, MODEL));
  WN_CHECK_ARGUMENTS(model->ctx, WN_POINTER(out));
  memset(out, 0, sizeof *out);
  const struct wn_param *row = model_row(model, i);
  if (!row) return WN_ERR_ARGUMENT;
  if (row->packed.count)
    return wn_fail(model->ctx, WN_ERR_UNSUPPORTED, "tensor %s is packed (%s): it has no float values", row->name,
                   wn_gguf_type_name(row->packed.part[0].type));
  out->name = row->name;
  out->dtype = model->dtype;
  out->ndim = row->ndim;
  memcpy(out->shape, row->shape, sizeof row->shape);
  out->bytes = row->count * wn_dtype_size(model->dtype);
  return model_show(model, row, &out->data);
}

wn_status wn_model_tensor_info(const wn_model *model, int i, wn_tensor_info *out) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(model, MODEL));
  WN_CHECK_ARGUMENTS(model->ctx, WN_POINTER(out));
  memset(out, 0, sizeof *out);
  const struct wn_param *row = model_row(model, i);
  if (!row) return WN_ERR_ARGUMENT;
  out->name = row->name;
  out->ndim = row->ndim;
  memcpy(out->shape, row->shape, sizeof row->shape);
  out->parts = row->packed.count;
  for (int k = 0; k < row->packed.count; k++) {
    const struct wn_packed_part *part = &row->packed.part[k];
    out->types[k] = part->type;
    out->bytes += wn_packed_part_bytes(part, row->shape[1]);
  }
  if (out->parts) return WN_OK;
  out->parts = 1;
  out->types[0] = WN_GGUF_F32;
  out->bytes = row->count * wn_dtype_size(model->dtype);
  return WN_OK;
}
