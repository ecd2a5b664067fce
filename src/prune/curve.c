/* The curve of a search, in memory and as search.json:
 *   {"budgets": {the latest, as budgets.json}, "context": N, "step": C, ..., "points": [{"layer": 3, "tokens": [...],
 *    "total": ..., "search_loss": ..., "report_loss": ..., "saving": ..., "seconds": ...}, ...]}
 * Numbers are read back exactly, so that a resumed search continues to the bit. The file may come from anywhere:
 * everything in it is checked before it is used. */
#include "prune/curve.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/estimate.h"
#include "base/fields.h"
#include "base/misuse.h"
#include "kv/budgets.h"

enum {
  LAYERS_MAX = 1 << 16,
  POINTS_MAX = 1 << 24,
  EVALUATIONS_MAX = 1 << 30
}; /* EVALUATIONS_MAX: of a step, so that the sum does not overflow */
#define STEPS_MAX ((int64_t)1000000000000)
#define ROWS_MAX (INT64_MAX / POINTS_MAX) /* of a step */

static const char *const end_names[] = {"", "target", "floor", "steps"};

const char *wn_prune_end_name(wn_prune_end end) {
  return (int)end >= 0 && end <= WN_PRUNE_STEPS ? end_names[end] : "?";
}

wn_status wn_prune_curve_init(wn_context *ctx, int64_t layers, int64_t context, int64_t step, wn_prune_curve *out) {
  memset(out, 0, sizeof *out);
  wn_budgets_init(&out->budgets, NULL);
  out->layers = layers;
  out->context = context;
  out->step = step;
  out->target_loss = INFINITY;
  out->plain_loss = NAN;
  out->report_saving = wn_estimate_unknown;
  WN_TRY(WN_ALLOC(ctx, "increases", layers, &out->increase));
  for (int64_t l = 0; l < layers; l++) out->increase[l] = NAN;
  return WN_OK;
}

void wn_prune_curve_clear(wn_prune_curve *curve) {
  WN_CHECK_OR(, WN_POINTER(curve));
  for (int64_t i = 0; i < curve->count; i++)
    wn_free(curve->points[i].tokens), wn_free(curve->points[i].report_row_loss);
  wn_free(curve->report_row_tokens);
  wn_free(curve->points);
  wn_free(curve->increase);
  wn_budgets_clear(&curve->budgets);
  memset(curve, 0, sizeof *curve);
}

wn_status wn_prune_curve_add(wn_context *ctx, wn_prune_curve *curve, const int64_t *tokens, wn_prune_point **out) {
  int64_t *held;
  if (curve->count == curve->capacity) {
    const int64_t larger = curve->capacity ? 2 * curve->capacity : 64;
    WN_TRY(WN_RESIZE(ctx, "points", &curve->points, curve->count, larger));
    curve->capacity = larger;
  }
  WN_TRY(WN_ALLOC(ctx, "budgets", curve->layers, &held));
  wn_prune_point *p = &curve->points[curve->count];
  *p = (wn_prune_point){.layer = -1, .tokens = held, .exact_layer = -1};
  p->search_rows = p->report_rows = p->report_change = wn_estimate_unknown;
  for (int64_t l = 0; l < curve->layers; l++) p->total += p->tokens[l] = tokens[l];
  p->saving = (double)curve->layers * (double)curve->context / (double)p->total;
  curve->count++;
  *out = p;
  return WN_OK;
}

wn_status wn_prune_curve_budgets(wn_context *ctx, const wn_prune_curve *curve, int64_t point, wn_budgets *out) {
  WN_CHECK_CALL(WN_POINTER(curve), WN_POINTER(out));
  if (point < 0 || point >= curve->count)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "curve: point %lld of %lld", (long long)point, (long long)curve->count);
  int64_t *tokens;
  WN_TRY(WN_ALLOC(ctx, "budgets", curve->layers, &tokens));
  memcpy(tokens, curve->points[point].tokens, (size_t)curve->layers * sizeof *tokens);
  *out = curve->budgets;
  out->layers = curve->layers;
  out->tokens = tokens;
  return WN_OK;
}

