/* Reads peft's adapters and adds them to a model's projections. Cost: 2 r in out operations per projection.
 *
 * Nothing in the files is trusted. Every tensor must be one of a pair (A, B) that belongs to a projection and fits its
 * shape. Ranks must be those of adapter_config.json. Keys there that ask for more than W + alpha/r B A are refused. */
#include "formats/adapter.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/fields.h"
#include "base/parallel.h"
#include "base/text.h"
#include "io/folder.h"

struct adapter_map {
  struct wn_param row; /* ours */
  int64_t first, rows, rank;
  double scale;
  bool embedding;                       /* a and b are b and a, transposed */
  const struct wn_tensor *a, *b, *base; /* base: replaces the model's own weights; or NULL */
};

struct wn_adapter {
  char where[4096]; /* adapter_config.json */
  json_t *config;
  struct wn_tensors *tensors;
  struct adapter_map *maps;
  int count;
  bool unties;
};

/* ---- adapter_config.json ---- */

static wn_status adapter_refuse(const struct wn_hf_keys *k) {
  static const struct {
    const char *key, *what;
  } known[] = {{"use_dora", "magnitudes (DoRA)"},
               {"use_qalora", "pooled inputs (QALoRA)"},
               {"use_bdlora", "blocks (BD-LoRA)"},
               {"lora_bias", "biases of updates"},
               {"layer_replication", "layers that are used several times"},
               {"trainable_token_indices", "rows of the embedding"},
               {"target_parameters", "parameters that are no projections"},
               {"alora_invocation_tokens", "updates from a token on"},
               {"modules_to_save", "whole modules beside the updates"},
               {"arrow_config", "a router of adapters"},
               {"monteclora_config", "random updates"},
               {"kasa_config", "another decomposition"},
               {"velora_config", "another decomposition"}};
  const char *type, *bias;
  WN_TRY(wn_hf_text(k, "peft_type", "", &type));
  if (strcmp(type, "LORA") != 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"peft_type\" is \"%.60s\"; LORA is supported", k->where, type);
  WN_TRY(wn_hf_text(k, "bias", "none", &bias));
  if (strcmp(bias, "none") != 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"bias\" is \"%.60s\"; none is supported", k->where, bias);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const json_t *v = wn_hf_find(k, known[i].key);
    const bool empty = json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
                       (json_is_object(v) && json_object_size(v) == 0);
    if (v && !empty)
      return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"%s\" asks for %s, which is not supported", k->where,
                     known[i].key, known[i].what);
  }
  /* The initialisations that leave the base model's weights as they are. Others change them, so that the update is not
   * relative to the original weights. */
  static const char *const harmless[] = {"gaussian", "eva", "orthogonal", NULL};
  const char *start = json_string_value(wn_hf_find(k, "init_lora_weights"));
  if (start && !wn_listed(harmless, start))
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"init_lora_weights\" is \"%.60s\", which changes the base model; save the adapter converted "
                   "to the original one",
                   k->where, start);
  return WN_OK;
}

/* The number for a module: that of the first pattern that equals its name or ends it, else `otherwise`. */
static wn_status adapter_pattern(const struct wn_hf_keys *k, const char *patterns, const char *module, double otherwise,
                                 double *out) {
  const json_t *object = wn_hf_find(k, patterns);
  const size_t n = strlen(module);
  const char *key;
  json_t *value;
  *out = otherwise;
  if (object && !json_is_object(object))
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\" is not an object", k->where, patterns);
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {
    const size_t m = strlen(key);
    if (strpbrk(key, "^$*+?()[]{}|\\"))
      return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                     "%s: \"%s\": \"%.100s\" is a regular expression; names of modules are supported", k->where,
                     patterns, key);
    if (!json_is_number(value))
      return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: \"%s\": \"%.100s\" is not a number", k->where, patterns, key);
    if (m > n || strcmp(module + n - m, key) != 0 || (m < n && module[n - m - 1] != '.')) continue;
    *out = json_number_value(value);
    return WN_OK;
  }
  return WN_OK;
}

