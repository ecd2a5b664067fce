/* A recipe's keys depend on each other in two ways. Keys beside a key "enabled" have no effect unless it is true; this
 * holds for every mechanism and needs no table. All other dependencies have a row in the table. Left out on purpose:
 * settings of one alternative (beta2, min_lr_ratio, eval_batches), which a recipe keeps while another is tried, and
 * keys that `winnow adapt` sets itself (lr_mechanisms). */
#include "train/idle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fields.h"
#include "base/number.h"
#include "base/text.h"
#include "train/recipe.h"

enum { NAME_BYTES = 256 };

/* `keys` is one key, or, if it does not end in a letter, all keys that begin so. They have an effect if the key `needs`
 * has one of `values`, or, with NULL, if it is not false, 0 or empty. If several rows have the same keys one of them is
 * enough. */
static const struct need {
  const char *keys, *needs;
  const char *const *values;
} need_rows[] = {
#define ONE_OF(...) ((const char *const[]){__VA_ARGS__, NULL})
    {"model.init.logits", "model.tied", ONE_OF("false")},
    {"model.init.positions", "model.position", ONE_OF("learned")},
    {"model.init.positions", "model.attention.relative.enabled", NULL},
    {"model.rope_", "model.position", ONE_OF("rope")},
    {"model.rope_scaling.", "model.rope_scaling.type", ONE_OF("linear", "dynamic", "llama3", "yarn", "longrope")},
    {"model.attention.window_layers", "model.attention.window", NULL},
    {"model.encoder.", "model.encoder.layers", NULL},
    {"model.attention.selective.", "model.attention.selective.enabled", NULL},
    {"model.attention.selective.", "model.encoder.selective", NULL},
    {"model.attention.selective.head", "model.attention.selective.bilinear", ONE_OF("false")},
    {"model.attention.selective.head", "train.adapt", NULL}, /* the bilinear form starts as this head's projections */
    {"model.attention.span.init", "model.attention.span.dynamic", ONE_OF("false")},
    {"model.attention.exclusive.gate_init", "model.attention.exclusive.gate", NULL},
    {"data.train", "data.kind", ONE_OF("tokens", "span_corruption")},
    {"data.val", "data.kind", ONE_OF("tokens", "span_corruption")},
    {"data.document_token", "data.pack", NULL},
    {"data.document_token", "data.rows", ONE_OF("document")},
    {"data.variables", "data.kind", ONE_OF("variable_assignment")},
    {"data.assignments", "data.kind", ONE_OF("variable_assignment")},
    {"data.eval_values", "data.kind", ONE_OF("variable_assignment")},
    {"data.values", "data.kind", ONE_OF("variable_assignment", "copy")},
    {"data.max_length", "data.kind", ONE_OF("copy", "parity")},
    {"data.noise_density", "data.kind", ONE_OF("span_corruption")},
    {"data.mean_span", "data.kind", ONE_OF("span_corruption")},
    {"data.sentinels", "data.kind", ONE_OF("span_corruption")},
    {"data.input_length", "data.kind", ONE_OF("span_corruption")},
    {"data.end_token", "data.kind", ONE_OF("span_corruption")},
    {"data.start_token", "data.kind", ONE_OF("span_corruption")},
    {"train.muon.", "train.optimizer", ONE_OF("muon")},
    {"train.lora.", "train.tune", ONE_OF("lora")},
    {"train.whole_memory", "model.memory", NULL},
    {"train.activation_dtype", "train.recompute", ONE_OF("false")},
    {"train.eval_every", "data.val", NULL},
    {"train.eval_every", "train.adapt", NULL}, /* winnow adapt sets it itself */
    {"train.eval_every", "data.kind", ONE_OF("variable_assignment", "copy", "parity")},
    {"train.select_from_head", "train.adapt", NULL},
    {"train.strength_steps", "model.attention.selective.strength", ONE_OF("scheduled")},
    {"train.strength_steps", "train.adapt", NULL}, /* gates' ceiling */
    {"train.prune.", "train.prune.budgets", NULL},
    {"model.attention.write.keep", "model.attention.write.loss", NULL},
    {"model.attention.fade.keep", "model.attention.fade.loss", NULL},
    {"train.mem.", "model.attention.selective.mem.enabled", NULL},
    {"train.mem.", "model.attention.write.loss", NULL},
    {"train.mem.", "model.attention.fade.loss", NULL},
};
enum { NEED_COUNT = sizeof need_rows / sizeof *need_rows };