wn_status wn_prune_curve_add_saving(wn_context *ctx, wn_prune_curve *c, const wn_prune_options *options,
                                    const double *allow, double *scratch) {
  c->report_saving = wn_estimate_unknown, c->report_saving_open = NAN;
  for (int64_t i = 0; i < c->count; i++)
    if (c->finetune_lr > 0 || !c->points[i].report_row_loss) return WN_OK;
  struct wn_saving *saving;
  WN_TRY(WN_ALLOC(ctx, "samples of a saving", 1, &saving));
  wn_saving_init(saving);
  for (int64_t i = 0; i < c->count; i++) {
    const wn_prune_point *p = &c->points[i];
    for (int64_t r = 0; r < c->report_rows; r++) {
      const double tokens = c->report_row_tokens[r];
      const double allowed = options->target > 0 ? log(options->target) * tokens
                             : allow             ? allow[r]
                                                 : c->points[0].report_row_loss[r] + log1p(options->tolerance) * tokens;
      scratch[r] = p->report_row_loss[r] - allowed;
    }
    wn_saving_add(saving, (double)c->points[0].total, (double)p->total, scratch, c->report_row_tokens, c->report_rows);
  }
  c->report_saving = wn_saving_end(saving, c->points[c->count - 1].saving, &c->report_saving_open);
  c->report_saving.rows = (uint64_t)c->report_rows;
  wn_free(saving);
  return WN_OK;
}

/* ---- writing ---- */

static json_t *curve_real_or_null(double x) {
  return isfinite(x) ? json_real(x) : json_null();
}

/* numbers [n]; NULL gives NULL. */
static json_t *curve_numbers_json(const double *numbers, int64_t n) {
  json_t *list = numbers ? json_array() : NULL;
  for (int64_t i = 0; list && i < n; i++)
    if (json_array_append_new(list, curve_real_or_null(numbers[i]))) {
      json_decref(list);
      return NULL;
    }
  return list;
}

static json_t *curve_point_json(const wn_prune_curve *curve, const wn_prune_point *p) {
  json_t *tokens = json_array();
  bool ok = tokens;
  for (int64_t l = 0; ok && l < curve->layers; l++) ok = !json_array_append_new(tokens, json_integer(p->tokens[l]));
  json_t *j =
      json_pack("{s:I, s:o, s:I, s:f, s:f, s:f, s:o, s:o, s:o, s:I, s:f}", "layer", p->layer, "tokens", tokens, "total",
                p->total, "saving", p->saving, "search_loss", p->search_loss, "report_loss", p->report_loss,
                "search_perplexity", curve_real_or_null(exp(p->search_loss)), "report_perplexity",
                curve_real_or_null(exp(p->report_loss)), "report_change", curve_real_or_null(p->report_change.value),
                "evaluations", p->evaluations, "seconds", p->seconds);
  ok = ok && j && wn_estimate_set(j, "search_loss", &p->search_rows);
  ok = ok && wn_estimate_set(j, "report_loss", &p->report_rows);
  ok = ok && wn_estimate_set(j, "report_change", &p->report_change);
  if (ok && p->report_row_loss)
    ok = !json_object_set_new(j, "report_row_loss", curve_numbers_json(p->report_row_loss, curve->report_rows));
  if (ok && curve->race > 0)
    ok = !json_object_update_new(j, json_pack("{s:I, s:I}", "raced_rows", p->raced_rows, "race_left", p->race_left));
  if (ok && curve->finetune_lr > 0)
    ok = !json_object_update_new(j, json_pack("{s:I, s:f, s:f}", "tuned", p->tuned, "untuned_search_loss",
                                              p->untuned_search_loss, "untuned_report_loss", p->untuned_report_loss));
  if (ok && curve->checked)
    ok =
        !json_object_update_new(j, json_pack("{s:I, s:f}", "exact_layer", p->exact_layer, "exact_loss", p->exact_loss));
  if (ok) return j;
  json_decref(j);
  return NULL;
}

