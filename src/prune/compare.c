/* Compares policies on the same data under the same budgets. A measurement is a plain evaluation: one forward pass over
 * the data. Of a searched curve the end is measured, and the points whose total tokens are nearest to the budgets asked
 * for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/estimate.h"
#include "base/misuse.h"
#include "base/options.h"
#include "dist/dist.h"
#include "prune/evaluator.h"
#include "winnow/task.h"

enum { BATCH = 8 };

struct compare {
  wn_context *ctx;
  const wn_prune_compare_options *options;
  struct wn_prune_set set;
  struct wn_prune_evaluator *evaluator;
  wn_prune_comparison *out;
  wn_budgets *under; /* [total] budgets of each result; their tokens belong to the result */
  void (*progress)(void *user, uint64_t done, uint64_t total);
  void *user;
  uint64_t done, total;
};

void wn_prune_compare_options_init(wn_prune_compare_options *options, size_t size) {
  WN_CHECK_OR(, WN_POINTER(options));
  wn_prune_compare_options defaults = {.margin = 0.01};
  wn_budgets_init(&defaults.budgets, &(wn_attention_config){.selective.enabled = true});
  wn_options_default(&defaults, sizeof defaults, options, size);
}

void wn_prune_comparison_clear(wn_prune_comparison *c) {
  WN_CHECK_OR(, WN_POINTER(c));
  for (int64_t i = 0; i < c->count; i++) {
    wn_free(c->results[i].tokens);
    wn_free(c->results[i].scores);
    wn_free(c->results[i].row_loss);
  }
  wn_free(c->results);
  wn_free(c->row_tokens);
  wn_free(c->savings);
  wn_free(c->names);
  wn_free(c->layers);
  memset(c, 0, sizeof *c);
}

static wn_status compare_add_row(struct compare *c, int subject, int policy, const int64_t *tokens, bool searched,
                                 double loss) {
  wn_prune_comparison *out = c->out;
  const int64_t L = out->layers[subject];
  int64_t *held;
  if (out->count == out->capacity) {
    const int64_t larger = out->capacity ? 2 * out->capacity : 64;
    WN_TRY(WN_RESIZE(c->ctx, "results", &out->results, out->count, larger));
    out->capacity = larger;
  }
  WN_TRY(WN_ALLOC(c->ctx, "budgets", L, &held));
  wn_prune_row *row = &out->results[out->count++];
  *row = (wn_prune_row){.subject = subject, .policy = policy, .searched = searched, .tokens = held, .loss = loss};
  for (int64_t l = 0; l < L; l++) {
    row->tokens[l] = tokens[l] < c->set.T ? tokens[l] : c->set.T; /* no layer holds more */
    row->total += row->tokens[l];
  }
  row->per_layer = (double)row->total / (double)L;
  row->saving = (double)c->set.T / row->per_layer;
  return WN_OK;
}

/* Answers a task for the results from `first` on, all of one subject. The first is without budgets, so that questions
 * that fit into the others' budgets are answered once. */
static wn_status compare_answer_task(struct compare *c, int task, int64_t first, wn_task_setting *settings,
                                     wn_task_result *found) {
  const wn_prune_compare_options *o = c->options;
  const int64_t rows = c->out->count - first;
  const wn_prune_subject *s = &o->subjects[c->out->results[first].subject];
  const wn_task_metric by = wn_task_chief_metric(wn_task_at(wn_task_find(o->tasks[task])));
  const wn_task_options options = {
      .size = sizeof options, .tok = s->tok, .task = o->tasks[task], .path = o->task_path, .limit = o->task_limit};
  const wn_status status = wn_task_sweep(c->ctx, s->model, &options, settings, (int)rows, found);
  if (status != WN_OK) return wn_fail_prefix(c->ctx, status, "%s", s->name);
  for (int64_t i = 0; i < rows; i++)
    c->out->results[first + i].scores[task] = (wn_prune_score){found[i].value[by], found[i].stderr_[by]};
  return WN_OK;
}

