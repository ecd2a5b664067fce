/* The inputs of a report: runs, checkpoints, searches and comparisons, recognised by the files in the folder. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/text.h"
#include "report/section.h"

/* The last part of a path, without trailing slashes. */
static void inputs_name(const char *path, char *out, size_t bytes) {
  size_t end = strlen(path);
  while (end > 1 && path[end - 1] == '/') end--;
  size_t begin = end;
  while (begin > 0 && path[begin - 1] != '/') begin--;
  snprintf(out, bytes, "%.*s", (int)(end - begin), path + begin);
  if (!strcmp(out, ".") || !out[0]) snprintf(out, bytes, "%s", "model");
}

static wn_status inputs_find_in_folder(wn_context *ctx, struct wn_report_input *in) {
  in->log = wn_path_has(in->path, "log.jsonl");
  in->model = wn_path_has(in->path, "config.json");
  in->search = wn_path_has(in->path, "search.json");
  in->compare = !in->search && wn_path_has(in->path, "compare.json");
  if (!in->log && !in->model && !in->search && !in->compare)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "%s: expected a run (log.jsonl), a checkpoint (config.json), a search (search.json) or a "
                   "comparison (compare.json)",
                   in->path);
  if (!in->search && !in->compare) return WN_OK;
  return wn_path_join(ctx, in->file, sizeof in->file, in->path, in->search ? "search.json" : "compare.json");
}

/* Recognises a search or comparison by its JSON, and saved answers by their ending; anything else is a model in one
 * file. */
static wn_status inputs_find_in_file(wn_context *ctx, struct wn_report_input *in) {
  const size_t n = strlen(in->path);
  in->answers = wn_ends_with(in->path, ".jsonl");
  if (in->answers) return WN_OK;
  if (n < 6 || strcmp(in->path + n - 5, ".json") != 0) {
    in->model = true;
    return WN_OK;
  }
  if (n >= sizeof in->file) return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: the path is too long", in->path);
  memcpy(in->file, in->path, n + 1);
  json_t *j;
  WN_TRY(wn_json_load_file(ctx, WN_JSON_TABLE, in->path, &j));
  in->search = json_object_get(j, "points") != NULL;
  in->compare = !in->search && json_object_get(j, "results") != NULL;
  json_decref(j);
  if (in->search || in->compare) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: neither a search nor a comparison of winnow prune", in->path);
}

wn_status wn_report_find_inputs(struct wn_report *r) {
  const int count = r->options->input_count;
  if (count < 1 || !r->options->inputs) return wn_fail(r->ctx, WN_ERR_ARGUMENT, "report: nothing to draw was given");
  WN_TRY(WN_ALLOC(r->ctx, "a report's inputs", count, &r->inputs));
  for (int i = 0; i < count; i++) {
    struct wn_report_input *in = &r->inputs[i];
    char name[sizeof in->name];
    r->input_count = i + 1;
    in->path = r->options->inputs[i];
    inputs_name(in->path, name, sizeof name);
    memcpy(in->name, name, sizeof name);
    for (int k = 0; k < i; k++) /* inputs with the same name get numbers */
      if (!strcmp(r->inputs[k].name, name)) {
        snprintf(in->name, sizeof in->name, "%.180s (%d)", name, i + 1);
        break;
      }
    if (wn_path_is_dir(in->path))
      WN_TRY(inputs_find_in_folder(r->ctx, in));
    else if (wn_path_exists(in->path))
      WN_TRY(inputs_find_in_file(r->ctx, in));
    else
      return wn_fail(r->ctx, WN_ERR_IO, "%s: %s", in->path, strerror(errno));
  }
  return WN_OK;
}

void wn_report_clear_inputs(struct wn_report *r) {
  for (int i = 0; i < r->input_count; i++) {
    wn_tokenizer_destroy(r->inputs[i].tok);
    wn_free(r->inputs[i].control);
    wn_model_destroy(r->inputs[i].loaded);
    wn_budgets_clear(&r->inputs[i].budgets);
  }
  wn_free(r->inputs);
}

/* Loads the budgets of an input whose text is shown. A file of budgets names the policy, numbers do not. */
static wn_status inputs_load_budgets(struct wn_report *r, struct wn_report_input *in) {
  const wn_report_options *o = r->options;
  const wn_model_config *c = wn_model_config_get(in->loaded);
  int policy = o->policy;
  if (!o->budgets) return WN_OK;
  if (policy < 0 && !wn_path_exists(o->budgets)) /* the first policy that suits the model */
    for (policy = 0; !wn_policy_suits(policy, &c->attention);) policy++;
  wn_budgets_init(&in->budgets, &c->attention);
  if (o->choices) in->budgets = *o->choices;
  if (policy >= 0) in->budgets.policy = (wn_policy)policy; /* budgets in bytes depend on the policy */
  in->budgets.cache = wn_cache_format_resolve(r->ctx, in->loaded, &in->budgets, WN_CACHE_AUTO);
  WN_TRY(wn_budgets_parse(r->ctx, c, o->budgets, &in->budgets));
  if (o->policy_options) WN_TRY(wn_budgets_set(r->ctx, o->policy_options, &in->budgets));
  if (policy >= 0) in->budgets.policy = (wn_policy)policy;
  WN_TRY(wn_budgets_check(r->ctx, &in->budgets, c));
  in->budgets.cache = wn_cache_format_resolve(r->ctx, in->loaded, &in->budgets, WN_CACHE_AUTO);
  return WN_OK;
}

