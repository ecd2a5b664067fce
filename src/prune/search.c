/* The budget search (arXiv 2410.02703, section 4): the rule of greedy.c, applied to the losses of an evaluator, with
 * its state in a folder.
 *
 * Evaluations are functions of the budgets, so the only state is the budgets reached. search.json holds them with the
 * numbers of all steps (and, for the lazy search, the last increases). So a search that was killed and resumed has the
 * same result as one that was not interrupted. Cost: L evaluations per step, at most L (N/C - 1) steps.
 *
 * With fine-tuning the parameters are state too: the run in DIR/tuned. Before a round begins search.json records the
 * run's step at its end; a resumed search first finishes an unfinished round. Activations and the lazy search's
 * increases from before a round belong to other parameters and are dropped. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/estimate.h"
#include "base/file.h"
#include "base/misuse.h"
#include "base/options.h"
#include "dist/dist.h"
#include "io/folder.h"
#include "kv/policy.h"
#include "prune/curve.h"
#include "prune/evaluator.h"
#include "prune/finetune.h"
#include "prune/greedy.h"
#include "prune/options.h"

enum { PATH_BYTES = 4096, BATCH = 8 };
#define TARGET_ROUNDING 1e-4 /* nats */

struct search {
  wn_context *ctx;
  wn_model *model;
  const wn_prune_options *options;
  int64_t T, batch;
  int64_t whole;         /* tokens that budgets are of: a row's, or its context's */
  bool writes;           /* this process (the first of several) writes files */
  char path[PATH_BYTES]; /* search.json */
  struct wn_prune_set search, report;
  struct wn_prune_evaluator *on_search, *on_report;
  double *rows;         /* [rows of the larger set] scratch: losses of rows */
  double *base, *allow; /* [report rows] the losses of point 0; those that the target's model has there (or NULL) */
  wn_prune_curve curve;
  bool resumed;
  struct wn_greedy greedy;
  struct wn_race race;
  struct wn_finetune *tuning; /* NULL: none */
  wn_prune_fn progress;
  void *user;
  int64_t evaluations, expected; /* of the current step */
  double start, before;          /* seconds: when this process started, and the duration of earlier parts */
};

static void search_clear(struct search *s) {
  if (s->on_search) s->on_search->destroy(s->on_search);
  if (s->on_report) s->on_report->destroy(s->on_report);
  wn_prune_set_clear(&s->search);
  wn_prune_set_clear(&s->report);
  wn_prune_curve_clear(&s->curve);
  wn_free(s->greedy.tokens);
  wn_free(s->greedy.trial);
  wn_free(s->rows);
  wn_free(s->race.loss);
  wn_free(s->base);
  wn_free(s->allow);
  wn_free(s->tuning);
}

static wn_status search_load_sets(struct search *s) {
  const wn_prune_options *o = s->options;
  const int64_t V = s->model->config.vocab_size;
  WN_TRY(wn_prune_set_load(s->ctx, "search set", &o->search, s->T, V, o->race > 0, &s->search));
  WN_TRY(wn_prune_set_load(s->ctx, "report set", &o->report, s->T, V, o->race > 0, &s->report));
  if (wn_prune_once(s->options)) {
    WN_TRY(wn_prune_set_leave(s->ctx, "search set", &s->search, s->whole));
    WN_TRY(wn_prune_set_leave(s->ctx, "report set", &s->report, s->whole));
  }
  if (!strcmp(s->search.fingerprint, s->report.fingerprint))
    wn_log(s->ctx, WN_LOG_WARNING, "search set and report set are the same: the report says nothing about unseen data");
  wn_prune_set_share(s->ctx, &s->search, s->batch);
  wn_prune_set_share(s->ctx, &s->report, s->batch);
  return WN_OK;
}