static wn_status compare_answer(struct compare *c, int64_t first) {
  const int64_t rows = c->out->count - first, tasks = c->options->task_count;
  wn_task_setting *settings;
  wn_task_result *found;
  if (tasks == 0) return WN_OK;
  WN_TRY(WN_ALLOC(c->ctx, "settings", rows, &settings));
  wn_status status = WN_ALLOC(c->ctx, "answers", rows, &found);
  for (int64_t i = 0; i < rows && status == WN_OK; i++) {
    wn_prune_row *row = &c->out->results[first + i];
    wn_budgets *under = &c->under[first + i];
    status = WN_ALLOC(c->ctx, "accuracies", tasks, &row->scores);
    under->tokens = row->tokens;
    settings[i] = (wn_task_setting){.budgets = row->policy < 0 ? NULL : under};
  }
  for (int i = 0; i < tasks && status == WN_OK; i++) status = compare_answer_task(c, i, first, settings, found);
  wn_free(found);
  wn_free(settings);
  return status;
}

/* The errors of the evaluator's last measurement. The first result of a model is without budgets. */
static wn_status compare_add_errors(struct compare *c, wn_prune_row *row) {
  const wn_prune_row *first = c->out->results, *own = first;
  const int64_t rows = c->out->rows;
  while (own->subject != row->subject) own++;
  WN_TRY(WN_ALLOC(c->ctx, "rows", rows, &row->row_loss));
  WN_TRY(c->evaluator->rows(c->evaluator, row->row_loss));
  const struct {
    const wn_prune_row *minus;
    wn_estimate *out;
  } figures[] = {{NULL, &row->loss_rows}, {own, &row->change}, {first, &row->difference}};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
    *figures[i].out = wn_estimate_ratio(&(struct wn_row_numbers){
        row->row_loss, figures[i].minus ? figures[i].minus->row_loss : NULL, c->out->row_tokens, rows, 1});
  row->loss_rows.value = row->loss;
  row->verdict = wn_estimate_verdict(&row->difference, c->out->margin);
  return WN_OK;
}

static int compare_by_total(const void *a, const void *b) {
  const wn_prune_row *x = *(const wn_prune_row *const *)a, *y = *(const wn_prune_row *const *)b;
  return (x->total < y->total) - (x->total > y->total);
}

/* The saving of results [n] of one model and policy, of which the first is without budgets. */
static wn_status compare_add_saving(struct compare *c, const wn_prune_row **results, int64_t n, double *excess) {
  const wn_prune_row *first = c->out->results, *last;
  struct wn_saving *saving;
  WN_TRY(WN_ALLOC(c->ctx, "samples of a saving", 1, &saving));
  wn_saving_init(saving);
  qsort((void *)(uintptr_t)results, (size_t)n, sizeof *results, compare_by_total);
  for (int64_t i = 0; i < n; i++) {
    for (int64_t r = 0; r < c->out->rows; r++) excess[r] = results[i]->row_loss[r] - first->row_loss[r];
    wn_saving_add(saving, (double)results[0]->total, (double)results[i]->total, excess, c->out->row_tokens,
                  c->out->rows);
  }
  last = results[n - 1];
  wn_prune_saving *out = &c->out->savings[c->out->saving_count++];
  *out = (wn_prune_saving){.subject = last->subject, .policy = last->policy, .searched = last->searched};
  out->saving = wn_saving_end(saving, last->saving, &out->open);
  out->saving.rows = (uint64_t)c->out->rows;
  wn_free(saving);
  return WN_OK;
}

/* Adds the savings of every model, policy and way of choosing budgets. */
static wn_status compare_add_savings(struct compare *c) {
  const wn_prune_comparison *out = c->out;
  const size_t groups = 2 * (size_t)out->subjects * WN_POLICY_MAX;
  const wn_prune_row **list;
  double *excess;
  WN_TRY(WN_ALLOC(c->ctx, "savings", groups, &c->out->savings));
  WN_TRY(WN_ALLOC(c->ctx, "rows", out->rows, &excess));
  wn_status status = WN_ALLOC(c->ctx, "results", out->count, &list);
  for (size_t g = 0; g < groups && status == WN_OK; g++) {
    int64_t n = 0;
    bool budgeted = false;
    for (int64_t i = 0; i < out->count; i++) {
      const wn_prune_row *row = &out->results[i];
      if (row->subject != (int)(g / (2 * WN_POLICY_MAX))) continue;
      const bool in = row->policy == (int)(g / 2 % WN_POLICY_MAX) && row->searched == (g % 2 == 1);
      if (in || row->policy < 0) list[n++] = row;
      budgeted |= in;
    }
    if (budgeted) status = compare_add_saving(c, list, n, excess);
  }
  wn_free(list);
  wn_free(excess);
  return status;
}

