/* Adapts a pretrained model to mechanisms that it was not trained with (docs/adapt.md). The new model has all
 * parameters of the old one; the mechanisms' own parameters start where they have no effect:
 *   strength of selection 0      F = 0
 *   gate of exclusive attention 0   nothing is projected out
 *   spans: ratio 1 the whole limit, which must be at least the context
 *   dynamic spans: weight 0, bias 20   z = 1 - 2e-9 rounds to 1
 *   relative positions and position biases 0
 *   gates on keys: weight 0, bias 20; the hidden layer of their network stays random, or nothing would train it
 * Biases of 20 are then lowered (wn_adapt_strength_set), or their sigmoids would have no slope to learn by.
 * The projections of a bilinear form act only through the strength. They may start at random, or as copies of the
 * selecting head's query and key projections (the bilinear form then lacks their rotation and QK-norm). This list is
 * not relied on: the logits of both models are compared before the first step. */
#include "train/adapt.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "attention/registry.h"
#include "base/fields.h"
#include "base/misuse.h"
#include "model/run.h"
#include "train/recipe.h"

/* A model with its parameters readable on the host. */
struct open_model {
  const struct wn_model *model;
  void *params;
};

static float *values(const struct open_model *m, const struct wn_param *row) {
  return (float *)m->params + row->offset;
}

/* ---- start ---- */

/* Copies the weights of a mechanism's input from rows of the model's fused projection. */
static wn_status from_head(wn_context *ctx, const struct open_model *m, const struct wn_param *row) {
  const struct wn_model *model = m->model;
  const wn_model_config *c = &model->config;
  const struct wn_mechanism_input *how = row->projects;
  const int64_t D = c->head_size, C = c->width, share = c->heads / c->kv_heads;
  const int64_t groups = row->shape[0] / D, apart = c->heads / groups;
  char name[96];
  snprintf(name, sizeof name, "%.*sattn.qkv.weight", (int)(strlen(row->name) - strlen(how->weight)), row->name);
  const int at = wn_param_find(&model->table, name);
  if (at < 0) return wn_fail(ctx, WN_ERR_CONFIG, "adapt: no %s to start %s from", name, row->name);
  const float *qkv = values(m, &model->table.rows[at]);
  for (int64_t g = 0; g < groups; g++) {
    const int64_t head = g * apart + how->source_head(&c->attention);
    const int64_t first = how->source == WN_INPUT_OF_KEYS ? (c->heads + head / share) * D : head * D;
    memcpy(values(m, row) + g * D * C, qkv + first * C, (size_t)(D * C) * sizeof(float));
  }
  return WN_OK;
}

/* Initialises a parameter that the old model lacks. */
static wn_status neutral(wn_context *ctx, const wn_train_config *config, const struct open_model *m,
                         const struct wn_param *row) {
  const bool source = row->projects && row->projects->source != WN_INPUT_OF_NOTHING;
  if (source) return config->select_from_head ? from_head(ctx, m, row) : WN_OK;
  for (size_t i = 0; i < row->count && !isnan(row->neutral); i++) values(m, row)[i] = (float)row->neutral;
  return WN_OK;
}

static wn_status adapt_fill(wn_context *ctx, const char *from, const struct open_model *its_model,
                            const wn_train_config *config, const struct open_model *m) {
  const struct wn_model *given = its_model->model, *model = m->model;
  const bool adapt = config && config->adapt;
  for (int i = 0; i < model->table.count; i++) {
    const struct wn_param *row = &model->table.rows[i];
    const int at = wn_param_find(&given->table, row->name);
    const struct wn_param *its = at >= 0 ? &given->table.rows[at] : NULL;
    bool same = its && its->ndim == row->ndim;
    for (int d = 0; same && d < row->ndim; d++) same = its->shape[d] == row->shape[d];
    if (same)
      memcpy(values(m, row), values(its_model, its), row->count * sizeof(float));
    else if (its || !adapt || !row->mechanism)
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: %s \"%s\", which the recipe's model has", from,
                     its ? "has another shape of" : "has no", row->name);
  }
  for (int i = 0; i < model->table.count; i++) {
    const struct wn_param *row = &model->table.rows[i];
    if (adapt && wn_param_find(&given->table, row->name) < 0) WN_TRY(neutral(ctx, config, m, row));
  }
  /* A parameter of the old model that this one lacks must not be lost silently. */
  const char *lost = NULL;
  int others = -1;
  for (int i = 0; i < given->table.count; i++)
    if (wn_param_find(&model->table, given->table.rows[i].name) < 0) {
      if (!lost) lost = given->table.rows[i].name;
      others++;
    }
  if (lost && adapt) return wn_fail(ctx, WN_ERR_CONFIG, "%s has \"%s\", which the recipe's model lacks", from, lost);
  char more[48] = "";
  if (others > 0) snprintf(more, sizeof more, " and %d other%s", others, others == 1 ? "" : "s");
  if (lost)
    wn_log(ctx, WN_LOG_WARNING, "%s has \"%s\"%s, which the recipe's model lacks: it starts without", from, lost, more);
  return WN_OK;
}