/* Makes a new curve, or loads the existing one if it belongs to this search. */
static wn_status search_open_curve(struct search *s, const char *dir, bool resume) {
  const wn_prune_options *o = s->options;
  wn_context *ctx = s->ctx;
  char model[24];
  WN_TRY(wn_model_fingerprint(s->model, model));
  static const char *const names[] = {"search.json", "budgets.json", "tuned", "curve.csv", "curve.svg"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) WN_TRY(wn_folder_refuse_link(ctx, dir, names[i]));
  WN_TRY(wn_path_join(ctx, s->path, sizeof s->path, dir, "search.json"));
  const bool there = wn_path_exists(s->path);
  if (there && !resume)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s already holds a search: resume it or choose another folder", dir);
  if (!there && resume) return wn_fail(ctx, WN_ERR_IO, "%s: no search to resume", dir);
  if (!there && s->tuning && wn_finetune_exists(s->tuning))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s already holds a run, but %s no search: choose another folder",
                   s->tuning->dir, dir);
  if (!there) {
    if (s->writes) WN_TRY(wn_make_dirs(ctx, dir));
    WN_TRY(wn_prune_curve_init(ctx, s->model->config.layers, s->whole, o->step, &s->curve));
    s->curve.budgets = o->budgets;
    s->curve.budgets.heads = 0;
    s->curve.budgets.tokens = s->curve.budgets.head_tokens = NULL;
    s->curve.lazy = o->lazy;
    s->curve.race = o->race;
    s->curve.checked = (o->lazy || o->race > 0) && o->check;
    s->curve.search_rows = s->search.all_rows, s->curve.search_tokens = s->search.counted;
    s->curve.report_rows = s->report.all_rows, s->curve.report_tokens = s->report.counted;
    if (s->tuning) {
      s->curve.finetune_lr = s->tuning->recipe.train.lr;
      s->curve.finetune_steps = o->finetune.steps;
      s->curve.finetune_every = o->finetune.steps > 0 && o->finetune.every == 0 ? 1 : o->finetune.every;
      strcpy(s->curve.finetune_recipe, s->tuning->fingerprint);
    }
    strcpy(s->curve.model, model);
    strcpy(s->curve.search, s->search.fingerprint);
    strcpy(s->curve.report, s->report.fingerprint);
    return WN_OK;
  }
  WN_TRY(wn_prune_curve_load(ctx, s->path, &s->curve));
  const wn_prune_curve *c = &s->curve;
  const wn_budgets *a = &c->budgets, *b = &o->budgets;
  const int64_t every = o->finetune.steps > 0 && o->finetune.every == 0 ? 1 : o->finetune.every;
  const double lr = s->tuning ? s->tuning->recipe.train.lr : 0;
  const struct {
    const char *what;
    bool same;
  } same[] = {{"model", !strcmp(c->model, model) && c->layers == s->model->config.layers},
              {"search set", !strcmp(c->search, s->search.fingerprint)},
              {"report set", !strcmp(c->report, s->report.fingerprint)},
              {"context", c->context == s->whole},
              {"step", c->step == o->step},
              {"choice of lazy, race or exact",
               c->lazy == o->lazy && c->race == o->race && c->checked == ((o->lazy || o->race > 0) && o->check)},
              {"fine-tuning", c->finetune_steps == o->finetune.steps && c->finetune_every == every &&
                                  (c->tune_to == 0 || c->finetune_lr == lr)},
              {"recipe for fine-tuning", !s->tuning || !c->finetune_recipe[0] || !wn_finetune_exists(s->tuning) ||
                                             !strcmp(c->finetune_recipe, s->tuning->fingerprint)},
              {"policy", wn_budgets_same_options(a, b)}};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++)
    if (!same[i].same)
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: the search there was begun with another %s", s->path, same[i].what);
  if (c->tune_to == 0) s->curve.finetune_lr = lr; /* fine-tuning may be added to an existing search */
  if (s->tuning) strcpy(s->curve.finetune_recipe, s->tuning->fingerprint);
  s->resumed = true;
  s->before = c->points[c->count - 1].seconds;
  return WN_OK;
}

static uint64_t search_half_of_memory(void) {
  const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? (uint64_t)pages / 2 * (uint64_t)bytes : UINT64_C(1) << 32;
}

