/* Scoring: the states of rows that are to be scored are gathered, up to WN_SCORING_ROWS of them, and go together
 * through the output projection and the softmax, of which only the sum is kept. A scored row costs 2 C V flops and a
 * pass over V logits; any other row costs only the layers. */
#include "winnow/score.h"

#include <math.h>
#include <string.h>

#include "base/arrays.h"
#include "base/misuse.h"
#include "base/options.h"
#include "decode/batch.h"

static void score_lay(const struct wn_session *s, struct wn_room_scoring *x) {
  const wn_model_config *c = &s->model->config;
  const size_t e = wn_dtype_size(s->model->dtype);
  const bool apart = !s->model->backend->memory->host;
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(x->states, e, "states", true, WN_DIMS(WN_SCORING_ROWS, c->width)),
      WN_ARRAY_SIZED(x->logits, e, "logits", true, WN_DIMS(WN_SCORING_ROWS, c->vocab_size)),
      WN_ARRAY_SIZED(x->targets_shown, sizeof *x->targets, "targets shown", apart, WN_DIMS(WN_SCORING_ROWS)),
      WN_ARRAY_FOR(x->loss, "losses", true, WN_DIMS(WN_SCORING_ROWS)),
      WN_ARRAY_FOR(x->hit, "hits", true, WN_DIMS(WN_SCORING_ROWS)),
  };
  const struct wn_array host[] = {
      WN_ARRAY_FOR(x->targets, "targets", true, WN_DIMS(WN_SCORING_ROWS)),
      WN_ARRAY_FOR(x->at, "places", true, WN_DIMS(WN_SCORING_ROWS)),
      WN_ARRAY_SIZED(x->loss_read, sizeof *x->loss, "losses read", apart, WN_DIMS(WN_SCORING_ROWS)),
      WN_ARRAY_SIZED(x->hit_read, sizeof *x->hit, "hits read", apart, WN_DIMS(WN_SCORING_ROWS)),
  };
  WN_ARRAYS_LAY(&x->arrays, rows);
  WN_ARRAYS_LAY(&x->host, host);
  if (!apart) x->targets_shown = x->targets, x->loss_read = x->loss, x->hit_read = x->hit;
}

/* Losses and hits of `rows` gathered rows. */
static wn_status score_rows(struct wn_run *run, struct wn_room_scoring *x, int64_t rows) {
  const int64_t V = run->model->config.vocab_size;
  WN_TRY(wn_run_output(run, x->states, rows, x->logits));
  const struct wn_cross_entropy loss = {
      .M = rows, .V = V, .logits = x->logits, .ld = V, .targets = x->targets_shown, .loss = x->loss, .hit = x->hit};
  return wn_run_cross_entropy_forward(run, &loss);
}

static wn_status score_create(wn_context *ctx, struct wn_session *s) {
  struct wn_room_scoring *x = &s->room->scoring;
  struct wn_run run;
  wn_status status;
  if (x->arrays.base) return WN_OK;
  x->arrays.memory = s->model->backend->memory;
  score_lay(s, x);
  WN_TRY_GOTO(wn_arrays_allocate(ctx, &x->arrays, "scoring"), fail);
  WN_TRY_GOTO(wn_arrays_allocate(ctx, &x->host, "scoring"), fail);
  score_lay(s, x);
  /* A backend may need other scratch for few rows than for many. */
  wn_session_begin(&run, s, WN_SCORING_ROWS);
  run.measuring = true;
  for (int64_t rows = 1; rows <= WN_SCORING_ROWS; rows *= 2) WN_TRY_GOTO(score_rows(&run, x, rows), fail);
  WN_TRY_GOTO(wn_room_fit_scratch(ctx, s->model, run.need, s->room), fail);
  return WN_OK;
fail:
  wn_arrays_clear(&x->arrays);
  wn_arrays_clear(&x->host);
  return status;
}

/* --- writing scores --- */

static double score_logit(const struct wn_session *s, const void *logits, int64_t i) {
  return s->model->dtype == WN_F32 ? (double)((const float *)logits)[i] : ((const double *)logits)[i];
}

