/* Changes the attention of a loaded model without touching its files: terms that need no parameters, or the same
 * parameters, can be switched on, switched off and changed. */
#include "attention/registry.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/misuse.h"
#include "model/config.h"
#include "model/layer.h"

#include <string.h>

/* Checks that the tables of two configurations have the same tensors with the same shapes. */
static wn_status override_same_tables(wn_context *ctx, const struct wn_param_table *a, const struct wn_param_table *b,
                                      const char *what) {
  const int count = a->count > b->count ? a->count : b->count;
  for (int i = 0; i < count; i++) {
    const struct wn_param *x = i < a->count ? &a->rows[i] : NULL, *y = i < b->count ? &b->rows[i] : NULL;
    if (x && y && !strcmp(x->name, y->name) && x->ndim == y->ndim &&
        !memcmp(x->shape, y->shape, (size_t)x->ndim * sizeof *x->shape))
      continue;
    return wn_fail(ctx, WN_ERR_CONFIG, "attention %s: the model would need other parameters (%s); train or adapt it",
                   what,
                   y && (!x || wn_param_find(a, y->name) < 0) ? y->name
                   : x                                        ? x->name
                                                              : y->name);
  }
  return WN_OK;
}

wn_status wn_model_set_attention_config(wn_context *ctx, wn_model *model, const wn_attention_config *attention,
                                        const char *what) {
  struct wn_param_table table = {0};
  wn_model_config config = model->config;
  config.attention = *attention;
  WN_TRY(wn_model_config_resolve(ctx, &config));
  WN_TRY(wn_param_table_create(ctx, &config, &table));
  const wn_status status = override_same_tables(ctx, &model->table, &table, what);
  wn_param_table_clear(&table);
  if (status != WN_OK) return status;
  model->config = config;
  if (model->encoder)
    wn_encoder_config(&config, &model->encoder->config); /* the encoder shares some of the attention's settings */
  return WN_OK;
}

wn_status wn_model_set_attention(wn_context *ctx, wn_model *model, const char *assignment) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(assignment));
  struct wn_field_group groups[WN_MECHANISMS_MAX];
  const int count = wn_attention_field_groups("", 0, groups);
  wn_attention_config attention = model->config.attention;
  json_t *object = json_object();
  if (!object) return wn_fail(ctx, WN_ERR_MEMORY, "attention %s: out of memory", assignment);
  wn_status status = wn_fields_set(ctx, object, groups, count, assignment);
  if (status == WN_OK) status = wn_fields_read(ctx, "attention", object, groups, count, &attention);
  json_decref(object);
  return status == WN_OK ? wn_model_set_attention_config(ctx, model, &attention, assignment) : status;
}

wn_status wn_model_set_control_tokens(wn_context *ctx, wn_model *model, const int32_t *ids, int64_t count) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_ARRAY(ids, count));
  const int64_t V = model->config.vocab_size;
  unsigned char *control = NULL;
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= V)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "control token %d is outside the vocabulary, 0 to %lld", ids[i],
                     (long long)V - 1);
  if (count > 0) WN_TRY(WN_ALLOC(ctx, "control tokens", V, &control));
  wn_free(model->control);
  model->control = control;
  for (int64_t i = 0; i < count; i++) model->control[ids[i]] = 1;
  return WN_OK;
}