static wn_status search_open_evaluators(struct search *s) {
  const wn_prune_options *o = s->options;
  /* Several processes may share a machine; each holds a part of the rows. */
  const uint64_t memory = o->memory ? o->memory : search_half_of_memory() / (uint64_t)wn_dist_size(s->ctx);
  if (wn_prune_once(s->options)) {
    WN_TRY(wn_prune_once_create(s->ctx, s->model, &s->report, s->batch, &o->budgets, memory / 2, &s->on_report));
    return wn_prune_once_create(s->ctx, s->model, &s->search, s->batch, &o->budgets, memory / 2, &s->on_search);
  }
  if (o->plain || !s->model->backend->memory->host) { /* the reusing evaluator holds activations on the host */
    WN_TRY(wn_prune_plain_create(s->ctx, s->model, &s->report, s->batch, &o->budgets, &s->on_report));
    return wn_prune_plain_create(s->ctx, s->model, &s->search, s->batch, &o->budgets, &s->on_search);
  }
  struct wn_prune_reuse r = {
      .what = "report set", .set = &s->report, .batch = s->batch, .budgets = &o->budgets, .memory = memory};
  WN_TRY(wn_prune_reuse_create(s->ctx, s->model, &r, &s->on_report));
  const uint64_t held = s->on_report->bytes;
  r.what = "search set", r.set = &s->search, r.trials = true, r.memory = memory > held ? memory - held : 0;
  return wn_prune_reuse_create(s->ctx, s->model, &r, &s->on_search);
}

static wn_status search_save(struct search *s) {
  return s->writes ? wn_prune_curve_save(s->ctx, &s->curve, s->path) : WN_OK;
}

static wn_status search_save_budgets(struct search *s, const wn_budgets *found, const char *dir) {
  char path[PATH_BYTES];
  if (!s->writes) return WN_OK;
  WN_TRY(wn_path_join(s->ctx, path, sizeof path, dir, "budgets.json"));
  return wn_budgets_save(s->ctx, found, path);
}

static void search_tell(struct search *s, bool stepped) {
  if (!s->progress) return;
  s->progress(s->user, &(wn_prune_progress){.curve = &s->curve,
                                            .stepped = stepped,
                                            .evaluations = s->evaluations,
                                            .expected = s->expected,
                                            .bytes = s->on_search->bytes + s->on_report->bytes});
}

static double search_seconds(const struct search *s) {
  return s->before + wn_seconds_now() - s->start;
}

static void search_on_tuning(void *user, const wn_train_progress *p) {
  struct search *s = user;
  if (!s->progress) return;
  s->progress(s->user, &(wn_prune_progress){
                           .curve = &s->curve, .bytes = s->on_search->bytes + s->on_report->bytes, .tuning = p});
}

/* The errors of a point's losses, after both evaluators have begun or accepted its budgets. */
static wn_status search_add_errors(struct search *s, wn_prune_point *p) {
  const struct wn_prune_set *search = &s->search, *report = &s->report;
  WN_TRY(s->on_search->rows(s->on_search, s->rows));
  p->search_rows = wn_estimate_ratio(&(struct wn_row_numbers){s->rows, NULL, search->row_tokens, search->all_rows, 1});
  p->search_rows.value = p->search_loss;
  WN_TRY(s->on_report->rows(s->on_report, s->rows));
  const size_t bytes = (size_t)report->all_rows * sizeof *s->rows;
  if (p == s->curve.points && p->tuned == 0) memcpy(s->base, s->rows, bytes);
  p->report_rows = wn_estimate_ratio(&(struct wn_row_numbers){s->rows, NULL, report->row_tokens, report->all_rows, 1});
  p->report_rows.value = p->report_loss;
  if (s->base)
    p->report_change =
        wn_estimate_ratio(&(struct wn_row_numbers){s->rows, s->base, report->row_tokens, report->all_rows, 1});
  if (!s->curve.report_row_tokens) return WN_OK;
  if (!p->report_row_loss) {
    WN_TRY(WN_ALLOC(s->ctx, "rows", report->all_rows, &p->report_row_loss));
  }
  memcpy(p->report_row_loss, s->rows, bytes);
  return WN_OK;
}

