/* Reads a comparison of policies from its JSON. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/estimate.h"
#include "base/fields.h"
#include "base/misuse.h"
#include "winnow/report.h"
#include "winnow/task.h"

enum { SUBJECTS = 64, LAYERS = 4096, ROWS = 1 << 20 };

void wn_prune_comparison_loaded_clear(wn_prune_comparison *c) {
  WN_CHECK_OR(, WN_POINTER(c));
  for (int s = 0; s < c->subjects; s++) wn_free((void *)(uintptr_t)c->names[s]);
  wn_free((void *)(uintptr_t)c->names);
  for (int64_t i = 0; i < c->count; i++) wn_free(c->results[i].tokens), wn_free(c->results[i].scores);
  wn_free(c->results);
  wn_free(c->savings);
  wn_free(c->layers);
  *c = (wn_prune_comparison){0};
}

static int prune_policy_named(const char *name) {
  wn_policy policy;
  return wn_policy_find(NULL, name, &policy) == WN_OK ? policy : !strcmp(name, "none") ? -1 : -2;
}

/* Reads accuracies; every result must have the tasks of the first. */
static wn_status prune_load_scores(wn_context *ctx, const char *path, const json_t *tasks, wn_prune_comparison *c,
                                   int64_t result, wn_prune_row *row) {
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)tasks, name, value) {
    const int number = wn_task_find(name);
    if (result > 0 || number < 0 || c->task_count == WN_PRUNE_TASKS) break;
    c->tasks[c->task_count++] = wn_task_at(number)->name;
  }
  bool all = json_object_size(tasks) == (size_t)c->task_count;
  if (all && c->task_count == 0) return WN_OK;
  WN_TRY(WN_ALLOC(ctx, "accuracies", WN_PRUNE_TASKS, &row->scores));
  for (int t = 0; t < c->task_count && all; t++) {
    const json_t *score = json_object_get(tasks, c->tasks[t]), *accuracy = json_object_get(score, "accuracy");
    const json_t *error = json_object_get(score, "stderr");
    row->scores[t] =
        (wn_prune_score){json_number_value(accuracy), json_is_null(error) ? NAN : json_number_value(error)};
    all = json_is_number(accuracy) && row->scores[t].accuracy >= 0 && row->scores[t].accuracy <= 1;
  }
  if (all) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT,
                 "%s: result %lld: \"tasks\": expected the same known tasks in every result, \"accuracy\" from 0 to 1",
                 path, (long long)result);
}

static wn_status prune_load_row(wn_context *ctx, const char *path, const json_t *j, wn_prune_comparison *c,
                                wn_prune_row *row) {
  const char *model = json_string_value(json_object_get(j, "model")),
             *policy = json_string_value(json_object_get(j, "policy"));
  const json_t *tokens = json_object_get(j, "tokens");
  const size_t layers = json_array_size(tokens);
  row->loss = json_number_value(json_object_get(j, "loss"));
  row->saving = json_number_value(json_object_get(j, "saving"));
  row->per_layer = json_number_value(json_object_get(j, "tokens_per_layer"));
  row->total = json_integer_value(json_object_get(j, "total"));
  row->searched = json_is_true(json_object_get(j, "searched"));
  row->policy = policy ? prune_policy_named(policy) : -2;
  if (!model || row->policy < -1 || layers < 1 || layers > LAYERS || !json_is_number(json_object_get(j, "loss")) ||
      !(row->per_layer > 0) || !(row->saving > 0) || !isfinite(row->loss))
    return wn_fail(ctx, WN_ERR_FORMAT,
                   "%s: result %lld: expected \"model\", a known \"policy\", \"tokens\", \"tokens_per_layer\", "
                   "\"saving\", \"loss\"",
                   path, (long long)c->count);
  int s = 0;
  while (s < c->subjects && strcmp(c->names[s], model) != 0) s++;
  if (s == SUBJECTS) return wn_fail(ctx, WN_ERR_FORMAT, "%s: more than %d models", path, SUBJECTS);
  if (s == c->subjects) {
    if (!(c->names[s] = wn_strdup(ctx, model))) return WN_ERR_MEMORY;
    c->layers[s] = (int64_t)layers;
    c->subjects++;
  }
  if (c->layers[s] != (int64_t)layers)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: result %lld: %zu budgets, earlier ones of \"%s\" have %lld", path,
                   (long long)c->count, layers, model, (long long)c->layers[s]);
  row->subject = s;
  row->loss_rows = row->change = row->difference = wn_estimate_unknown; /* older files have no errors */
  row->loss_rows.rows = row->change.rows = row->difference.rows = (uint64_t)c->rows;
  wn_estimate_get(j, "loss", &row->loss_rows);
  wn_estimate_get(j, "change", &row->change);
  wn_estimate_get(j, "difference", &row->difference);
  row->verdict = wn_estimate_verdict(&row->difference, c->margin);
  WN_TRY(WN_ALLOC(ctx, "budgets", layers, &row->tokens));
  c->count++;
  WN_TRY(prune_load_scores(ctx, path, json_object_get(j, "tasks"), c, c->count - 1, row));
  for (size_t l = 0; l < layers; l++) row->tokens[l] = json_integer_value(json_array_get(tokens, l));
  return WN_OK;
}

