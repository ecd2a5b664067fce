/* Writes an adapter for peft. Where one tensor of transformers holds several of our projections (Phi-3's qkv_proj,
 * GPT-2's c_attn), their updates become one update with the sum of their ranks: the A are stacked, the B are blocks
 * along the diagonal, and alpha grows in proportion, so that alpha/r stays the same. */
#include <stdio.h>
#include <string.h>

#include "base/fields.h"
#include "base/file.h"
#include "formats/adapter.h"
#include "model/params.h"

/* One projection of transformers, and the updates inside it. */
struct adapter_out {
  char module[WN_NAME_BYTES]; /* "model.layers.3.self_attn.q_proj" */
  const struct wn_adapter_update *updates;
  int count;
  int64_t first, rows, columns, rank;
  bool transposed;
  float *a, *b; /* [rank,columns], [rows,rank] */
};

struct adapter_file {
  wn_context *ctx;
  const wn_model_config *config;
  const struct wn_names *names;
  const struct wn_adapter_updates *updates;
  struct adapter_out *out;
  int count;
};

/* The part of transformers' tensor that holds an update; false: there is none. */
static bool adapter_part(const struct adapter_file *f, const struct wn_adapter_update *u, struct wn_name_part *out) {
  struct wn_param row = {.ndim = 2, .shape = {0, u->columns}};
  struct wn_name_part parts[3];
  snprintf(row.name, sizeof row.name, "%s", u->row);
  for (int64_t p = 0; p < wn_param_slot_count(f->config); p++) {
    struct wn_param slot;
    if (wn_param_slot(NULL, f->config, p, &slot) == WN_OK && slot.ndim == 2 && !strcmp(slot.name, u->row)) row = slot;
  }
  const int n = wn_names_parts(f->names, f->config, f->names->prefix, &row, parts);
  for (int k = 0; k < n; k++)
    if (u->first >= parts[k].first && u->first + u->rows <= parts[k].first + parts[k].rows) {
      *out = parts[k];
      return true;
    }
  return false;
}

static wn_status adapter_list(struct adapter_file *f) {
  WN_TRY(WN_ALLOC(f->ctx, "list of updates", f->updates->count + 1, &f->out));
  for (int i = 0; i < f->updates->count; i++) {
    const struct wn_adapter_update *u = &f->updates->all[i];
    struct adapter_out *to = f->count ? &f->out[f->count - 1] : NULL;
    struct wn_name_part part;
    char module[WN_NAME_BYTES];
    if (!adapter_part(f, u, &part)) continue;
    snprintf(module, sizeof module, "%.*s", (int)(strlen(part.name) - strlen(".weight")), part.name);
    if (!to || strcmp(to->module, module) != 0) {
      to = &f->out[f->count++];
      *to = (struct adapter_out){.updates = u, .first = part.first, .rows = part.rows, .columns = u->columns};
      to->transposed = part.transposed;
      snprintf(to->module, sizeof to->module, "%s", module);
    }
    to->count++;
    to->rank += f->updates->rank;
  }
  return WN_OK;
}

static wn_status adapter_fill(const struct adapter_file *f, struct adapter_out *to) {
  const int64_t r = f->updates->rank, K = to->columns;
  const bool other = f->config->rope_pairs != WN_ROPE_HALVES;
  struct wn_param row = {.ndim = 2};
  WN_TRY(WN_ALLOC(f->ctx, to->module, to->rank * K, &to->a));
  WN_TRY(WN_ALLOC(f->ctx, to->module, to->rank * to->rows, &to->b)); /* zeros */
  for (int i = 0; i < to->count; i++) {
    const struct wn_adapter_update *u = &to->updates[i];
    memcpy(to->a + i * r * K, u->a, (size_t)(r * K) * sizeof(float));
    snprintf(row.name, sizeof row.name, "%s", u->row);
    for (int64_t n = 0; n < u->rows; n++) {
      const int64_t theirs = other ? wn_names_other_row(f->config, &row, u->first + n) : u->first + n;
      memcpy(to->b + (theirs - to->first) * to->rank + i * r, u->b + n * r, (size_t)r * sizeof(float));
    }
  }
  return WN_OK;
}

/* "self_attn.q_proj": enough to tell a projection from the others. */
static const char *adapter_target(const char *module) {
  const char *at = module + strlen(module);
  for (int dots = 0; at > module; at--)
    if (at[-1] == '.' && ++dots == 2) break;
  return at;
}