/* Finishes the open round: trains up to tune_to, loads the parameters, and measures everything again. */
static wn_status search_finish_round(struct search *s) {
  wn_prune_curve *c = &s->curve;
  wn_prune_point *p = &c->points[c->count - 1];
  wn_budgets budgets;
  double search, report;
  WN_TRY(wn_prune_curve_budgets(s->ctx, c, c->count - 1, &budgets));
  const wn_status status = wn_finetune_run(s->ctx, s->tuning, &budgets, p->tuned, c->tune_to, search_on_tuning, s);
  wn_budgets_clear(&budgets);
  WN_TRY(status);
  WN_TRY(wn_finetune_load(s->ctx, s->tuning, c->tune_to));
  WN_TRY(s->on_search->begin(s->on_search, p->tokens, &search));
  WN_TRY(s->on_report->begin(s->on_report, p->tokens, &report));
  p->search_loss = s->greedy.loss = search;
  p->report_loss = report;
  p->tuned = c->tune_to;
  p->seconds = search_seconds(s);
  WN_TRY(search_add_errors(s, p));
  for (int64_t l = 0; l < c->layers; l++) c->increase[l] = NAN;
  WN_TRY(search_save(s));
  search_tell(s, true);
  return WN_OK;
}

static wn_status search_begin_round(struct search *s, int64_t steps) {
  s->curve.tune_to = s->curve.points[s->curve.count - 1].tuned + steps;
  WN_TRY(search_save(s));
  return search_finish_round(s);
}

/* Steps of the search since the last round. */
static int64_t search_untuned_steps(const wn_prune_curve *c) {
  int64_t n = 0;
  while (n < c->count - 1 && c->points[c->count - 1 - n].tuned == c->points[c->count - 2 - n].tuned) n++;
  return n;
}

/* Restores the point from which a resumed search continues, with its parameters. */
static wn_status search_restore(struct search *s) {
  const wn_prune_point *p = &s->curve.points[s->curve.count - 1];
  memcpy(s->greedy.tokens, p->tokens, (size_t)s->curve.layers * sizeof *s->greedy.tokens);
  if (!s->tuning) return WN_OK;
  if (s->curve.tune_to > p->tuned) return search_finish_round(s);
  return p->tuned > 0 ? wn_finetune_load(s->ctx, s->tuning, p->tuned) : WN_OK;
}

static wn_status search_prepare_rows(struct search *s) {
  const size_t report = (size_t)s->report.all_rows * sizeof(double);
  const int64_t most = s->search.all_rows > s->report.all_rows ? s->search.all_rows : s->report.all_rows;
  const double *first = s->resumed ? s->curve.points[0].report_row_loss : s->report.row_tokens;
  WN_TRY(WN_ALLOC(s->ctx, "rows", most, &s->rows));
  if (!first) return WN_OK; /* an older search: its first point's rows are not known */
  WN_TRY(WN_ALLOC(s->ctx, "rows", s->report.all_rows, &s->base));
  if (s->resumed) memcpy(s->base, first, report);
  const int64_t steps = s->whole / s->curve.step; /* of a layer, at most */
  const double points = 1 + (double)s->curve.layers * (double)steps;
  if (s->resumed || points * (double)s->report.all_rows > WN_PRUNE_KEPT) return WN_OK;
  WN_TRY(WN_ALLOC(s->ctx, "rows", s->report.all_rows, &s->curve.report_row_tokens));
  memcpy(s->curve.report_row_tokens, s->report.row_tokens, report);
  return WN_OK;
}