static wn_status adapter_scale(const struct wn_hf_keys *k, const char *module, int64_t rank, double *out) {
  int64_t r;
  double alpha, wanted;
  bool root;
  WN_TRY(wn_hf_int(k, "r", 8, &r));
  WN_TRY(wn_hf_real(k, "lora_alpha", 8, &alpha));
  WN_TRY(wn_hf_flag(k, "use_rslora", false, &root));
  WN_TRY(adapter_pattern(k, "rank_pattern", module, (double)r, &wanted));
  WN_TRY(adapter_pattern(k, "alpha_pattern", module, alpha, &alpha));
  if (wanted != (double)rank)
    return wn_fail(k->ctx, WN_ERR_SHAPE, "%s: the rank of %.200s is %g, its tensors have %lld", k->where, module,
                   wanted, (long long)rank);
  if (!isfinite(alpha) || fabs(alpha) > 1e6)
    return wn_fail(k->ctx, WN_ERR_CONFIG, "%s: the alpha of %.200s is %g; at most 1e6 is expected", k->where, module,
                   alpha);
  *out = alpha / (root ? sqrt((double)rank) : (double)rank);
  return WN_OK;
}

/* ---- tensors ---- */

/* How peft names and shapes the two halves of an update. */
struct halves {
  const char *a, *b, *end;
};
static const struct halves of_projection = {"lora_A", "lora_B", ".weight"},
                           of_embedding = {"lora_embedding_A", "lora_embedding_B", ""};

/* One half of a module's update; NULL: the adapter has none. */
static const struct wn_tensor *adapter_half(const struct wn_adapter *x, const char *module, const char *half,
                                            const char *ends) {
  char name[WN_NAME_BYTES + 64];
  snprintf(name, sizeof name, "base_model.model.%s.%s%s", module, half, ends);
  const int at = wn_tensors_find(x->tensors, name);
  return at < 0 ? NULL : wn_tensors_at(x->tensors, at);
}

static wn_status adapter_check_half(wn_context *ctx, const struct wn_tensor *t, int64_t rows, int64_t columns) {
  if (t->is_weights && t->t.ndim == 2 && t->t.shape[0] == rows && t->t.shape[1] == columns) return WN_OK;
  return wn_fail(ctx, WN_ERR_SHAPE, "%s: tensor %s is not of shape [%lld,%lld] and of F32, F16 or BF16", t->file,
                 t->t.name, (long long)rows, (long long)columns);
}

/* Finds the update of one projection, if the adapter has one. */
static wn_status adapter_find(wn_context *ctx, struct wn_adapter *x, const struct wn_param *row,
                              const struct wn_name_part *part, const char *prefix, uint8_t *used) {
  const struct wn_hf_keys keys = {ctx, x->where, x->config};
  char module[WN_NAME_BYTES];
  const size_t n = strlen(part->name), end = strlen(".weight"), skip = strlen(prefix);
  if (part->listed || n <= end || strcmp(part->name + n - end, ".weight") != 0) return WN_OK;
  snprintf(module, sizeof module, "%.*s", (int)(n - end), part->name);
  const bool embedding = !strcmp(row->name, "embed.weight");
  const struct halves *how = embedding ? &of_embedding : &of_projection;
  const char *name = module;
  const struct wn_tensor *a = adapter_half(x, name, how->a, how->end), *b = adapter_half(x, name, how->b, how->end);
  if (!a && !b &&
      !strncmp(module, prefix,
               skip)) { /* the adapter was made for the model without its head, so names lack the prefix */
    name = module + skip;
    a = adapter_half(x, name, how->a, how->end), b = adapter_half(x, name, how->b, how->end);
  }
  if (!a && !b) return WN_OK;
  if (!a || !b)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %s has %s alone", wn_tensors_where(x->tensors), name, a ? how->a : how->b);
  const int64_t rank = a->is_weights && a->t.ndim == 2 ? a->t.shape[0] : 0;
  WN_TRY(adapter_check_half(ctx, a, rank > 0 ? rank : 1, embedding ? part->rows : row->shape[1]));
  WN_TRY(adapter_check_half(ctx, b, embedding ? row->shape[1] : part->rows, rank));
  struct adapter_map *m = &x->maps[x->count++];
  *m = (struct adapter_map){
      .row = *row, .first = part->first, .rows = part->rows, .rank = rank, .embedding = embedding, .a = a, .b = b};
  used[a - wn_tensors_at(x->tensors, 0)] = used[b - wn_tensors_at(x->tensors, 0)] = 1;
  char base[WN_NAME_BYTES + 64]; /* peft also saves the base weights of an output or embedding that has updates */
  snprintf(base, sizeof base, "base_model.model.%s.base_layer.weight", name);
  const int at = wn_tensors_find(x->tensors, base);
  if (at >= 0) {
    m->base = wn_tensors_at(x->tensors, at);
    used[at] = 1;
    if (part->transposed)
      return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: tensor %s is not supported", m->base->file, base);
    WN_TRY(adapter_check_half(ctx, m->base, part->rows, row->shape[1]));
  }
  return adapter_scale(&keys, name, rank, &m->scale);
}