/* Older files have none. */
static wn_status prune_load_savings(wn_context *ctx, const char *path, const json_t *list, wn_prune_comparison *c) {
  const size_t count = json_array_size(list);
  if (count > ROWS) return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"savings\" has more than %d entries", path, ROWS);
  WN_TRY(WN_ALLOC(ctx, "savings", count, &c->savings));
  for (size_t i = 0; i < count; i++) {
    const json_t *j = json_array_get(list, i);
    const char *model = json_string_value(json_object_get(j, "model")),
               *policy = json_string_value(json_object_get(j, "policy"));
    wn_prune_saving *s = &c->savings[c->saving_count];
    *s = (wn_prune_saving){.policy = policy ? prune_policy_named(policy) : -2,
                           .searched = json_is_true(json_object_get(j, "searched")),
                           .saving = wn_estimate_unknown,
                           .open = json_number_value(json_object_get(j, "saving_open"))};
    wn_estimate_get(j, "saving", &s->saving);
    s->saving.rows = (uint64_t)c->rows;
    while (model && s->subject < c->subjects && strcmp(c->names[s->subject], model) != 0) s->subject++;
    if (!model || s->subject == c->subjects || s->policy < 0 || !(s->saving.value > 0))
      return wn_fail(ctx, WN_ERR_FORMAT,
                     "%s: savings[%zu]: expected the \"model\" of a result, a known \"policy\" and a \"saving\"", path,
                     i);
    c->saving_count++;
  }
  return WN_OK;
}

static const char *prune_unit(const char *name) {
  return name && !strcmp(name, "document") ? "document" : "block";
}

wn_status wn_prune_comparison_load(wn_context *ctx, const char *path, wn_prune_comparison *out) {
  WN_CHECK_CALL(WN_POINTER(path), WN_POINTER(out));
  json_t *j;
  *out = (wn_prune_comparison){0};
  WN_TRY(wn_json_load_file(ctx, WN_JSON_TABLE, path, &j));
  const json_t *results = json_object_get(j, "results");
  const size_t count = json_array_size(results);
  wn_status status = WN_OK;
  if (count < 1 || count > ROWS) {
    status = wn_fail(ctx, WN_ERR_FORMAT, "%s: no \"results\": not a comparison of winnow prune compare", path);
  } else {
    *out = (wn_prune_comparison){.context = json_integer_value(json_object_get(j, "context")),
                                 .rows = json_integer_value(json_object_get(j, "rows")),
                                 .counted = (uint64_t)json_integer_value(json_object_get(j, "counted")),
                                 .margin = json_number_value(json_object_get(j, "margin")),
                                 .unit = prune_unit(json_string_value(json_object_get(j, "unit"))),
                                 .capacity = (int64_t)count};
    status = WN_ALLOC(ctx, "names", SUBJECTS, &out->names);
    if (status == WN_OK) status = WN_ALLOC(ctx, "layers", SUBJECTS, &out->layers);
    if (status == WN_OK) status = WN_ALLOC(ctx, "results", count, &out->results);
  }
  for (size_t i = 0; status == WN_OK && i < count; i++)
    status = prune_load_row(ctx, path, json_array_get(results, i), out, &out->results[i]);
  if (status == WN_OK) status = prune_load_savings(ctx, path, json_object_get(j, "savings"), out);
  json_decref(j);
  if (status != WN_OK) wn_prune_comparison_loaded_clear(out);
  return status;
}