/* Measures point 0, or goes back to the last point. */
static wn_status search_begin(struct search *s) {
  double search, report;
  wn_prune_curve *c = &s->curve;
  WN_TRY(search_prepare_rows(s));
  if (s->resumed) WN_TRY(search_restore(s));
  WN_TRY(s->on_search->begin(s->on_search, s->greedy.tokens, &search));
  WN_TRY(s->on_report->begin(s->on_report, s->greedy.tokens, &report));
  if (s->resumed) {
    const wn_prune_point *p = &c->points[c->count - 1];
    if (p->search_loss != search || p->report_loss != report)
      wn_log(s->ctx, WN_LOG_WARNING,
             "%s: losses here differ in the last bits from those saved (another machine, build or number of threads)",
             s->path);
  } else {
    wn_prune_point *p;
    WN_TRY(wn_prune_curve_add(s->ctx, c, s->greedy.tokens, &p));
    p->search_loss = p->exact_loss = p->untuned_search_loss = search;
    p->report_loss = p->untuned_report_loss = report;
    p->evaluations = 1;
    p->seconds = search_seconds(s);
    WN_TRY(search_add_errors(s, p));
  }
  s->greedy.loss = c->points[c->count - 1].search_loss;
  return WN_OK;
}

/* Steps are not undone: refuses a target that the curve has already passed. A tolerance allows for the last bits of
 * another machine. */
static wn_status search_check_target(const struct search *s) {
  const wn_prune_curve *c = &s->curve;
  if (!s->resumed || c->closed || c->count < 2 || s->greedy.loss <= s->greedy.target + TARGET_ROUNDING) return WN_OK;
  return wn_fail(
      s->ctx, WN_ERR_ARGUMENT,
      "%s: the search there has gone on to a perplexity of %.6g, past this target of %.6g; another folder, or "
      "the target it had",
      s->path, exp(s->greedy.loss), exp(s->greedy.target));
}

/* The losses of the target's model on the report set, for the saving there. */
static wn_status search_measure_allowed(struct search *s) {
  struct wn_prune_evaluator *e;
  double loss;
  WN_TRY(WN_ALLOC(s->ctx, "rows", s->report.all_rows, &s->allow));
  WN_TRY(wn_prune_plain_create(s->ctx, s->options->target_model, &s->report, s->batch, NULL, &e));
  wn_status status = e->begin(e, NULL, &loss);
  if (status == WN_OK) status = e->rows(e, s->allow);
  e->destroy(e);
  return status;
}

/* Sets the target from the options. A resumed search may have another one and go further. */
static wn_status search_set_target(struct search *s) {
  const wn_prune_options *o = s->options;
  if (o->target > 0) {
    s->curve.target_loss = log(o->target);
  } else if (o->target_model) {
    struct wn_prune_evaluator *e;
    WN_TRY(wn_prune_plain_create(s->ctx, o->target_model, &s->search, s->batch, NULL, &e));
    wn_status status = e->begin(e, NULL, &s->curve.target_loss);
    e->destroy(e);
    WN_TRY(status);
    WN_TRY(search_measure_allowed(s));
  } else {
    s->curve.target_loss = s->curve.points[0].untuned_search_loss + log1p(o->tolerance);
  }
  s->greedy.target = s->curve.target_loss;
  return search_check_target(s);
}

static wn_status search_evaluate(void *user, int64_t layer, int64_t to, double *loss) {
  struct search *s = user;
  WN_TRY(s->on_search->evaluate(s->on_search, layer, to, loss));
  s->evaluations++;
  search_tell(s, false);
  return WN_OK;
}

static wn_status search_take(struct search *s, const struct wn_greedy_choice *choice) {
  double search, report;
  const int64_t to = s->greedy.tokens[choice->layer] - s->greedy.step;
  wn_prune_point *p;
  WN_TRY(s->on_search->accept(s->on_search, choice->layer, to, &search));
  WN_TRY(s->on_report->accept(s->on_report, choice->layer, to, &report));
  wn_greedy_take(&s->greedy, choice);
  WN_TRY(wn_prune_curve_add(s->ctx, &s->curve, s->greedy.tokens, &p));
  p->layer = p->exact_layer = choice->layer;
  p->search_loss = p->exact_loss = p->untuned_search_loss = choice->loss;
  p->report_loss = p->untuned_report_loss = report;
  p->tuned = p[-1].tuned;
  p->evaluations = choice->evaluations;
  p->raced_rows = choice->raced, p->race_left = choice->left;
  p->seconds = search_seconds(s);
  WN_TRY(search_add_errors(s, p));
  if (s->curve.checked) p->exact_layer = choice->exact, p->exact_loss = choice->exact_loss;
  WN_TRY(search_save(s));
  search_tell(s, true);
  return WN_OK;
}