/* policy below 0: without budgets; else with the options of `budgets`. */
static wn_status compare_measure(struct compare *c, int subject, int policy, const wn_budgets *budgets,
                                 const int64_t *tokens, bool searched) {
  double loss;
  WN_TRY(c->evaluator->begin(c->evaluator, policy < 0 ? NULL : tokens, &loss));
  WN_TRY(compare_add_row(c, subject, policy, tokens, searched, loss));
  WN_TRY(compare_add_errors(c, &c->out->results[c->out->count - 1]));
  wn_budgets *under = &c->under[c->out->count - 1];
  *under = *budgets;
  under->layers = c->out->layers[subject]; /* a search's budgets have no tokens: each point has its own */
  if (c->progress) c->progress(c->user, ++c->done, c->total);
  return WN_OK;
}

static int64_t compare_nearest_point(const wn_prune_curve *curve, int64_t total) {
  int64_t best = 0;
  for (int64_t i = 1; i < curve->count; i++)
    if (llabs(curve->points[i].total - total) < llabs(curve->points[best].total - total)) best = i;
  return best;
}

static wn_status compare_equal_budgets(struct compare *c, int subject, const wn_budgets *budgets, int64_t *tokens) {
  const wn_prune_compare_options *o = c->options;
  for (int i = 0; i < o->token_count; i++) {
    for (int64_t l = 0; l < c->out->layers[subject]; l++) tokens[l] = o->tokens[i];
    WN_TRY(compare_measure(c, subject, (int)budgets->policy, budgets, tokens, false));
  }
  return WN_OK;
}

static wn_status compare_searched_budgets(struct compare *c, int subject) {
  const wn_prune_compare_options *o = c->options;
  const wn_prune_curve *curve = o->subjects[subject].searched;
  int64_t last = -1;
  bool ended = false;
  for (int i = 0; i < o->token_count; i++) {
    const int64_t wanted = o->tokens[i] < c->set.T ? o->tokens[i] : c->set.T;
    const int64_t p = compare_nearest_point(curve, wanted * curve->layers);
    /* A budget that the search did not reach is left out, not replaced by a distant point. */
    if (p == last || llabs(curve->points[p].total - wanted * curve->layers) > curve->step * curve->layers) continue;
    last = p;
    ended = ended || p == curve->count - 1;
    WN_TRY(compare_measure(c, subject, curve->budgets.policy, &curve->budgets, curve->points[p].tokens, true));
  }
  if (ended) return WN_OK;
  return compare_measure(c, subject, curve->budgets.policy, &curve->budgets, curve->points[curve->count - 1].tokens,
                         true);
}

static int64_t compare_batch(const struct compare *c) {
  return c->options->batch ? c->options->batch : BATCH;
}

static wn_status compare_open_evaluator(struct compare *c, int subject, const wn_budgets *budgets) {
  const wn_prune_compare_options *o = c->options;
  if (c->evaluator) c->evaluator->destroy(c->evaluator);
  c->evaluator = NULL;
  return wn_prune_plain_create(c->ctx, o->subjects[subject].model, &c->set, compare_batch(c), budgets, &c->evaluator);
}

/* Checks the policy, with the given options, on a model. */
static wn_status compare_check_policy(const struct compare *c, const wn_prune_subject *s, wn_policy policy) {
  wn_budgets b = c->options->budgets;
  b.layers = b.heads = 0;
  return wn_budgets_move(c->ctx, &s->model->config, policy, &b);
}

static bool compare_can_have(const struct compare *c, const wn_prune_subject *s, wn_policy policy) {
  return compare_check_policy(c, s, policy) == WN_OK;
}