/* The value under a dotted key; NULL: it is not written, because it is 0 or empty. */
static const json_t *at_key(const json_t *object, const char *key) {
  while (object) {
    char name[NAME_BYTES];
    const size_t n = strcspn(key, ".");
    snprintf(name, sizeof name, "%.*s", (int)n, key);
    object = json_object_get(object, name);
    if (!key[n]) break;
    key += n + 1;
  }
  return object;
}

static bool holds(const json_t *value, const char *const *among) {
  if (!among)
    return json_is_true(value) || (json_is_number(value) && json_number_value(value) != 0) ||
           (json_is_string(value) && json_string_length(value) > 0);
  const char *is = json_is_string(value) ? json_string_value(value) : json_is_true(value) ? "true" : "false";
  return wn_listed(among, is);
}

/* Do the row's keys include this one? Keys that end in a letter are one whole key. */
static bool covers(const char *keys, const char *key) {
  const size_t n = strlen(keys);
  return (keys[n - 1] == '.' || keys[n - 1] == '_') ? !strncmp(key, keys, n) : !strcmp(key, keys);
}

/* Writes the key whose value leaves this one without effect to `out`; "" if it has an effect. */
static void blocked_by(const json_t *recipe, const char *key, char *out) {
  *out = 0;
  for (int i = 0; i < NEED_COUNT; i++) {
    if (!covers(need_rows[i].keys, key) || (i > 0 && !strcmp(need_rows[i].keys, need_rows[i - 1].keys))) continue;
    bool acts = false;
    for (int k = i; k < NEED_COUNT && !strcmp(need_rows[k].keys, need_rows[i].keys); k++)
      acts = acts || !strcmp(need_rows[k].needs, key) || holds(at_key(recipe, need_rows[k].needs), need_rows[k].values);
    if (acts) continue;
    snprintf(out, NAME_BYTES, "%s", need_rows[i].needs);
    return;
  }
  for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.')) {
    char enabled[NAME_BYTES], group[NAME_BYTES];
    snprintf(group, sizeof group, "%.*s", (int)(dot - key + 1), key);
    snprintf(enabled, sizeof enabled, "%.*senabled", (int)(dot - key + 1), key);
    bool has_row = false;
    for (int i = 0; i < NEED_COUNT; i++) has_row = has_row || !strcmp(need_rows[i].keys, group);
    if (has_row || !strcmp(enabled, key) || !json_is_false(at_key(recipe, enabled))) continue;
    snprintf(out, NAME_BYTES, "%s", enabled);
    return;
  }
}

static void value_text(const json_t *value, char out[NAME_BYTES]) {
  if (json_is_number(value)) {
    wn_print(out, NAME_BYTES, "%.10g", json_number_value(value));
    return;
  }
  char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
  snprintf(out, NAME_BYTES, "%s", text ? text : "not set");
  free(text);
}

static void warn_below(wn_context *ctx, const json_t *recipe, const json_t *object, const json_t *defaults,
                       const char *prefix) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)object, key, value) {
    char name[NAME_BYTES], why[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", key);
    const json_t *usual = defaults ? json_object_get(defaults, key) : NULL;
    if (json_is_object(value)) {
      warn_below(ctx, recipe, value, usual, name);
      continue;
    }
    if (usual ? json_equal(value, usual) : !holds(value, NULL)) continue;
    if (!strcmp(name, "train.eval_every") && !holds(value, NULL))
      continue; /* 0 means no evaluation, which is what happens */
    blocked_by(recipe, name, why);
    if (!*why) continue;
    char is[NAME_BYTES], other[NAME_BYTES];
    value_text(value, is);
    value_text(at_key(recipe, why), other);
    wn_log(ctx, WN_LOG_WARNING, "%s is %s and has no effect: %s is %s", name, is, why, other);
  }
}

wn_status wn_recipe_warn_idle(wn_context *ctx, const wn_recipe *recipe) {
  struct wn_field_group groups[WN_RECIPE_GROUPS_MAX];
  const int count = wn_recipe_groups(groups);
  for (int g = 0; g < count; g++) groups[g].optional = false; /* groups that are off are of interest here */
  wn_recipe usual;
  wn_recipe_init(&usual);
  json_t *is = NULL, *defaults = NULL;
  wn_status status = wn_fields_write(ctx, groups, count, recipe, &is);
  if (status == WN_OK) status = wn_fields_write(ctx, groups, count, &usual, &defaults);
  if (status == WN_OK) warn_below(ctx, is, is, defaults, "");
  json_decref(is);
  json_decref(defaults);
  return status;
}