static wn_status search_loop(struct search *s) {
  wn_prune_curve *c = &s->curve;
  const int64_t begun = c->count;
  for (;;) {
    struct wn_greedy_choice choice;
    /* Before the step and not after the last one, so that a search killed between the two does not skip the round. */
    if (c->finetune_steps > 0 && search_untuned_steps(c) >= c->finetune_every)
      WN_TRY(search_begin_round(s, c->finetune_steps));
    if (s->options->max_steps > 0 && c->count - begun >= s->options->max_steps) {
      c->end = WN_PRUNE_STEPS;
      return WN_OK;
    }
    s->evaluations = s->expected = 0;
    for (int64_t l = 0; l < c->layers; l++) s->expected += s->greedy.tokens[l] >= 2 * s->greedy.step;
    /* If the step is not taken, its evaluations must not change the search that continues from here. */
    double *kept = s->greedy.trial + c->layers;
    memcpy(kept, c->increase, (size_t)c->layers * sizeof *kept);
    WN_TRY(wn_greedy_choose(&s->greedy, &choice));
    if (choice.verdict != WN_GREEDY_LOWER) {
      memcpy(c->increase, kept, (size_t)c->layers * sizeof *kept);
      if (c->finetune_steps > 0 && search_untuned_steps(c) > 0) { /* after tuning the step may be possible */
        WN_TRY(search_begin_round(s, c->finetune_steps));
        continue;
      }
      c->end = choice.verdict == WN_GREEDY_AT_FLOOR ? WN_PRUNE_FLOOR : WN_PRUNE_TARGET;
      return WN_OK;
    }
    WN_TRY(search_take(s, &choice));
  }
}

/* The round after the last step of a search; none if nothing is evicted. */
static wn_status search_close_search(struct search *s) {
  wn_prune_curve *c = &s->curve;
  if (!s->tuning || s->options->finetune.after == 0 || c->closed || c->count < 2) return WN_OK;
  if (c->end != WN_PRUNE_TARGET && c->end != WN_PRUNE_FLOOR) return WN_OK;
  c->closed = true;
  return search_begin_round(s, s->options->finetune.after);
}

/* Measures the result once more with the plain evaluator; then writes the files. */
static wn_status search_finish(struct search *s, const char *dir) {
  wn_prune_curve *c = &s->curve;
  wn_budgets found;
  WN_TRY(wn_prune_curve_add_saving(s->ctx, c, s->options, s->allow, s->rows));
  WN_TRY(wn_prune_curve_budgets(s->ctx, c, c->count - 1, &found));
  wn_status status = WN_OK;
  if (!s->options->plain && !wn_prune_once(s->options)) {
    struct wn_prune_evaluator *e = NULL;
    WN_TRY_GOTO(wn_prune_plain_create(s->ctx, s->model, &s->search, s->batch, &s->options->budgets, &e), done);
    status = e->begin(e, found.tokens, &c->plain_loss);
    e->destroy(e);
    if (status != WN_OK) goto done;
    if (c->plain_loss != s->greedy.loss)
      wn_log(s->ctx, WN_LOG_WARNING, "the plain evaluation of what was found gives %.17g, the search had %.17g",
             c->plain_loss, s->greedy.loss);
  } else {
    c->plain_loss = s->greedy.loss;
  }
  WN_TRY_GOTO(search_save(s), done);
  WN_TRY_GOTO(search_save_budgets(s, &found, dir), done);
  if (!s->tuning || c->points[c->count - 1].tuned == 0) goto done;
  /* The search may have gone some steps past the last round. */
  status = search_save_budgets(s, &found, s->tuning->dir);
done:
  wn_budgets_clear(&found);
  return status;
}

