/* Searches and comparisons as CSV and JSON. */
#include <jansson.h>
#include <math.h>

#include "base/alloc.h"
#include "base/estimate.h"
#include "base/fields.h"
#include "base/misuse.h"
#include "report/figure.h"

static void prune_add_tokens(struct wn_text *text, const int64_t *tokens, int64_t layers) {
  for (int64_t l = 0; l < layers; l++) wn_text_add(text, "%s%lld", l ? " " : "", (long long)tokens[l]);
}

/* Adds ",stderr,low,high" of a figure, empty where they are not known. */
static void prune_add_errors(struct wn_text *text, const wn_estimate *e) {
  const double numbers[] = {e->error, e->low, e->high};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    isfinite(numbers[i]) ? wn_text_add(text, ",%.6g", numbers[i]) : wn_text_add(text, ",");
}

/* ---- searches ---- */

wn_status wn_prune_curve_save_csv(wn_context *ctx, const wn_prune_curve *c, const char *path) {
  WN_CHECK_CALL(WN_POINTER_AS("curve", c), WN_POINTER(path));
  struct wn_text text = {0};
  wn_text_add(
      &text,
      "step,layer,budgets,total,saving,search_perplexity,report_perplexity,evaluations,seconds%s%s"
      ",search_loss,search_loss_stderr,search_loss_low,search_loss_high,report_loss,report_loss_stderr,"
      "report_loss_low,report_loss_high,report_change,report_change_stderr,report_change_low,report_change_high\n",
      c->checked ? ",exact_layer,exact_perplexity" : "",
      c->finetune_lr > 0 ? ",tuned,untuned_search_perplexity,untuned_report_perplexity" : "");
  for (int64_t i = 0; i < c->count; i++) {
    const wn_prune_point *p = &c->points[i];
    wn_text_add(&text, "%lld,", (long long)i);
    if (p->layer >= 0) wn_text_add(&text, "%lld", (long long)p->layer);
    wn_text_add(&text, ",");
    prune_add_tokens(&text, p->tokens, c->layers);
    wn_text_add(&text, ",%lld,%.6g,%.9g,%.9g,%lld,%.3f", (long long)p->total, p->saving, exp(p->search_loss),
                exp(p->report_loss), (long long)p->evaluations, p->seconds);
    if (c->checked) wn_text_add(&text, ",%lld,%.9g", (long long)p->exact_layer, exp(p->exact_loss));
    if (c->finetune_lr > 0)
      wn_text_add(&text, ",%lld,%.9g,%.9g", (long long)p->tuned, exp(p->untuned_search_loss),
                  exp(p->untuned_report_loss));
    const wn_estimate *const errors[] = {&p->search_rows, &p->report_rows, &p->report_change};
    for (size_t k = 0; k < sizeof errors / sizeof *errors; k++) {
      isfinite(errors[k]->value) ? wn_text_add(&text, ",%.9g", errors[k]->value) : wn_text_add(&text, ",");
      prune_add_errors(&text, errors[k]);
    }
    wn_text_add(&text, "\n");
  }
  return wn_text_save(ctx, &text, path);
}

/* ---- comparisons ---- */

static const char *prune_policy(const wn_prune_row *row) {
  return row->policy < 0 ? "none" : wn_policy_name(row->policy);
}

/* Adds the titles of a task's two columns. */
static void prune_add_task(struct wn_text *text, const char *task) {
  struct wn_text error = {0};
  wn_text_add(&error, "%s_stderr", task);
  wn_text_add(text, ",");
  wn_csv_add(text, task);
  wn_text_add(text, ",");
  wn_csv_add(text, error.data ? error.data : "");
  text->failed |= error.failed;
  wn_free(error.data);
}

