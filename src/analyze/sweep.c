/* The sweep over tau: evaluates the model under a threshold at each share, without a threshold, and without context.
 * Cost: for every share an evaluation of the text and a decoding of each task, and both twice more. */
#include "analyze/input.h"

#include "base/clock.h"
#include "base/misuse.h"
#include "base/options.h"
#include "winnow/generate.h"

enum { TAUS_MAX = 64 };

struct sweep_report {
  wn_sweep_report r; /* first: what the caller holds */
  wn_sweep_point points[TAUS_MAX];
};

int wn_sweep_optimum(const double *performance, int count, double baseline, double full, double gamma) {
  WN_CHECK_OR(-1, WN_ARRAY(performance, count));
  const double least = baseline + gamma * (full - baseline);
  int best = -1;
  if (!(full > baseline)) return -1;
  for (int i = count - 1; i >= 0 && performance[i] >= least; i--) best = i;
  return best;
}

struct sweep_match {
  const int32_t *answer; /* [count] */
  int64_t count, right;
};

static bool sweep_compare(void *user, const wn_generate_piece *piece) {
  struct sweep_match *m = user;
  if (piece->id != m->answer[piece->index]) return false;
  m->right++;
  return true;
}

/* Would greedy decoding after the prompt give the answer? */
static wn_status sweep_matches(wn_context *ctx, wn_session *s, const wn_sweep_task *t, bool bare, bool *out) {
  struct sweep_match match = {t->answer, t->answer_count, 0};
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  o.prompt = bare ? t->bare : t->prompt;
  o.prompt_count = bare ? t->bare_count : t->prompt_count;
  o.sampling.temperature = 0;
  o.max_tokens = t->answer_count;
  o.piece = sweep_compare;
  o.user = &match;
  wn_session_reset(s);
  WN_TRY(wn_session_generate(ctx, s, &o, NULL));
  *out = match.right == match.count;
  return wn_context_cancelled(ctx) ? wn_fail(ctx, WN_ERR_CANCELLED, "stopped") : WN_OK;
}

/* Share of the tasks whose answer greedy decoding gives; bare: without their content. */
static wn_status sweep_tasks(wn_context *ctx, wn_model *model, const wn_sweep_options *o, bool bare, double *share) {
  int64_t capacity = 1, hits = 0;
  wn_session *session;
  for (int64_t i = 0; i < o->task_count; i++) {
    const wn_sweep_task *t = &o->tasks[i];
    const int64_t longest = (t->prompt_count > t->bare_count ? t->prompt_count : t->bare_count) + t->answer_count;
    if (longest > capacity) capacity = longest;
  }
  wn_status status = wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = capacity), &session);
  for (int64_t i = 0; status == WN_OK && i < o->task_count; i++) {
    bool hit = false;
    status = sweep_matches(ctx, session, &o->tasks[i], bare, &hit);
    hits += hit;
  }
  wn_session_destroy(session);
  *share = (double)hits / (double)o->task_count;
  return status;
}

/* Measures the model with its current configuration. */
static wn_status sweep_measure(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                               const wn_sweep_options *o, bool bare, wn_sweep_point *out) {
  const double start = wn_seconds_now();
  if (input) {
    wn_eval_result result;
    WN_TRY(wn_analysis_run(ctx, model, input, NULL, &result));
    out->loss = result.loss, out->perplexity = result.perplexity, out->accuracy = result.accuracy;
    out->tokens = result.tokens;
  }
  if (o->task_count > 0) WN_TRY(sweep_tasks(ctx, model, o, bare, &out->exact));
  out->seconds = wn_seconds_now() - start;
  return WN_OK;
}

static wn_status sweep_points(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                              const wn_sweep_options *o, const wn_attention_config *plain, struct sweep_report *r) {
  wn_attention_config attention = *plain;
  const int runs = o->tau_count + 2;
  attention.window = 1; /* each token sees only itself */
  attention.window_layers[0] = 0;
  if (input) WN_TRY(wn_model_set_attention_config(ctx, model, &attention, "without context"));
  WN_TRY(sweep_measure(ctx, model, input, &(wn_sweep_options){0}, true, &r->r.baseline));
  WN_TRY(wn_model_set_attention_config(ctx, model, plain, "without a threshold"));
  if (o->task_count > 0) WN_TRY(sweep_tasks(ctx, model, o, true, &r->r.baseline.exact));
  if (o->progress) o->progress(o->user, 1, (uint64_t)runs);
  r->r.full.tau = 1;
  WN_TRY(sweep_measure(ctx, model, input, o, false, &r->r.full));
  if (o->progress) o->progress(o->user, 2, (uint64_t)runs);
  for (int i = 0; i < o->tau_count; i++) {
    wn_sweep_point *p = &r->points[i];
    *p = r->r.full;
    p->tau = o->taus[i];
    attention = *plain;
    attention.threshold.enabled = true;
    attention.threshold.tau = p->tau;
    WN_TRY(wn_model_set_attention_config(ctx, model, &attention, "threshold"));
    if (p->tau < 1) WN_TRY(sweep_measure(ctx, model, input, o, false, p));
    if (o->progress) o->progress(o->user, (uint64_t)i + 3, (uint64_t)runs);
  }
  return WN_OK;
}