/* Settings that no parameter's shape reveals but to which the values were trained: with another number of heads or
 * other angles a trained model would have to be trained anew. */
static const char *const unseen[] = {"heads",      "norm_place", "norm_eps",     "position", "rope_theta",
                                     "rope_pairs", "rope_size",  "rope_scaling", "ffn"};

static wn_status adapt_tell_unseen(wn_context *ctx, const char *from, const wn_model_config *given,
                                   const wn_model_config *taken) {
  const wn_model_config *configs[] = {given, taken};
  json_t *all[2] = {NULL, NULL};
  char told[512] = "";
  size_t n = 0;
  wn_status status = WN_OK;
  for (int i = 0; i < 2 && status == WN_OK; i++) {
    char *text = NULL;
    status = wn_model_config_json(ctx, configs[i], &text);
    if (status == WN_OK) status = wn_json_load_text(ctx, WN_JSON_CONFIG, from, text, strlen(text), &all[i]);
    wn_text_free(text);
  }
  for (size_t i = 0; status == WN_OK && i < sizeof unseen / sizeof *unseen && n < sizeof told; i++) {
    const json_t *its = json_object_get(all[0], unseen[i]), *ours = json_object_get(all[1], unseen[i]);
    if (json_equal(its, ours) || (!strncmp(unseen[i], "rope_", 5) && taken->position != WN_POS_ROPE)) continue;
    const size_t how = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(8);
    char *was = json_dumps(its, how), *is = json_dumps(ours, how);
    if (was && is)
      n += (size_t)snprintf(told + n, sizeof told - n, "%smodel.%s %s, not %s", n ? ", " : "", unseen[i], is, was);
    free(was);
    free(is);
  }
  json_decref(all[0]);
  json_decref(all[1]);
  if (n) wn_log(ctx, WN_LOG_WARNING, "%s was trained otherwise than the recipe has it: %s", from, told);
  return status;
}

wn_status wn_adapt_start(wn_context *ctx, const char *from, const struct wn_model *given, const wn_train_config *config,
                         struct wn_model *model) {
  struct open_model its = {given, NULL}, ours = {model, NULL};
  wn_status status = wn_model_params_open(given, &its.params);
  if (status == WN_OK) status = wn_model_params_open(model, &ours.params);
  if (status == WN_OK) status = adapt_fill(ctx, from, &its, config, &ours);
  if (status == WN_OK) status = adapt_tell_unseen(ctx, from, &given->config, &model->config);
  const wn_status closed[] = {wn_model_params_close(given, its.params, false),
                              wn_model_params_close(model, ours.params, status == WN_OK)};
  for (int i = 0; i < 2 && status == WN_OK; i++) status = closed[i];
  return status == WN_OK ? wn_model_rotary_refresh(model) : status; /* rope.factors is among the parameters */
}

/* The setting under which a mechanism starts without effect, "selective.strength=learned"; false: it has none. */
static bool neutral_setting(const struct wn_mechanism *m, const wn_model_config *c, char *out, size_t bytes) {
  if (!m->adapt_key) return false;
  if (m->adapt_value)
    snprintf(out, bytes, "%s=%s", m->adapt_key, m->adapt_value);
  else
    snprintf(out, bytes, "%s=%lld", m->adapt_key, (long long)c->context);
  return true;
}

