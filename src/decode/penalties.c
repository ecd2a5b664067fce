/* Penalties and biases: the operation `adjust` changes the logits before a token is drawn. Cost: one pass over V logits
 * per token, if anything is to be changed. The operation reads arrays of counts. If logits stay in the backend's
 * memory, these arrays are there too, and each drawn token updates one number of them. */
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
#include "decode/generation.h"

/* Beyond these bounds quotients leave the range of logits. */
#define PENALTY_LEAST 0.01
#define PENALTY_MOST 100.0

static bool penalties_repeat(const wn_generate_options *o) {
  return o->repetition_penalty != 0 && o->repetition_penalty != 1;
}

static bool penalties_count(const wn_generate_options *o) {
  return o->presence_penalty != 0 || o->frequency_penalty != 0;
}

wn_status wn_penalties_check(wn_context *ctx, const wn_generate_options *o, int64_t V) {
  if (o->repetition_penalty != 0 && !(o->repetition_penalty >= PENALTY_LEAST && o->repetition_penalty <= PENALTY_MOST))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: repetition_penalty is %g, expected 0 or a number from %g to %g",
                   o->repetition_penalty, PENALTY_LEAST, PENALTY_MOST);
  if (!isfinite(o->presence_penalty) || !isfinite(o->frequency_penalty))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: presence_penalty is %g and frequency_penalty %g, expected numbers",
                   o->presence_penalty, o->frequency_penalty);
  if (o->repeated_count < 0 || (o->repeated_count > 0 && !o->repeated))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: %lld repeated tokens are not there", (long long)o->repeated_count);
  if (o->bias_count < 0 || (o->bias_count > 0 && !o->biases))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: %d biases are not there", o->bias_count);
  for (int i = 0; i < o->bias_count; i++) {
    if (o->biases[i].id < 0 || o->biases[i].id >= V)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: bias %d is of token %d, expected 0 to %lld", i, o->biases[i].id,
                     (long long)V - 1);
    if (isnan(o->biases[i].bias) || o->biases[i].bias == INFINITY)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: the bias of token %d is %g, expected a number or -infinity",
                     o->biases[i].id, (double)o->biases[i].bias);
  }
  return WN_OK;
}

static wn_status penalties_alloc(struct wn_generation *g) {
  const int64_t V = g->session->model->config.vocab_size;
  const bool constraint = g->o->constraint != NULL, count = penalties_count(g->o), repeat = penalties_repeat(g->o);
  const wn_declared *d = &g->session->model->declared;
  const int64_t biases = (int64_t)g->o->bias_count + d->suppressed_count + d->suppressed_first_count;
  const struct wn_array shown[] = {
      WN_ARRAY_FOR(g->logits, "adjusted logits", constraint || count || repeat || biases > 0, WN_DIMS(V)),
      WN_ARRAY_FOR(g->draws, "drawn tokens", true, WN_DIMS(WN_SAMPLE_ROWS)),
      WN_ARRAY_SIZED(g->times_shown, sizeof *g->times, "counts of tokens", count, WN_DIMS(V)),
      WN_ARRAY_SIZED(g->seen_shown, sizeof *g->seen, "tokens of the text", repeat, WN_DIMS(V)),
      WN_ARRAY_SIZED(g->bias_ids_shown, sizeof *g->bias_ids, "biased tokens", true, WN_DIMS(biases)),
      WN_ARRAY_SIZED(g->bias_shown, sizeof *g->bias, "biases", true, WN_DIMS(biases)),
      WN_ARRAY_FOR(g->allowed_shown, "tokens allowed", constraint, WN_DIMS(V)),
  };
  if (g->apart) WN_TRY(WN_ARRAYS_CREATE_IN(g->ctx, g->session->model->backend->memory, &g->shown, "a draw", shown));
  WN_TRY(WN_ALLOC(g->ctx, "biased tokens", biases, &g->bias_ids));
  WN_TRY(WN_ALLOC(g->ctx, "biases", biases, &g->bias));
  WN_TRY(WN_ALLOC(g->ctx, "counts of tokens", count ? V : 0, &g->times));
  WN_TRY(WN_ALLOC(g->ctx, "tokens of the text", repeat ? V : 0, &g->seen));
  return WN_OK;
}