/* Finds the optimum for each metric. */
static void sweep_choose(struct sweep_report *r, bool text, bool tasks) {
  double value[TAUS_MAX];
  const int n = r->r.count;
  const wn_sweep_point *p = r->points, *b = &r->r.baseline, *f = &r->r.full;
  r->r.best_loss = r->r.best_accuracy = r->r.best_exact = -1;
  for (int i = 0; i < n; i++) value[i] = -p[i].loss;
  if (text) r->r.best_loss = wn_sweep_optimum(value, n, -b->loss, -f->loss, r->r.gamma);
  for (int i = 0; i < n; i++) value[i] = p[i].accuracy;
  if (text) r->r.best_accuracy = wn_sweep_optimum(value, n, b->accuracy, f->accuracy, r->r.gamma);
  for (int i = 0; i < n; i++) value[i] = p[i].exact;
  if (tasks) r->r.best_exact = wn_sweep_optimum(value, n, b->exact, f->exact, r->r.gamma);
}

static wn_status sweep_check_tasks(wn_context *ctx, const wn_model *model, const wn_sweep_options *o) {
  for (int64_t i = 0; i < o->task_count; i++) {
    const wn_sweep_task *t = &o->tasks[i];
    if (t->prompt_count < 1 || t->bare_count < 1 || t->answer_count < 1)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "sweep: task %lld: prompt, prompt without content and answer need tokens",
                     (long long)i);
    if (model->config.position == WN_POS_LEARNED && t->prompt_count + t->answer_count > model->config.context)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "sweep: task %lld has %lld tokens, the model positions for %lld",
                     (long long)i, (long long)(t->prompt_count + t->answer_count), (long long)model->config.context);
  }
  return WN_OK;
}

wn_status wn_analyze_sweep(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                           const wn_sweep_options *options, wn_sweep_report **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(out));
  struct wn_analysis_own own;
  wn_sweep_options choice;
  *out = NULL;
  WN_TRY(wn_analysis_read(ctx, &input, &own));
  WN_TRY(WN_OPTIONS_READ(ctx, wn_sweep_options, options, &choice));
  options = &choice;
  if (!input && options->task_count < 1)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sweep: a text or tasks are needed, found neither");
  if (input) WN_TRY(wn_analysis_check(ctx, model, input, "sweep"));
  if (options->tau_count < 1 || options->tau_count > TAUS_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sweep: %d shares, expected 1 to %d", options->tau_count, TAUS_MAX);
  for (int i = 0; i < options->tau_count; i++)
    if (!(options->taus[i] > 0 && options->taus[i] <= 1 && (i == 0 || options->taus[i] > options->taus[i - 1])))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "sweep: tau %g, expected ascending numbers in (0,1]", options->taus[i]);
  if (!(options->gamma > 0 && options->gamma < 1))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sweep: gamma is %g, expected a number in (0,1)", options->gamma);
  WN_TRY(sweep_check_tasks(ctx, model, options));
  const wn_attention_config before = model->config.attention;
  wn_attention_config plain = before;
  plain.threshold.enabled = false;
  struct sweep_report *r;
  WN_TRY(WN_ALLOC(ctx, "report of a sweep", 1, &r));
  r->r.point = r->points;
  r->r.count = options->tau_count;
  r->r.gamma = options->gamma;
  wn_status status = wn_model_set_control_tokens(ctx, model, options->control, options->control_count);
  if (status == WN_OK) status = sweep_points(ctx, model, input, options, &plain, r);
  model->config.attention = before;
  wn_model_set_control_tokens(ctx, model, NULL, 0);
  if (status != WN_OK) {
    wn_free(r);
    return status;
  }
  sweep_choose(r, input != NULL, options->task_count > 0);
  *out = &r->r;
  return WN_OK;
}

void wn_sweep_report_destroy(wn_sweep_report *report) {
  wn_free(report);
}