/* These settings of all mechanisms, for a message. */
static void neutral_keys(const wn_model_config *c, char *out, size_t bytes) {
  char one[96];
  size_t n = 0;
  out[0] = 0;
  for (int i = 0; i < wn_mechanism_count() && n < bytes; i++)
    if (neutral_setting(wn_mechanism_at(i), c, one, sizeof one))
      n += (size_t)snprintf(out + n, bytes - n, "%s%s", n ? ", " : "", one);
}

/* ---- check ---- */

/* The difference between two models' logits. */
struct distance {
  double largest, apart; /* largest: of the first model's logits; apart: the largest difference, or NaN */
  int64_t where;         /* the position of `apart` */
};

/* Compares some rows at a time, since the logits of a long text may be larger than the model. */
static wn_status compare_logits(wn_context *ctx, struct wn_logits_pass *const pass[2], int64_t T, int64_t V,
                                struct distance *out) {
  int64_t most = T;
  void *memory[2] = {NULL, NULL};
  wn_status status = WN_OK;
  for (int i = 0; i < 2; i++)
    if (wn_logits_pass_most(pass[i]) < most) most = wn_logits_pass_most(pass[i]);
  for (int i = 0; i < 2 && status == WN_OK; i++)
    status = wn_alloc(ctx, "logits to compare", (size_t)(most * V) * sizeof(float), &memory[i]);
  for (int64_t first = 0; first < T && status == WN_OK; first += most) {
    const int64_t rows = T - first < most ? T - first : most;
    for (int i = 0; i < 2 && status == WN_OK; i++) status = wn_logits_pass_rows(pass[i], first, rows, memory[i]);
    const float *a = memory[0], *b = memory[1];
    for (int64_t i = 0; status == WN_OK && i < rows * V && !isnan(out->apart); i++) {
      const double difference = fabs((double)a[i] - (double)b[i]);
      out->largest = fmax(out->largest, fabs((double)a[i]));
      if (!(difference <= out->apart)) out->apart = difference, out->where = first + i / V;
    }
  }
  wn_free(memory[0]);
  wn_free(memory[1]);
  return status;
}

wn_status wn_adapt_check(wn_context *ctx, const char *from, struct wn_model *given, struct wn_model *model,
                         const wn_model_inputs *inputs, const int32_t *tokens, int64_t T) {
  struct wn_logits_pass *pass[2] = {NULL, NULL};
  struct distance d = {0};
  struct wn_batch batch = {.B = 1, .T = T, .tokens = tokens};
  if (inputs) batch.S = inputs->S, batch.inputs = inputs->tokens, batch.input_count = inputs->count;
  wn_status status = wn_logits_pass_begin(ctx, given, &batch, &pass[0]);
  if (status == WN_OK) status = wn_logits_pass_begin(ctx, model, &batch, &pass[1]);
  if (status == WN_OK) status = compare_logits(ctx, pass, T, model->config.vocab_size, &d);
  for (int i = 0; i < 2; i++) wn_logits_pass_end(pass[i]);
  if (status != WN_OK) return status;
  if (!(d.apart <= 1e-4 * fmax(1, d.largest))) {
    char keys[256];
    neutral_keys(&model->config, keys, sizeof keys);
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "the model does not start as %s: at position %lld logits differ by %.3g (they reach %.3g). What is "
                   "new must start without effect, as with %s",
                   from, (long long)d.where, d.apart, d.largest, keys);
  }
  wn_log(ctx, WN_LOG_INFO, "the model starts as %s: over %lld positions logits differ by at most %.3g", from,
         (long long)T, d.apart);
  return WN_OK;
}

/* ---- recipe ---- */

/* The defaults of an adaptation, which file and sets override: a short run at a small rate, and settings with which new
 * mechanisms start without effect. now: only mechanisms that are on there; NULL: all. */
static wn_status defaults(wn_context *ctx, const wn_model_config *c, const wn_attention_config *now, json_t *recipe) {
  static const char *const train[] = {"train.steps=300",       "train.batch=4",        "train.lr=0.0001",
                                      "train.warmup=20",       "train.weight_decay=0", "train.eval_every=100",
                                      "train.lr_mechanisms=30"};
  wn_status status = WN_OK;
  for (size_t i = 0; i < sizeof train / sizeof *train && status == WN_OK; i++)
    status = wn_json_set(ctx, recipe, train[i], false);
  for (int i = 0; i < wn_mechanism_count() && status == WN_OK; i++) {
    char setting[128] = "model.attention.";
    const size_t n = strlen(setting);
    if (!wn_mechanism_at(i)->is_enabled(&c->attention) && (!now || wn_mechanism_at(i)->is_enabled(now)) &&
        neutral_setting(wn_mechanism_at(i), c, setting + n, sizeof setting - n))
      status = wn_json_set(ctx, recipe, setting, false);
  }
  return status;
}