/* Finds the K largest logits of a row, largest first, of equal ones the lowest id, by insertion into K places: about K
 * log(V/K) insertions if the logits are in random order. */
static void score_top(const struct wn_session *s, const void *logits, double lse, const wn_scores *out, int64_t at) {
  const int64_t V = s->model->config.vocab_size, K = out->top_k;
  int32_t *top = out->top + at * K;
  for (int64_t v = 0, n = 0; v < V; v++) {
    const double x = score_logit(s, logits, v);
    if (n == K && !(x > score_logit(s, logits, top[K - 1]))) continue;
    int64_t j = n < K ? n++ : K - 1;
    for (; j > 0 && x > score_logit(s, logits, top[j - 1]); j--) top[j] = top[j - 1];
    top[j] = (int32_t)v;
  }
  for (int64_t j = 0; out->top_log_probability && j < K; j++)
    out->top_log_probability[at * K + j] = score_logit(s, logits, top[j]) - lse;
}

static wn_status score_hand_out(wn_context *ctx, const struct wn_session *s, const void *logits, int32_t target,
                                double loss, bool hit, const wn_scores *out, int64_t at) {
  if (!isfinite(loss))
    return wn_fail(ctx, WN_ERR_DIVERGED,
                   "score: the probability of token %d is not a number: the model's logits are not finite", target);
  if (out->log_probability) out->log_probability[at] = -loss;
  if (out->greedy) out->greedy[at] = hit;
  if (out->top_k > 0) score_top(s, logits, loss + score_logit(s, logits, target), out, at);
  return WN_OK;
}

/* Scores the gathered rows. Logits are copied to the host only if their largest are wanted. */
static wn_status score_flush(wn_context *ctx, struct wn_session *s, const wn_scores *out) {
  struct wn_room_scoring *x = &s->room->scoring;
  const struct wn_memory *memory = s->model->backend->memory;
  const int64_t n = x->count, V = s->model->config.vocab_size;
  const size_t bytes = (size_t)(n * V) * wn_dtype_size(s->model->dtype);
  struct wn_run run;
  void *logits = NULL;
  x->count = 0;
  if (n == 0) return WN_OK;
  wn_session_begin(&run, s, WN_SCORING_ROWS); /* the room's scratch */
  WN_TRY(wn_session_show(s->model, x->targets_shown, x->targets, (size_t)n * sizeof *x->targets));
  WN_TRY(score_rows(&run, x, n));
  WN_TRY(wn_session_read(s->model, x->loss_read, x->loss, (size_t)n * sizeof *x->loss));
  WN_TRY(wn_session_read(s->model, x->hit_read, x->hit, (size_t)n * sizeof *x->hit));
  if (out->top_k > 0) WN_TRY(wn_memory_open(ctx, memory, "logits", x->logits, bytes, &logits));
  wn_status status = WN_OK;
  for (int64_t i = 0; i < n && status == WN_OK; i++)
    status = score_hand_out(ctx, s, wn_element(logits, i * V, s->model->dtype), x->targets[i], x->loss_read[i],
                            x->hit_read[i] != 0, out, x->at[i]);
  if (logits)
    (void)wn_memory_close(ctx, memory, x->logits, bytes, logits,
                          false); /* nothing is written back, so it cannot fail */
  return status;
}

/* A call, as its feed's `user`. */
struct score_call {
  wn_context *ctx;
  const int32_t *targets; /* [B,T], T is the feed's stride */
  wn_scores out;
};

/* Gathers the rows that have targets. */
static wn_status score_take(void *user, const struct wn_feed *f, const void *states) {
  const struct score_call *call = user;
  struct wn_session *s = f->session;
  struct wn_room_scoring *x = &s->room->scoring;
  const wn_dtype dtype = s->model->dtype;
  const int64_t C = s->model->config.width;
  const size_t bytes = (size_t)C * wn_dtype_size(dtype);
  for (int64_t row = 0; row < s->B * f->T; row++) {
    const int64_t at = row / f->T * f->stride + f->done + row % f->T;
    if (call->targets[at] < 0) continue;
    WN_TRY(s->model->backend->memory->copy(call->ctx, wn_element(x->states, x->count * C, dtype),
                                           wn_element(states, row * C, dtype), bytes));
    x->targets[x->count] = call->targets[at];
    x->at[x->count++] = at;
    if (x->count == WN_SCORING_ROWS) WN_TRY(score_flush(call->ctx, s, &call->out));
  }
  return WN_OK;
}