/* Decides about a tied output: peft updates only what the adapter names, unless it is told to keep the two tied. */
static wn_status adapter_check_tied(wn_context *ctx, struct wn_adapter *x, const struct wn_import *im) {
  const struct wn_hf_keys keys = {ctx, x->where, x->config};
  const bool output = wn_adapter_changes(x, "output.weight"), embedding = wn_adapter_changes(x, "embed.weight");
  bool both;
  WN_TRY(wn_hf_flag(&keys, "ensure_weight_tying", false, &both));
  x->unties = im->config.tied && (output || (embedding && !both));
  return WN_OK;
}

static wn_status adapter_bind(wn_context *ctx, struct wn_adapter *x, const struct wn_import *im, uint8_t *used) {
  wn_model_config untied = im->config;
  untied.tied = false;
  const struct wn_family *family = im->family ? im->family : wn_family_of(&im->config, WN_FORM_HF);
  const int count = wn_tensors_count(x->tensors);
  if (!family || !family->hf.names)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: transformers has no names for the tensors of a model like this",
                   im->where);
  const struct wn_names *names = family->hf.names;
  WN_TRY(WN_ALLOC(ctx, "updates of an adapter", count / 2 + 1, &x->maps));
  for (int64_t p = 0; p < wn_param_slot_count(&untied); p++) {
    struct wn_param row;
    struct wn_name_part parts[3];
    WN_TRY(wn_param_slot(ctx, &untied, p, &row));
    if (row.ndim != 2 || !row.packs) continue;
    const int n = wn_names_parts(names, &im->config, names->prefix, &row, parts);
    for (int k = 0; k < n; k++) WN_TRY(adapter_find(ctx, x, &row, &parts[k], names->prefix, used));
  }
  for (int i = 0; i < count; i++)
    if (!used[i])
      return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: tensor %s is no update of a projection that this model has",
                     wn_tensors_where(x->tensors), wn_tensors_at(x->tensors, i)->t.name);
  if (x->count == 0) return wn_fail(ctx, WN_ERR_FORMAT, "%s: there are no updates", wn_tensors_where(x->tensors));
  return adapter_check_tied(ctx, x, im);
}

wn_status wn_adapter_open(wn_context *ctx, const char *dir, const struct wn_import *im, struct wn_adapter **out) {
  void *used = NULL;
  *out = NULL;
  struct wn_adapter *x;
  WN_TRY(WN_ALLOC(ctx, "an adapter", 1, &x));
  wn_status status = wn_folder_file(ctx, x->where, sizeof x->where, dir, "adapter_config.json");
  if (status == WN_OK) status = wn_json_load_file(ctx, WN_JSON_CONFIG, x->where, &x->config);
  if (status == WN_OK && !json_is_object(x->config))
    status = wn_fail(ctx, WN_ERR_CONFIG, "%s: expected a JSON object", x->where);
  const struct wn_hf_keys inside = {ctx, x->where, x->config};
  if (status == WN_OK) status = adapter_refuse(&inside);
  if (status == WN_OK) status = wn_tensors_open_file(ctx, dir, "adapter_model.safetensors", &x->tensors);
  if (status == WN_OK) status = wn_tensors_check(ctx, x->tensors, true);
  if (status == WN_OK) status = wn_alloc(ctx, "marks of tensors", (size_t)wn_tensors_count(x->tensors) + 1, &used);
  if (status == WN_OK) status = adapter_bind(ctx, x, im, used);
  wn_free(used);
  if (status != WN_OK) {
    wn_adapter_close(x);
    return status;
  }
  *out = x;
  return WN_OK;
}

void wn_adapter_close(struct wn_adapter *x) {
  if (!x) return;
  json_decref(x->config);
  wn_tensors_close(x->tensors);
  wn_free(x->maps);
  wn_free(x);
}

bool wn_adapter_changes(const struct wn_adapter *x, const char *row) {
  for (int i = 0; i < x->count; i++)
    if (!strcmp(x->maps[i].row.name, row)) return true;
  return false;
}

/* ---- adding ---- */