/* In a recipe the presence of a mechanism's object enables it. The old model's configuration has all of these objects,
 * most with "enabled": false, which must not override a file that names the mechanism. */
static bool enable(const json_t *its, json_t *file) {
  const char *key;
  json_t *value;
  void *next;
  json_object_foreach_safe(file, next, key, value) {
    const json_t *old = json_object_get(its, key);
    if (!json_is_object(old)) continue;
    if (json_is_boolean(value) && json_object_get(old, "enabled")) {
      if (json_object_set_new(file, key, json_pack("{s:b}", "enabled", json_is_true(value))) != 0) return false;
    } else if (json_is_object(value)) {
      if (json_object_get(old, "enabled") && !json_object_get(value, "enabled") &&
          json_object_set_new(value, "enabled", json_true()) != 0)
        return false;
      if (!enable(old, value)) return false;
    }
  }
  return true;
}

/* The inputs of an adaptation. */
struct adaptation {
  const char *where;
  const wn_model_config *config; /* the old model's */
  const json_t *its;             /* the same as JSON */
  const json_t *file;            /* the user's file; or NULL */
  const char *const *sets;
  int set_count;
};

/* Reads the recipe, with the defaults of the mechanisms that are on in `now`. */
static wn_status read_adapted(wn_context *ctx, const struct adaptation *a, const wn_attention_config *now,
                              wn_recipe *out) {
  json_t *recipe = json_pack("{s:o}", "model", json_deep_copy(a->its)), *changes = json_deep_copy(a->file);
  wn_status status = recipe && (changes || !a->file) ? defaults(ctx, a->config, now, recipe)
                                                     : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a recipe");
  if (status == WN_OK && changes && (!enable(recipe, changes) || json_object_update_recursive(recipe, changes) != 0))
    status = wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a recipe");
  if (status == WN_OK) status = wn_recipe_read(ctx, a->where, recipe, a->sets, a->set_count, out);
  json_decref(changes);
  json_decref(recipe);
  return status;
}

wn_status wn_adapt_recipe(wn_context *ctx, const char *model, const char *path, const char *const *sets, int set_count,
                          wn_recipe *out) {
  WN_CHECK_WORK(WN_POINTER(model), WN_ARRAY(sets, set_count), WN_POINTER(out));
  struct wn_model *given;
  char *text = NULL;
  json_t *its = NULL, *file = NULL;
  wn_recipe asked;
  WN_TRY(wn_model_load(ctx, model, NULL, &given));
  const wn_model_config config = given->config;
  wn_model_destroy(given);
  WN_TRY(wn_model_config_json(ctx, &config, &text));
  wn_status status = wn_json_load_text(ctx, WN_JSON_CONFIG, model, text, strlen(text), &its);
  wn_text_free(text);
  if (status == WN_OK && path) {
    status = wn_json_load_file(ctx, WN_JSON_CONFIG, path, &file);
    if (status == WN_OK && !json_is_object(file)) status = wn_fail(ctx, WN_ERR_CONFIG, "%s: expected an object", path);
    if (status == WN_OK) status = wn_recipe_check_json(ctx, path, file);
  }
  /* Read twice: the first reading tells which mechanisms are new, so that others do not get settings without effect. */
  const struct adaptation a = {
      .where = path ? path : model, .config = &config, .its = its, .file = file, .sets = sets, .set_count = set_count};
  if (status == WN_OK) status = read_adapted(ctx, &a, NULL, &asked);
  if (status == WN_OK) status = read_adapted(ctx, &a, &asked.model.attention, out);
  json_decref(file);
  json_decref(its);
  if (status != WN_OK) return status;
  if (snprintf(out->train.init, sizeof out->train.init, "%s", model) >= (int)sizeof out->train.init)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: the path is too long", model);
  out->train.adapt = true;
  return WN_OK;
}