/* If apart: copies n bytes to `shown`, where the operation reads them. */
static wn_status penalties_show(struct wn_generation *g, void *shown, const void *at, size_t n) {
  return g->apart && shown ? wn_session_show(g->session->model, shown, at, n) : WN_OK;
}

static void penalties_put(struct wn_generation *g, int64_t i, int32_t id, float bias) {
  g->bias_ids[i] = id;
  g->bias[i] = bias;
}

/* Adds tokens that the model suppresses, except those for which there is a bias. Returns how many. */
static int64_t penalties_suppress(struct wn_generation *g, int64_t at, const int32_t *ids, int count) {
  const int64_t begin = at;
  for (int i = 0; i < count; i++) {
    int k = 0;
    while (k < g->o->bias_count && g->o->biases[k].id != ids[i]) k++;
    if (k == g->o->bias_count) penalties_put(g, at++, ids[i], -INFINITY);
  }
  return at - begin;
}

wn_status wn_penalties_open(struct wn_generation *g) {
  const int64_t V = g->session->model->config.vocab_size;
  const wn_declared *d = &g->session->model->declared;
  WN_TRY(penalties_alloc(g));
  for (int i = 0; i < g->o->bias_count; i++) penalties_put(g, i, g->o->biases[i].id, g->o->biases[i].bias);
  g->bias_count = g->o->bias_count;
  g->bias_count += penalties_suppress(g, g->bias_count, d->suppressed, d->suppressed_count);
  g->first_count = penalties_suppress(g, g->bias_count, d->suppressed_first, d->suppressed_first_count);
  const size_t biases = (size_t)(g->bias_count + g->first_count);
  WN_TRY(penalties_show(g, g->bias_ids_shown, g->bias_ids, biases * sizeof *g->bias_ids));
  WN_TRY(penalties_show(g, g->bias_shown, g->bias, biases * sizeof *g->bias));
  if (!g->seen) return WN_OK;
  const int32_t *ids = g->o->repeated ? g->o->repeated : g->prompt;
  const int64_t n = g->o->repeated ? g->o->repeated_count : g->prompt_count;
  for (int64_t i = 0; i < n; i++)
    if (ids[i] >= 0 && ids[i] < V) g->seen[ids[i]] = 1; /* ids out of range are refused when they are fed */
  return penalties_show(g, g->seen_shown, g->seen, (size_t)V * sizeof *g->seen);
}

wn_status wn_penalties_allow(struct wn_generation *g, const uint8_t *allowed, int32_t count, struct wn_adjust *adjust) {
  adjust->allowed = g->apart ? g->allowed_shown : allowed;
  adjust->allowed_count = count;
  return penalties_show(g, g->allowed_shown, allowed, (size_t)count * sizeof *allowed);
}

bool wn_penalties_adjust(const struct wn_generation *g, struct wn_adjust *out) {
  out->seen = g->apart ? g->seen_shown : g->seen;
  out->repeat = g->o->repetition_penalty;
  out->times = g->apart ? g->times_shown : g->times;
  out->presence = g->o->presence_penalty;
  out->frequency = g->o->frequency_penalty;
  out->biases = g->bias_count + (g->r->tokens == 0 ? g->first_count : 0);
  out->bias_ids = g->apart ? g->bias_ids_shown : g->bias_ids;
  out->bias = g->apart ? g->bias_shown : g->bias;
  return out->allowed || out->seen || out->times || out->biases > 0;
}

wn_status wn_penalties_take(struct wn_generation *g, int32_t id) {
  if (g->times && g->times[id] < INT32_MAX) {
    g->times[id]++;
    WN_TRY(penalties_show(g, g->apart ? g->times_shown + id : NULL, g->times + id, sizeof *g->times));
  }
  if (!g->seen || g->seen[id]) return WN_OK;
  g->seen[id] = 1;
  return penalties_show(g, g->apart ? g->seen_shown + id : NULL, g->seen + id, sizeof *g->seen);
}

void wn_penalties_close(struct wn_generation *g) {
  if (!g->apart) wn_free(g->logits);
  wn_arrays_clear(&g->shown);
  wn_free(g->bias_ids);
  wn_free(g->bias);
  wn_free(g->times);
  wn_free(g->seen);
}