static bool curve_fill(json_t *j, const wn_prune_curve *c) {
  json_t *points = json_array();
  bool ok = points;
  for (int64_t i = 0; ok && i < c->count; i++) ok = !json_array_append_new(points, curve_point_json(c, &c->points[i]));
  ok = ok && !json_object_update_new(
                 j, json_pack("{s:I, s:I, s:b, s:b, s:o, s:o, s:s, s:o, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o}",
                              "context", c->context, "step", c->step, "lazy", c->lazy, "checked", c->checked,
                              "target_loss", curve_real_or_null(c->target_loss), "target_perplexity",
                              curve_real_or_null(exp(c->target_loss)), "end", wn_prune_end_name(c->end), "plain_loss",
                              curve_real_or_null(c->plain_loss), "model", c->model, "search", c->search, "report",
                              c->report, "search_rows", c->search_rows, "report_rows", c->report_rows, "search_tokens",
                              (json_int_t)c->search_tokens, "report_tokens", (json_int_t)c->report_tokens,
                              "report_saving", curve_real_or_null(c->report_saving.value), "report_saving_open",
                              curve_real_or_null(c->report_saving_open)));
  ok = ok && wn_estimate_set(j, "report_saving", &c->report_saving);
  if (ok && c->race > 0) ok = !json_object_set_new(j, "race", json_real(c->race));
  if (ok && c->report_row_tokens)
    ok = !json_object_set_new(j, "report_row_tokens", curve_numbers_json(c->report_row_tokens, c->report_rows));
  if (ok && c->finetune_lr > 0)
    ok = !json_object_update_new(j, json_pack("{s:I, s:I, s:f, s:I, s:b}", "finetune_steps", c->finetune_steps,
                                              "finetune_every", c->finetune_every, "finetune_lr", c->finetune_lr,
                                              "tune_to", c->tune_to, "closed", c->closed));
  if (ok && c->finetune_lr > 0 && c->finetune_recipe[0])
    ok = !json_object_set_new(j, "finetune_recipe", json_string(c->finetune_recipe));
  ok = ok && !json_object_set_new(j, "increase", curve_numbers_json(c->increase, c->layers));
  ok = ok && !json_object_set(j, "points", points);
  json_decref(points);
  return ok;
}

wn_status wn_prune_curve_save(wn_context *ctx, const wn_prune_curve *curve, const char *path) {
  wn_budgets latest;
  json_t *budgets = NULL, *j;
  WN_TRY(wn_prune_curve_budgets(ctx, curve, curve->count - 1, &latest));
  wn_status status = wn_budgets_to_json(ctx, &latest, &budgets);
  wn_budgets_clear(&latest);
  WN_TRY(status);
  j = json_object();
  if (!j || json_object_set(j, "budgets", budgets) || !curve_fill(j, curve))
    status = wn_fail(ctx, WN_ERR_MEMORY, "%s: out of memory", path);
  else
    status = wn_json_save_file(ctx, path, j);
  json_decref(budgets);
  json_decref(j);
  return status;
}

/* ---- reading ---- */

static wn_status curve_get_int(wn_context *ctx, const char *path, const json_t *j, const char *key, int64_t min,
                               int64_t max, int64_t *out) {
  const json_t *value = json_object_get(j, key);
  *out = json_integer_value(value);
  if (json_is_integer(value) && *out >= min && *out <= max) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"%s\" must be a whole number from %lld to %lld", path, key, (long long)min,
                 (long long)max);
}

/* Reads a number; JSON null means `other`. */
static wn_status curve_get_real(wn_context *ctx, const char *path, const json_t *j, const char *key, double other,
                                double *out) {
  const json_t *value = json_object_get(j, key);
  *out = json_is_null(value) ? other : json_number_value(value);
  if (json_is_number(value) || (json_is_null(value) && !isfinite(other))) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"%s\" must be a number", path, key);
}

static wn_status curve_get_text(wn_context *ctx, const char *path, const json_t *j, const char *key, char out[24]) {
  const char *text = json_string_value(json_object_get(j, key));
  if (!text || strlen(text) >= 24) return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"%s\" must be a short text", path, key);
  strcpy(out, text);
  return WN_OK;
}

/* Reads a list of a number for each report row; *out is NULL where there is none. */
static wn_status curve_read_rows(wn_context *ctx, const char *path, const json_t *j, const char *key,
                                 const wn_prune_curve *c, double **out) {
  const json_t *list = json_object_get(j, key);
  if (!list) return WN_OK;
  if (json_array_size(list) != (size_t)c->report_rows)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"%s\" must be a list of \"report_rows\" numbers", path, key);
  WN_TRY(WN_ALLOC(ctx, "rows", c->report_rows, out));
  for (size_t i = 0; i < (size_t)c->report_rows; i++) {
    const json_t *value = json_array_get(list, i);
    (*out)[i] = json_number_value(value);
    if (!json_is_number(value) || !((*out)[i] >= 0))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"%s\"[%zu] must be a number, not negative", path, key, i);
  }
  return WN_OK;
}