wn_status wn_prune_comparison_save_csv(wn_context *ctx, const wn_prune_comparison *c, const char *path) {
  WN_CHECK_CALL(WN_POINTER_AS("comparison", c), WN_POINTER(path));
  struct wn_text text = {0};
  wn_text_add(&text, "model,policy,searched,tokens_per_layer,budgets,total,saving,loss,perplexity");
  for (int t = 0; t < c->task_count; t++) prune_add_task(&text, c->tasks[t]);
  wn_text_add(&text, ",rows,loss_stderr,loss_low,loss_high,change,change_stderr,change_low,change_high,difference,"
                     "difference_stderr,difference_low,difference_high,verdict\n");
  for (int64_t i = 0; i < c->count; i++) {
    const wn_prune_row *r = &c->results[i];
    wn_csv_add(&text, c->names[r->subject]);
    wn_text_add(&text, ",%s,%d,%.6g,", prune_policy(r), r->searched, r->per_layer);
    prune_add_tokens(&text, r->tokens, c->layers[r->subject]);
    wn_text_add(&text, ",%lld,%.6g,%.9g,%.9g", (long long)r->total, r->saving, r->loss, exp(r->loss));
    for (int t = 0; t < c->task_count && r->scores; t++)
      wn_text_add(&text, ",%.6g,%.6g", r->scores[t].accuracy, r->scores[t].error);
    wn_text_add(&text, ",%lld", (long long)c->rows);
    prune_add_errors(&text, &r->loss_rows);
    wn_text_add(&text, ",%.6g", r->change.value);
    prune_add_errors(&text, &r->change);
    wn_text_add(&text, ",%.6g", r->difference.value);
    prune_add_errors(&text, &r->difference);
    wn_text_add(&text, ",%s\n", wn_verdict_name(r->verdict));
  }
  return wn_text_save(ctx, &text, path);
}

static json_t *prune_row_json(const wn_prune_comparison *c, const wn_prune_row *r) {
  json_t *tokens = json_array();
  for (int64_t l = 0; tokens && l < c->layers[r->subject]; l++)
    json_array_append_new(tokens, json_integer(r->tokens[l]));
  json_t *j = json_pack("{s:s, s:s, s:b, s:f, s:o, s:I, s:f, s:f, s:o}", "model", c->names[r->subject], "policy",
                        prune_policy(r), "searched", (int)r->searched, "tokens_per_layer", r->per_layer, "tokens",
                        tokens, "total", (json_int_t)r->total, "saving", r->saving, "loss", r->loss, "perplexity",
                        isfinite(exp(r->loss)) ? json_real(exp(r->loss)) : json_null());
  if (!j) return NULL;
  wn_estimate_set(j, "loss", &r->loss_rows);
  if (isfinite(r->change.value)) json_object_set_new(j, "change", json_real(r->change.value));
  wn_estimate_set(j, "change", &r->change);
  if (isfinite(r->difference.value)) json_object_set_new(j, "difference", json_real(r->difference.value));
  wn_estimate_set(j, "difference", &r->difference);
  json_object_set_new(j, "verdict", json_string(wn_verdict_name(r->verdict)));
  json_t *scores = r->scores ? json_object() : NULL;
  for (int t = 0; t < c->task_count && scores; t++)
    json_object_set_new(scores, c->tasks[t],
                        json_pack("{s:f, s:o}", "accuracy", r->scores[t].accuracy, "stderr",
                                  isfinite(r->scores[t].error) ? json_real(r->scores[t].error) : json_null()));
  if (scores) json_object_set_new(j, "tasks", scores);
  return j;
}

static json_t *prune_saving_json(const wn_prune_comparison *c, const wn_prune_saving *s) {
  json_t *j = json_pack("{s:s, s:s, s:b, s:f, s:f}", "model", c->names[s->subject], "policy", wn_policy_name(s->policy),
                        "searched", (int)s->searched, "saving", s->saving.value, "saving_open", s->open);
  if (j) wn_estimate_set(j, "saving", &s->saving);
  return j;
}

wn_status wn_prune_comparison_save_json(wn_context *ctx, const wn_prune_comparison *c, const char *path) {
  WN_CHECK_CALL(WN_POINTER_AS("comparison", c), WN_POINTER(path));
  json_t *results = json_array(), *savings = json_array();
  bool ok = results && savings;
  for (int64_t i = 0; ok && i < c->count; i++) ok = !json_array_append_new(results, prune_row_json(c, &c->results[i]));
  for (int64_t i = 0; ok && i < c->saving_count; i++)
    ok = !json_array_append_new(savings, prune_saving_json(c, &c->savings[i]));
  json_t *j = ok ? json_pack("{s:I, s:I, s:I, s:s, s:f, s:O, s:O}", "context", (json_int_t)c->context, "rows",
                             (json_int_t)c->rows, "counted", (json_int_t)c->counted, "unit",
                             c->unit ? c->unit : "block", "margin", c->margin, "savings", savings, "results", results)
                 : NULL;
  json_decref(results);
  json_decref(savings);
  if (!j) return wn_fail(ctx, WN_ERR_MEMORY, "%s: out of memory", path);
  const wn_status status = wn_json_save_file(ctx, path, j);
  json_decref(j);
  return status;
}
