/* Losses after a compression, for budgets with `when` "prompt" or "hold": each row's context (wn_prune_set.read) is
 * read once and kept whole. A trial takes it over, compresses it to the budgets and scores what follows. So a trial
 * costs the rows behind the contexts, and a copy of these. Where one reading cannot serve other budgets (selective
 * attention, gates on keys) or there is no memory for all contexts, each trial reads them again. */
#include "decode/session.h"
#include "prune/evaluator.h"
#include "winnow/score.h"
#include "winnow/session_group.h"

struct once {
  wn_context *ctx;
  struct wn_model *model;
  const struct wn_prune_set *set;
  uint64_t memory;
  wn_session_group *group; /* all sessions read in one room */
  wn_session **read;       /* [held rows] contexts, each read when it is first needed; NULL: not yet */
  bool rereads;            /* contexts cannot be taken over, or do not all fit */
  double *scores;          /* [T] of what follows a context */
};

static wn_status once_session(struct once *o, const wn_budgets *budgets, wn_session **out) {
  return wn_session_create(o->ctx, o->model,
                           WN_OPTIONS(wn_session_options, .capacity = o->set->T, .budgets = budgets, .group = o->group),
                           out);
}

/* Reads the context of a row for trials to come, if they can take it over and there is memory for all rows'. A cache
 * grows as it is filled, so the first context that was read tells what all take. */
static wn_status once_keep(struct once *o, const wn_budgets *budgets, int64_t row) {
  wn_session *s;
  wn_status status = WN_OK;
  WN_TRY(once_session(o, budgets, &s));
  o->rereads = !wn_session_shares_reading(s, budgets);
  if (!o->rereads) {
    status = wn_session_feed(o->ctx, s, o->set->tokens + row * o->set->T, o->set->read, 0, NULL);
    o->rereads = (double)wn_session_kv_bytes(s) * (double)o->set->rows > (double)o->memory;
  }
  if (status == WN_OK && !o->rereads)
    o->read[row] = s;
  else
    wn_session_destroy(s);
  return status;
}

/* The loss of a row behind its context, in a session with the budgets. */
static wn_status once_row(struct once *o, wn_session *s, int64_t row, wn_row_sums *out) {
  const int64_t T = o->set->T, P = o->set->read;
  const int32_t *tokens = o->set->tokens + row * T, *targets = o->set->targets + row * T;
  if (o->read[row]) {
    WN_TRY(wn_session_copy(o->ctx, s, o->read[row], NULL));
    WN_TRY(wn_session_compress(o->ctx, s));
  } else {
    WN_TRY(wn_session_read_context(o->ctx, s, tokens, P, NULL));
  }
  const wn_scores scores = {.size = sizeof scores, .log_probability = o->scores};
  WN_TRY(wn_session_score(o->ctx, s, tokens + P, targets + P, T - P, &scores));
  for (int64_t t = P; t < T; t++)
    if (targets[t] >= 0) out->loss -= o->scores[t - P], out->tokens++;
  return WN_OK;
}

static wn_status once_losses(void *user, const wn_budgets *budgets, int64_t row0, int64_t B, wn_row_sums *rows,
                             double *sum) {
  struct once *o = user;
  *sum = 0;
  for (int64_t row = row0; row < row0 + B; row++) {
    wn_row_sums one = {0};
    wn_session *s;
    if (!o->read[row] && !o->rereads) WN_TRY(once_keep(o, budgets, row));
    WN_TRY(once_session(o, budgets, &s));
    const wn_status status = once_row(o, s, row, &one);
    wn_session_destroy(s);
    WN_TRY(status);
    if (rows) rows[row] = one;
    *sum += one.loss;
  }
  return WN_OK;
}

static void once_destroy(void *user) {
  struct once *o = user;
  for (int64_t row = 0; o->read && row < o->set->rows; row++) wn_session_destroy(o->read[row]);
  wn_session_group_destroy(o->group);
  wn_free(o->read);
  wn_free(o->scores);
  wn_free(o);
}

wn_status wn_prune_once_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_set *set, int64_t batch,
                               const wn_budgets *budgets, uint64_t memory, struct wn_prune_evaluator **out) {
  struct once *o;
  wn_status status;
  *out = NULL;
  WN_TRY(WN_ALLOC(ctx, "contexts", 1, &o));
  *o = (struct once){.ctx = ctx, .model = model, .set = set, .memory = memory};
  WN_TRY_GOTO(WN_ALLOC(ctx, "contexts", set->rows, &o->read), fail);
  WN_TRY_GOTO(WN_ALLOC(ctx, "scores", set->T, &o->scores), fail);
  WN_TRY_GOTO(wn_session_group_create(ctx, model, 1, &o->group), fail);
  const struct wn_prune_pass pass = {.name = "once", .user = o, .run = once_losses, .destroy = once_destroy};
  return wn_prune_pass_create(ctx, set, batch, model->config.layers, budgets, &pass, out);
fail:
  once_destroy(o);
  return status;
}