static wn_status compare_check_subject(const struct compare *c, int subject) {
  const wn_prune_subject *s = &c->options->subjects[subject];
  const wn_model_config *config = &s->model->config;
  for (int i = 0; i < subject; i++)
    if (!strcmp(c->options->subjects[i].name, s->name))
      return wn_fail(c->ctx, WN_ERR_ARGUMENT, "compare: two models are called \"%s\"; results are told apart by name",
                     s->name);
  if (config->recurrence > 0)
    return wn_fail(c->ctx, WN_ERR_UNSUPPORTED, "%s: the model has segment recurrence, which does not support budgets",
                   s->name);
  if (config->encoder.layers > 0)
    return wn_fail(c->ctx, WN_ERR_UNSUPPORTED, "%s: the model has an encoder; decoders alone are compared", s->name);
  if (s->searched && !wn_policy_suits(s->searched->budgets.policy, &config->attention))
    return wn_fail(c->ctx, WN_ERR_ARGUMENT, "%s: its search is of policy %s, which the model cannot have", s->name,
                   wn_policy_name(s->searched->budgets.policy));
  if (config->vocab_size != c->options->subjects[0].model->config.vocab_size)
    return wn_fail(c->ctx, WN_ERR_SHAPE, "%s: a vocabulary of %lld, %s has %lld: they cannot share their data", s->name,
                   (long long)config->vocab_size, c->options->subjects[0].name,
                   (long long)c->options->subjects[0].model->config.vocab_size);
  if (c->set.T > config->context)
    return wn_fail(c->ctx, WN_ERR_ARGUMENT, "%s: context %lld is longer than %lld, the model's", s->name,
                   (long long)c->set.T, (long long)config->context);
  if (s->searched && (s->searched->layers != config->layers || s->searched->context != c->set.T))
    return wn_fail(c->ctx, WN_ERR_SHAPE,
                   "%s: its search has %lld layers and a context of %lld, the model %lld and the data %lld", s->name,
                   (long long)s->searched->layers, (long long)s->searched->context, (long long)config->layers,
                   (long long)c->set.T);
  return WN_OK;
}

static wn_status compare_subject(struct compare *c, int subject, int64_t *tokens) {
  const wn_prune_compare_options *o = c->options;
  const wn_prune_subject *s = &o->subjects[subject];
  const int64_t L = c->out->layers[subject];
  wn_budgets whole = o->budgets;
  whole.layers = L;
  whole.tokens = tokens;
  whole.heads = 0;
  for (int64_t l = 0; l < L; l++) tokens[l] = c->set.T;
  WN_TRY(compare_open_evaluator(c, subject, NULL));
  WN_TRY(compare_measure(c, subject, -1, &whole, tokens, false));
  for (int p = 0; p < o->policy_count; p++) {
    if (!compare_can_have(c, s, o->policies[p])) continue;
    wn_budgets budgets = whole;
    WN_TRY(wn_budgets_move(c->ctx, &s->model->config, o->policies[p], &budgets));
    WN_TRY(compare_open_evaluator(c, subject, &budgets));
    WN_TRY(compare_equal_budgets(c, subject, &budgets, tokens));
  }
  if (!s->searched) return WN_OK;
  WN_TRY(compare_open_evaluator(c, subject, &s->searched->budgets));
  return compare_searched_budgets(c, subject);
}

static wn_status compare_check_tasks(const struct compare *c) {
  const wn_prune_compare_options *o = c->options;
  if (o->task_count < 0 || o->task_count > WN_PRUNE_TASKS || (o->task_count > 0 && !o->task_path))
    return wn_fail(c->ctx, WN_ERR_ARGUMENT, "compare: %d tasks, expected at most %d, with the folder of their files",
                   o->task_count, WN_PRUNE_TASKS);
  for (int i = 0; i < o->task_count; i++) {
    const int number = wn_task_find(o->tasks[i]);
    if (number < 0 || !(wn_task_at(number)->metrics & 1u << WN_METRIC_ACC))
      return wn_fail(c->ctx, WN_ERR_ARGUMENT, "compare: task \"%s\" is unknown", o->tasks[i] ? o->tasks[i] : "");
    c->out->tasks[i] = wn_task_at(number)->name;
  }
  for (int i = 0; i < o->subject_count && o->task_count > 0; i++)
    if (!o->subjects[i].tok)
      return wn_fail(c->ctx, WN_ERR_ARGUMENT, "compare: tasks need the tokenizer of %s", o->subjects[i].name);
  c->out->task_count = o->task_count;
  return WN_OK;
}