/* The "data" of a run's recipe.json; *found false: there is none, or it cannot be read. */
static wn_status inputs_recipe_data(const struct wn_report *r, const struct wn_report_input *in, wn_data_config *out,
                                    bool *found) {
  char path[4096];
  wn_recipe recipe;
  *found = false;
  if (!wn_path_is_dir(in->path) || !wn_path_has(in->path, "recipe.json") ||
      wn_path_join(NULL, path, sizeof path, in->path, "recipe.json") != WN_OK)
    return WN_OK;
  const wn_status status = wn_recipe_load(r->ctx, path, NULL, 0, &recipe);
  if (status != WN_OK) return status == WN_ERR_MEMORY ? status : WN_OK;
  *out = recipe.data;
  *found = true;
  return WN_OK;
}

/* Finds the task of a model without a tokenizer, if its run was on a synthetic task. */
static wn_status inputs_find_task(struct wn_report *r, struct wn_report_input *in) {
  char name[16], why[512];
  snprintf(why, sizeof why, "%s", wn_context_error(r->ctx));
  WN_TRY(inputs_recipe_data(r, in, &in->task, &in->is_task));
  in->is_task = in->is_task && wn_data_token_name(&in->task, 0, name, sizeof name);
  if (!in->is_task) wn_report_note(r, in, "no tokenizer (%s): its text is not shown", why);
  return WN_OK;
}

/* Finds the control tokens: no content, and kept by a threshold, as in all commands (--control special). */
static wn_status inputs_find_control(struct wn_report *r, struct wn_report_input *in) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  const int32_t size = wn_tokenizer_vocab_size(in->tok);
  WN_TRY(WN_ALLOC(r->ctx, "control tokens", size, &in->control));
  for (int32_t id = 0; id < size && id < c->vocab_size; id++)
    if (wn_tokenizer_is_control(in->tok, id)) in->control[in->control_count++] = id;
  return c->attention.threshold.enabled
             ? wn_model_set_control_tokens(r->ctx, in->loaded, in->control, in->control_count)
             : WN_OK;
}

wn_status wn_report_load_models(struct wn_report *r) {
  int64_t shown = 0;
  if (r->loaded) return WN_OK;
  r->loaded = true;
  for (int i = 0; i < r->input_count; i++) {
    struct wn_report_input *in = &r->inputs[i];
    if (!in->model) continue;
    WN_TRY(wn_model_load(r->ctx, in->path, NULL, &in->loaded));
    const wn_status status = wn_tokenizer_load(r->ctx, in->path, &in->tok);
    if (status == WN_ERR_MEMORY) return status;
    if (status != WN_OK) {
      in->tok = NULL;
      WN_TRY(inputs_find_task(r, in));
    }
    if (in->tok) WN_TRY(inputs_find_control(r, in));
    in->shown = (in->tok || in->is_task) && wn_report_has_decoder(in) && shown < r->options->models;
    shown += in->shown;
    if (in->shown) WN_TRY(inputs_load_budgets(r, in));
  }
  return WN_OK;
}

bool wn_report_has_decoder(const struct wn_report_input *in) {
  return in->loaded && wn_model_config_get(in->loaded)->encoder.layers == 0;
}

/* The "data" of a run's recipe, if its kind is tokens; a recipe that cannot be read counts as missing. */
static wn_status inputs_own_data(const struct wn_report *r, const struct wn_report_input *in, wn_data_config *out) {
  wn_data_config data;
  bool found;
  out->val[0] = 0;
  WN_TRY(inputs_recipe_data(r, in, &data, &found));
  if (!found || data.kind != WN_DATA_TOKENS) return WN_OK;
  *out = data;
  if (!wn_path_exists(out->val)) out->val[0] = 0;
  return WN_OK;
}

wn_status wn_report_data(const struct wn_report *r, const struct wn_report_input *in, wn_data_config *out) {
  const char *given = r->options->data;
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  *out = recipe.data;
  out->kind = WN_DATA_TOKENS;
  if (!given) {
    WN_TRY(inputs_own_data(r, in, out));
  } else {
    if (!wn_path_exists(given)) return wn_fail(r->ctx, WN_ERR_IO, "%s: %s", given, strerror(errno));
    if (strlen(given) >= sizeof out->val) return wn_fail(r->ctx, WN_ERR_ARGUMENT, "%s: the path is too long", given);
    snprintf(out->val, sizeof out->val, "%s", given);
  }
  out->stream = false;
  return WN_OK;
}

wn_status wn_report_source(const struct wn_report *r, const struct wn_report_input *in, int64_t T,
                           wn_data_source **out) {
  wn_data_config data;
  *out = NULL;
  if (in->is_task) {
    int64_t V, needed;
    wn_data_config_requirements(&in->task, &V, &needed);
    if (T < needed) {
      if (!in->task_told)
        wn_report_note(r, in,
                       "a sequence of its task takes %lld tokens, %lld are to be shown: it has no figures of them",
                       (long long)needed, (long long)T);
      r->inputs[in - r->inputs].task_told = true;
      return WN_OK;
    }
    if (r->options->long_only)
      return wn_fail(r->ctx, WN_ERR_ARGUMENT, "%s: long_only is for token files, the run is of a task", in->name);
    data = in->task;
  } else {
    WN_TRY(wn_report_data(r, in, &data));
    if (!data.val[0]) return WN_OK;
    if (r->options->long_only) {
      data.rows = WN_ROWS_DOCUMENT;
      data.long_only = true;
      data.pack = false;
      if (r->options->document_token >= 0) data.document_token = r->options->document_token;
    }
  }
  return wn_data_source_create(r->ctx, &data, "val", T, (int32_t)wn_model_config_get(in->loaded)->vocab_size, out);
}