/* Older files have no errors. */
static wn_status curve_read_errors(wn_context *ctx, const char *path, const json_t *j, wn_prune_curve *c,
                                   wn_prune_point *p) {
  wn_estimate_get(j, "search_loss", &p->search_rows);
  wn_estimate_get(j, "report_loss", &p->report_rows);
  wn_estimate_get(j, "report_change", &p->report_change);
  p->search_rows.rows = (uint64_t)c->search_rows;
  p->report_rows.rows = (uint64_t)c->report_rows;
  p->report_change.rows = (uint64_t)c->report_rows;
  return c->report_row_tokens ? curve_read_rows(ctx, path, j, "report_row_loss", c, &p->report_row_loss) : WN_OK;
}

static wn_status curve_read_point(wn_context *ctx, const char *path, const json_t *j, wn_prune_curve *c,
                                  int64_t *tokens) {
  const json_t *list = json_object_get(j, "tokens");
  if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: points[%lld]: \"tokens\" must be a list of %lld budgets", path,
                   (long long)c->count, (long long)c->layers);
  for (int64_t l = 0; l < c->layers; l++) {
    const json_t *value = json_array_get(list, (size_t)l);
    tokens[l] = json_integer_value(value);
    if (!json_is_integer(value) || tokens[l] < 1 || tokens[l] > c->context)
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: points[%lld]: \"tokens\"[%lld] must be from 1 to %lld", path,
                     (long long)c->count, (long long)l, (long long)c->context);
  }
  wn_prune_point *p;
  WN_TRY(wn_prune_curve_add(ctx, c, tokens, &p));
  WN_TRY(curve_get_int(ctx, path, j, "layer", -1, c->layers - 1, &p->layer));
  WN_TRY(curve_get_int(ctx, path, j, "evaluations", 0, EVALUATIONS_MAX, &p->evaluations));
  WN_TRY(curve_get_real(ctx, path, j, "search_loss", 0, &p->search_loss));
  WN_TRY(curve_get_real(ctx, path, j, "report_loss", 0, &p->report_loss));
  WN_TRY(curve_get_real(ctx, path, j, "seconds", 0, &p->seconds));
  p->exact_layer = p->layer;
  p->untuned_search_loss = p->search_loss;
  p->untuned_report_loss = p->report_loss;
  if (c->finetune_lr > 0) {
    WN_TRY(curve_get_int(ctx, path, j, "tuned", 0, c->tune_to, &p->tuned));
    WN_TRY(curve_get_real(ctx, path, j, "untuned_search_loss", 0, &p->untuned_search_loss));
    WN_TRY(curve_get_real(ctx, path, j, "untuned_report_loss", 0, &p->untuned_report_loss));
  }
  p->exact_loss = p->untuned_search_loss;
  if (c->race > 0) {
    WN_TRY(curve_get_int(ctx, path, j, "raced_rows", 0, ROWS_MAX, &p->raced_rows));
    WN_TRY(curve_get_int(ctx, path, j, "race_left", 0, c->layers, &p->race_left));
  }
  WN_TRY(curve_read_errors(ctx, path, j, c, p));
  if (!c->checked) return WN_OK;
  WN_TRY(curve_get_int(ctx, path, j, "exact_layer", -1, c->layers - 1, &p->exact_layer));
  return curve_get_real(ctx, path, j, "exact_loss", 0, &p->exact_loss);
}

static wn_status curve_read_lists(wn_context *ctx, const char *path, const json_t *j, wn_prune_curve *c) {
  const json_t *points = json_object_get(j, "points"), *increase = json_object_get(j, "increase");
  const size_t count = json_array_size(points);
  if (!json_is_array(points) || count < 1 || count > POINTS_MAX)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"points\" must be a list of at least one", path);
  if (!json_is_array(increase) || json_array_size(increase) != (size_t)c->layers)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"increase\" must be a list of %lld numbers", path, (long long)c->layers);
  for (int64_t l = 0; l < c->layers; l++) {
    const json_t *value = json_array_get(increase, (size_t)l);
    c->increase[l] = json_is_number(value) ? json_number_value(value) : NAN;
  }
  int64_t *tokens;
  WN_TRY(WN_ALLOC(ctx, "budgets", c->layers, &tokens));
  wn_status status = WN_OK;
  for (size_t i = 0; i < count && status == WN_OK; i++)
    status = curve_read_point(ctx, path, json_array_get(points, i), c, tokens);
  wn_free(tokens);
  return status;
}