static wn_status compare_check_options(const struct compare *c) {
  const wn_prune_compare_options *o = c->options;
  if (o->subject_count < 1 || o->token_count < 1 || o->policy_count < 1)
    return wn_fail(c->ctx, WN_ERR_ARGUMENT, "compare: %d models, %d budgets, %d policies; at least one of each",
                   o->subject_count, o->token_count, o->policy_count);
  if (!(o->margin >= 0) || !isfinite(o->margin))
    return wn_fail(c->ctx, WN_ERR_ARGUMENT, "compare: a margin of %g nats, expected a number, not negative", o->margin);
  for (int i = 0; i < o->token_count; i++)
    if (o->tokens[i] < 1)
      return wn_fail(c->ctx, WN_ERR_ARGUMENT, "compare: a budget of %lld tokens, expected at least 1",
                     (long long)o->tokens[i]);
  for (int p = 0; p < o->policy_count; p++) {
    bool used = false;
    for (int i = 0; i < o->subject_count; i++) used = used || compare_can_have(c, &o->subjects[i], o->policies[p]);
    if (!used) return compare_check_policy(c, &o->subjects[0], o->policies[p]); /* which says why */
  }
  return WN_OK;
}

static wn_status compare_prepare(struct compare *c) {
  const wn_prune_compare_options *o = c->options;
  int64_t T = o->context;
  WN_TRY(compare_check_options(c));
  WN_TRY(compare_check_tasks(c));
  for (int i = 0; i < o->subject_count && !o->context; i++) {
    const int64_t context = o->subjects[i].model->config.context;
    if (T == 0 || context < T) T = context;
  }
  WN_TRY(wn_prune_set_load(c->ctx, "data", &o->data, T, o->subjects[0].model->config.vocab_size, false, &c->set));
  wn_prune_set_share(c->ctx, &c->set, compare_batch(c));
  WN_TRY(WN_ALLOC(c->ctx, "names", o->subject_count, &c->out->names));
  WN_TRY(WN_ALLOC(c->ctx, "layers", o->subject_count, &c->out->layers));
  c->out->context = T;
  c->out->rows = c->set.all_rows;
  c->out->counted = c->set.counted;
  c->out->subjects = o->subject_count;
  c->out->unit = c->set.unit;
  c->out->margin = o->margin;
  WN_TRY(WN_ALLOC(c->ctx, "rows", c->set.all_rows, &c->out->row_tokens));
  memcpy(c->out->row_tokens, c->set.row_tokens, (size_t)c->set.all_rows * sizeof *c->out->row_tokens);
  for (int i = 0; i < o->subject_count; i++) {
    c->out->names[i] = o->subjects[i].name;
    c->out->layers[i] = o->subjects[i].model->config.layers;
    WN_TRY(compare_check_subject(c, i));
    c->total++;
    for (int p = 0; p < o->policy_count; p++)
      if (compare_can_have(c, &o->subjects[i], o->policies[p])) c->total += (uint64_t)o->token_count;
    if (o->subjects[i].searched) c->total += (uint64_t)o->token_count + 1;
  }
  return WN_ALLOC(c->ctx, "budgets", c->total, &c->under);
}

wn_status wn_prune_compare(wn_context *ctx, const wn_prune_compare_options *options,
                           void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                           wn_prune_comparison *out) {
  WN_CHECK_WORK(WN_POINTER(out));
  wn_prune_compare_options own;
  memset(out, 0, sizeof *out);
  WN_TRY(WN_OPTIONS_READ(ctx, wn_prune_compare_options, options, &own));
  options = &own;
  struct compare c = {.ctx = ctx, .options = options, .out = out, .progress = progress, .user = user};
  wn_status status = wn_dist_alike(ctx);
  if (status == WN_OK) status = compare_prepare(&c);
  for (int i = 0; i < options->subject_count && status == WN_OK; i++) {
    int64_t *tokens;
    status = WN_ALLOC(ctx, "budgets", out->layers[i], &tokens);
    const int64_t first = out->count;
    if (status == WN_OK) status = compare_subject(&c, i, tokens);
    if (status == WN_OK) status = compare_answer(&c, first);
    wn_free(tokens);
  }
  if (status == WN_OK) status = compare_add_savings(&c);
  if (c.evaluator) c.evaluator->destroy(c.evaluator);
  wn_free(c.under);
  wn_prune_set_clear(&c.set);
  if (status != WN_OK) wn_prune_comparison_clear(out);
  return status;
}