/* --- the calls --- */

static wn_status score_check(wn_context *ctx, const struct wn_session *s, const int32_t *targets, int64_t n,
                             const wn_scores *given, wn_scores *out) {
  const int64_t V = s->model->config.vocab_size;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_scores, given, out));
  if (out->top_k < 0 || out->top_k > V || (out->top_k > 0 && !out->top))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "score: top_k is %d, expected 0 to %lld, with an array `top`", out->top_k,
                   (long long)V);
  for (int64_t i = 0; i < n; i++) {
    if (targets[i] < -1 || targets[i] >= V)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "score: targets[%lld] is %d, expected -1 to %lld", (long long)i, targets[i],
                     (long long)V - 1);
    if (targets[i] >= 0) continue;
    if (out->log_probability) out->log_probability[i] = 0;
    if (out->greedy) out->greedy[i] = 0;
    for (int64_t j = 0; j < out->top_k; j++) {
      out->top[i * out->top_k + j] = -1;
      if (out->top_log_probability) out->top_log_probability[i * out->top_k + j] = 0;
    }
  }
  return WN_OK;
}

wn_status wn_session_score(wn_context *ctx, wn_session *s, const int32_t *tokens, const int32_t *targets, int64_t T,
                           const wn_scores *scores) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(tokens), WN_POINTER(targets), WN_POINTER(scores));
  struct score_call call = {.ctx = ctx, .targets = targets};
  struct wn_feed f = {.session = s, .tokens = tokens, .stride = T, .take = score_take, .user = &call};
  WN_TRY(wn_session_check_tokens(ctx, s, tokens, T, 0));
  WN_TRY(score_check(ctx, s, targets, s->B * T, scores, &call.out));
  WN_TRY(score_create(ctx, s));
  s->room->scoring.count = 0;
  WN_TRY(wn_session_stretch(s, T));
  WN_TRY(wn_batch_feed(ctx, &f, T, s->piece));
  return score_flush(ctx, s, &call.out);
}

wn_status wn_session_score_next(wn_context *ctx, wn_session *s, const int32_t *targets, int64_t n,
                                const wn_scores *scores) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(targets), WN_POINTER(scores));
  const int64_t V = s->model->config.vocab_size;
  wn_scores out;
  if (n < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "score: no targets");
  if (s->position == 0 || s->broken || s->cut)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "score: the session has seen no token that another could follow");
  WN_TRY(score_check(ctx, s, targets, s->B * n, scores, &out));
  WN_TRY(wn_session_last_logits(s));
  const struct wn_memory *memory = s->model->backend->memory;
  const size_t bytes = (size_t)(s->B * V) * wn_dtype_size(s->model->dtype);
  void *opened;
  WN_TRY(wn_memory_open(ctx, memory, "logits", s->logits, bytes, &opened));
  wn_status status = WN_OK;
  for (int64_t b = 0; b < s->B; b++) {
    const void *logits = wn_element(opened, b * V, s->model->dtype);
    double top = -INFINITY, sum = 0;
    int64_t best = 0;
    for (int64_t v = 0; v < V; v++)
      if (score_logit(s, logits, v) > top) top = score_logit(s, logits, v), best = v;
    for (int64_t v = 0; v < V; v++) sum += exp(score_logit(s, logits, v) - top);
    const double lse = top + log(sum);
    for (int64_t i = b * n; i < (b + 1) * n && status == WN_OK; i++)
      if (targets[i] >= 0)
        status = score_hand_out(ctx, s, logits, targets[i], lse - score_logit(s, logits, targets[i]),
                                targets[i] == best, &out, i);
  }
  (void)wn_memory_close(ctx, memory, s->logits, bytes, opened, false); /* nothing is written back, so it cannot fail */
  return status;
}