static wn_status curve_read_curve(wn_context *ctx, const char *path, const json_t *j, wn_prune_curve *c) {
  wn_budgets budgets = {0};
  int64_t context, step, n;
  WN_TRY(curve_get_int(ctx, path, j, "context", 1, INT32_MAX, &context));
  WN_TRY(curve_get_int(ctx, path, j, "step", 1, INT32_MAX, &step));
  WN_TRY(wn_budgets_from_json(ctx, path, json_object_get(j, "budgets"), &budgets));
  const int64_t layers = budgets.layers, heads = budgets.heads;
  wn_budgets_clear(&c->budgets);
  wn_status status = layers <= LAYERS_MAX ? wn_prune_curve_init(ctx, layers, context, step, c)
                                          : wn_fail(ctx, WN_ERR_FORMAT, "%s: too many layers", path);
  if (status == WN_OK && heads > 0)
    status = wn_fail(ctx, WN_ERR_FORMAT, "%s: budgets of single key-value heads: a search uses one per layer", path);
  wn_free(budgets.tokens);
  wn_free(budgets.head_tokens);
  WN_TRY(status);
  budgets.tokens = budgets.head_tokens = NULL;
  budgets.layers = budgets.heads = 0;
  c->budgets = budgets;
  c->lazy = json_is_true(json_object_get(j, "lazy"));
  c->checked = json_is_true(json_object_get(j, "checked"));
  if (json_object_get(j, "race")) {
    WN_TRY(curve_get_real(ctx, path, j, "race", 0, &c->race));
    if (!(c->race > 0 && c->race < 1))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"race\" must be above 0 and below 1", path);
  }
  WN_TRY(curve_get_real(ctx, path, j, "target_loss", INFINITY, &c->target_loss));
  WN_TRY(curve_get_real(ctx, path, j, "plain_loss", NAN, &c->plain_loss));
  WN_TRY(curve_get_text(ctx, path, j, "model", c->model));
  WN_TRY(curve_get_text(ctx, path, j, "search", c->search));
  WN_TRY(curve_get_text(ctx, path, j, "report", c->report));
  WN_TRY(curve_get_int(ctx, path, j, "search_rows", 1, INT64_MAX, &c->search_rows));
  WN_TRY(curve_get_int(ctx, path, j, "report_rows", 1, INT64_MAX, &c->report_rows));
  WN_TRY(curve_get_int(ctx, path, j, "search_tokens", 1, INT64_MAX, &n));
  c->search_tokens = (uint64_t)n;
  WN_TRY(curve_get_int(ctx, path, j, "report_tokens", 1, INT64_MAX, &n));
  c->report_tokens = (uint64_t)n;
  WN_TRY(curve_read_rows(ctx, path, j, "report_row_tokens", c, &c->report_row_tokens));
  c->report_saving.rows = (uint64_t)c->report_rows;
  wn_estimate_get(j, "report_saving", &c->report_saving);
  c->report_saving_open = json_number_value(json_object_get(j, "report_saving_open"));
  if (json_object_get(j, "finetune_lr")) {
    WN_TRY(curve_get_real(ctx, path, j, "finetune_lr", 0, &c->finetune_lr));
    if (!(c->finetune_lr > 0)) return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"finetune_lr\" must be above 0", path);
    if (json_object_get(j, "finetune_recipe")) /* older files lack it */
      WN_TRY(curve_get_text(ctx, path, j, "finetune_recipe", c->finetune_recipe));
    WN_TRY(curve_get_int(ctx, path, j, "finetune_steps", 0, STEPS_MAX, &c->finetune_steps));
    WN_TRY(curve_get_int(ctx, path, j, "finetune_every", 0, POINTS_MAX, &c->finetune_every));
    WN_TRY(curve_get_int(ctx, path, j, "tune_to", 0, STEPS_MAX, &c->tune_to));
    c->closed = json_is_true(json_object_get(j, "closed"));
  }
  const char *end = json_string_value(json_object_get(j, "end"));
  for (int e = 0; e <= WN_PRUNE_STEPS; e++)
    if (end && !strcmp(end, end_names[e])) c->end = (wn_prune_end)e;
  return curve_read_lists(ctx, path, j, c);
}

wn_status wn_prune_curve_load(wn_context *ctx, const char *path, wn_prune_curve *out) {
  WN_CHECK_CALL(WN_POINTER(path), WN_POINTER(out));
  json_t *j;
  memset(out, 0, sizeof *out);
  WN_TRY(wn_json_load_file(ctx, WN_JSON_TABLE, path, &j));
  const wn_status status = json_is_object(j) ? curve_read_curve(ctx, path, j, out)
                                             : wn_fail(ctx, WN_ERR_FORMAT, "%s: expected an object", path);
  json_decref(j);
  if (status != WN_OK) wn_prune_curve_clear(out);
  return status;
}