static wn_status search_prepare(struct search *s, const char *dir) {
  const int64_t L = s->model->config.layers;
  const wn_prune_finetune *tuning = &s->options->finetune;
  if (wn_prune_tunes(s->options)) {
    WN_TRY(WN_ALLOC(s->ctx, "fine-tuning", 1, &s->tuning));
    WN_TRY(wn_finetune_init(s->ctx, tuning, s->model, dir, s->tuning));
  }
  WN_TRY(WN_ALLOC(s->ctx, "budgets", 2 * (size_t)L, &s->greedy.tokens));
  s->greedy.lowered = s->greedy.tokens + L;
  for (int64_t l = 0; l < L; l++) s->greedy.tokens[l] = s->whole > 0 ? s->whole : 1;
  WN_TRY(WN_ALLOC(s->ctx, "losses", 2 * (size_t)L, &s->greedy.trial));
  return wn_prune_options_check(s->ctx, s->model, s->options,
                                &(struct wn_prune_rows){s->T, s->whole, s->batch, s->greedy.tokens});
}

wn_status wn_prune_search(wn_context *ctx, wn_model *model, const wn_prune_options *options, const char *out_dir,
                          bool resume, wn_prune_fn progress, void *user, wn_prune_curve *out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(out_dir));
  wn_prune_options own;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_prune_options, options, &own));
  options = &own;
  struct search s = {.ctx = ctx,
                     .model = model,
                     .options = options,
                     .T = options->context ? options->context : model->config.context,
                     .batch = options->batch ? options->batch : BATCH,
                     .writes = wn_dist_rank(ctx) == 0,
                     .progress = progress,
                     .user = user,
                     .start = wn_seconds_now()};
  wn_status status;
  s.whole = !wn_prune_once(options) ? s.T : options->read > 0 ? options->read : s.T / 2;
  if (out) memset(out, 0, sizeof *out);
  WN_TRY_GOTO(wn_dist_alike(ctx), done);
  WN_TRY_GOTO(search_prepare(&s, out_dir), done);
  WN_TRY_GOTO(search_load_sets(&s), done);
  WN_TRY_GOTO(search_open_curve(&s, out_dir, resume), done);
  WN_TRY_GOTO(search_open_evaluators(&s), done);
  s.greedy.layers = s.curve.layers;
  s.greedy.step = s.curve.step;
  s.greedy.lazy = s.curve.lazy;
  s.greedy.check = s.curve.checked;
  s.greedy.increase = s.curve.increase;
  s.greedy.evaluate = search_evaluate;
  s.greedy.user = &s;
  if (options->race > 0) {
    const int64_t rows = s.search.all_rows, L = s.curve.layers;
    const struct wn_race_search race = {L, L * (s.whole / s.curve.step), rows, s.batch < rows ? s.batch : rows,
                                        options->race};
    WN_TRY_GOTO(wn_race_init(ctx, s.on_search, &race, &s.race), done);
    s.greedy.race = &s.race;
  }
  WN_TRY_GOTO(search_begin(&s), done);
  WN_TRY_GOTO(search_set_target(&s), done);
  if (!s.curve.closed) s.curve.end = WN_PRUNE_OPEN;
  WN_TRY_GOTO(search_save(&s), done);
  search_tell(&s, true);
  if (s.curve.closed)
    status = WN_OK; /* the round after the search has ended */
  else if (s.greedy.loss > s.greedy.target)
    s.curve.end = WN_PRUNE_TARGET; /* the target is passed before the first step */
  else
    status = search_loop(&s);
  if (status == WN_OK) status = search_close_search(&s);
  if (status == WN_OK) status = search_finish(&s, out_dir);
done:
  if (out && (status == WN_OK || status == WN_ERR_CANCELLED)) {
    *out = s.curve;
    memset(&s.curve, 0, sizeof s.curve);
  }
  search_clear(&s);
  return status;
}