static json_t *adapter_config(const struct adapter_file *f) {
  struct wn_hf_object object = {.json = json_object()}, *o = &object;
  json_t *targets = json_array();
  struct wn_hf_object ranks = {.json = json_object()}, alphas = {.json = json_object()};
  bool transposed = false;
  for (int i = 0; i < f->count; i++) {
    const char *target = adapter_target(f->out[i].module);
    bool known = false;
    for (size_t k = 0; k < json_array_size(targets); k++)
      known |= !strcmp(json_string_value(json_array_get(targets, k)), target);
    transposed |= f->out[i].transposed;
    if (known) continue;
    o->failed |= json_array_append_new(targets, json_string(target)) != 0;
    if (f->out[i].count == 1) continue;
    wn_hf_put(&ranks, target, json_integer(f->out[i].rank));
    wn_hf_put(&alphas, target, json_real(f->updates->alpha * f->out[i].count));
  }
  o->failed |= ranks.failed || alphas.failed;
  wn_hf_put(o, "peft_type", json_string("LORA"));
  wn_hf_put(o, "task_type", json_string("CAUSAL_LM"));
  wn_hf_put(o, "base_model_name_or_path", *f->updates->base ? json_string(f->updates->base) : json_null());
  wn_hf_put(o, "inference_mode", json_true());
  wn_hf_put(o, "r", json_integer(f->updates->rank));
  wn_hf_put(o, "lora_alpha", json_real(f->updates->alpha));
  wn_hf_put(o, "lora_dropout", json_real(0));
  wn_hf_put(o, "bias", json_string("none"));
  wn_hf_put(o, "fan_in_fan_out", json_boolean(transposed));
  wn_hf_put(o, "init_lora_weights", json_true());
  wn_hf_put(o, "use_rslora", json_false());
  wn_hf_put(o, "use_dora", json_false());
  wn_hf_put(o, "modules_to_save", json_null());
  wn_hf_put(o, "target_modules", targets);
  wn_hf_put(o, "rank_pattern", ranks.json);
  wn_hf_put(o, "alpha_pattern", alphas.json);
  if (!o->failed) return o->json;
  json_decref(o->json);
  return NULL;
}

static wn_status adapter_write_files(struct adapter_file *f, const char *dir) {
  static const char *const metadata[] = {"format", "pt", "producer", "winnow", NULL};
  char path[4096];
  wn_safetensors_entry *entries;
  char(*names)[WN_NAME_BYTES + 64] = NULL;
  json_t *config = NULL;
  wn_status status = WN_ALLOC(f->ctx, "list of updates", 2 * f->count, &entries);
  if (status == WN_OK) status = WN_ALLOC(f->ctx, "names of updates", 2 * f->count, &names);
  for (int i = 0; status == WN_OK && i < 2 * f->count; i++) {
    const struct adapter_out *x = &f->out[i / 2];
    const bool b = i % 2;
    const int64_t rows = b ? x->rows : x->rank, columns = b ? x->rank : x->columns;
    snprintf(names[i], sizeof names[i], "base_model.model.%s.lora_%c.weight", x->module, b ? 'B' : 'A');
    entries[i] = (wn_safetensors_entry){.name = names[i],
                                        .dtype = WN_F32,
                                        .ndim = 2,
                                        .shape = {rows, columns},
                                        .data = b ? x->b : x->a,
                                        .bytes = (size_t)(rows * columns) * sizeof(float)};
  }
  if (status == WN_OK) status = wn_path_join(f->ctx, path, sizeof path, dir, "adapter_model.safetensors");
  if (status == WN_OK) status = wn_safetensors_write(f->ctx, path, entries, 2 * f->count, metadata);
  if (status == WN_OK) status = wn_path_join(f->ctx, path, sizeof path, dir, "adapter_config.json");
  if (status == WN_OK) config = adapter_config(f);
  if (status == WN_OK && !config) status = wn_fail(f->ctx, WN_ERR_MEMORY, "out of memory: adapter_config.json");
  if (status == WN_OK) status = wn_json_save_file(f->ctx, path, config);
  json_decref(config);
  wn_free(entries);
  wn_free(names);
  return status;
}

wn_status wn_adapter_write(wn_context *ctx, const char *dir, const wn_model_config *config,
                           const struct wn_adapter_updates *updates) {
  const struct wn_family *family = wn_family_of(config, WN_FORM_HF);
  struct adapter_file f = {.ctx = ctx, .config = config, .updates = updates};
  if (!family || !family->hf.names) return WN_OK;
  f.names = family->hf.names;
  wn_status status = adapter_list(&f);
  for (int i = 0; status == WN_OK && i < f.count; i++) status = adapter_fill(&f, &f.out[i]);
  if (status == WN_OK && f.count > 0) status = adapter_write_files(&f, dir);
  for (int i = 0; i < f.count; i++) {
    wn_free(f.out[i].a);
    wn_free(f.out[i].b);
  }
  wn_free(f.out);
  return status;
}