bool wn_adapter_unties(const struct wn_adapter *x) {
  return x->unties;
}

static wn_status adapter_read(wn_context *ctx, const struct wn_tensor *t, float **out) {
  const int64_t n = t->t.shape[0] * t->t.shape[1];
  WN_TRY(WN_ALLOC(ctx, t->t.name, n, out));
  WN_TRY(wn_tensor_read(ctx, t, 0, n, *out));
  for (int64_t i = 0; i < n; i++)
    if (!isfinite((*out)[i]))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s holds values that are not finite", t->file, t->t.name);
  return WN_OK;
}

/* The same, transposed. */
static wn_status adapter_read_turned(wn_context *ctx, const struct wn_tensor *t, float **out) {
  const int64_t rows = t->t.shape[0], columns = t->t.shape[1];
  float *x = NULL;
  wn_status status = adapter_read(ctx, t, &x);
  if (status == WN_OK) status = WN_ALLOC(ctx, t->t.name, rows * columns, out);
  for (int64_t c = 0; status == WN_OK && c < columns; c++)
    for (int64_t r = 0; r < rows; r++) (*out)[c * rows + r] = x[r * columns + c];
  wn_free(x);
  return status;
}

struct adapter_sum {
  const struct adapter_map *m;
  const wn_model_config *c;
  const float *a, *b, *base;
  float *w; /* the whole tensor's */
  atomic_bool endless;
};
static void adapter_add_row(void *args, int64_t row) {
  struct adapter_sum *x = args;
  const struct adapter_map *m = x->m;
  const int64_t K = m->row.shape[1];
  const int64_t r = m->first + row;
  const int64_t theirs = x->c->rope_pairs == WN_ROPE_HALVES ? r : wn_names_other_row(x->c, &m->row, r);
  const float *of = x->b + (theirs - m->first) * m->rank;
  float *to = x->w + r * K;
  if (x->base) memcpy(to, x->base + (theirs - m->first) * K, (size_t)K * sizeof *to);
  for (int64_t k = 0; k < m->rank; k++) {
    const float by = (float)(m->scale * (double)of[k]);
    for (int64_t i = 0; i < K; i++) to[i] += by * x->a[k * K + i];
  }
  bool endless = false;
  for (int64_t i = 0; i < K; i++) endless |= !isfinite(to[i]);
  if (endless) x->endless = true;
}

/* w [rows,K] += scale b a, in the model's order of rows. False: a sum is not finite, which is possible even with finite
 * factors. */
static bool adapter_add(wn_context *ctx, const struct adapter_map *m, const wn_model_config *c, const float *a,
                        const float *b, const float *base, float *w) {
  struct adapter_sum x = {.m = m, .c = c, .a = a, .b = b, .base = base, .w = w};
  wn_parallel_for(ctx->threads, m->rows, adapter_add_row, &x);
  return !x.endless;
}

static wn_status adapter_merge(wn_context *ctx, const struct wn_adapter *x, const struct wn_model *model,
                               float *params) {
  for (int i = 0; i < x->count; i++) {
    const struct adapter_map *m = &x->maps[i];
    const int at = wn_param_find(&model->table, m->row.name);
    float *a = NULL, *b = NULL, *base = NULL;
    wn_status (*const read)(wn_context *, const struct wn_tensor *, float **) =
        m->embedding ? adapter_read_turned : adapter_read;
    wn_status status = read(ctx, m->embedding ? m->b : m->a, &a);
    if (status == WN_OK) status = read(ctx, m->embedding ? m->a : m->b, &b);
    if (status == WN_OK && m->base) status = adapter_read(ctx, m->base, &base);
    if (status == WN_OK && !adapter_add(ctx, m, &model->config, a, b, base, params + model->table.rows[at].offset))
      status = wn_fail(ctx, WN_ERR_FORMAT, "%s: with the update by %s, %s holds values that are not finite", m->b->file,
                       m->b->t.name, m->row.name);
    wn_free(a);
    wn_free(b);
    wn_free(base);
    WN_TRY(status);
  }
  return WN_OK;
}

wn_status wn_adapter_merge(wn_context *ctx, const struct wn_adapter *x, struct wn_model *model) {
  void *params;
  WN_TRY(wn_model_params_open(model, &params));
  const wn_status status = adapter_merge(ctx, x, model, params), closed = wn_model_params_close(model, params, true);
  return status == WN_OK ? closed : status;
}
