/* What changes logits before a token is drawn: a pass over V numbers a token, where a penalty is wanted. */
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
#include "decode/generation.h"

static bool penalties_repeat(const wn_generate_options *o) {
  return o->repetition_penalty != 0 && o->repetition_penalty != 1;
}

static bool penalties_count(const wn_generate_options *o) {
  return o->presence_penalty != 0 || o->frequency_penalty != 0;
}

wn_status wn_penalties_check(wn_context *ctx, const wn_generate_options *o, int64_t V) {
  if (!(o->repetition_penalty >= 0) || !isfinite(o->repetition_penalty))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: repetition_penalty is %g, expected a number above 0",
                   o->repetition_penalty);
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

wn_status wn_penalties_open(struct wn_generation *g) {
  const int64_t V = g->session->model->config.vocab_size;
  void *memory;
  if (penalties_count(g->o)) {
    WN_TRY(wn_alloc(g->ctx, "counts of tokens", (size_t)V * sizeof *g->times, &memory));
    g->times = memory;
  }
  if (!penalties_repeat(g->o)) return WN_OK;
  WN_TRY(wn_alloc(g->ctx, "tokens of the text", (size_t)V * sizeof *g->seen, &memory));
  g->seen = memory;
  const int32_t *ids = g->o->repeated ? g->o->repeated : g->prompt;
  const int64_t n = g->o->repeated ? g->o->repeated_count : g->prompt_count;
  for (int64_t i = 0; i < n; i++)
    if (ids[i] >= 0 && ids[i] < V) g->seen[ids[i]] = 1; /* others are refused when they are fed */
  return WN_OK;
}

void wn_penalties_apply(struct wn_generation *g) {
  const wn_generate_options *o = g->o;
  const float repeat = (float)o->repetition_penalty;
  float *logits = g->logits;
  for (int32_t v = 0; g->seen && v < g->entries; v++)
    if (g->seen[v]) logits[v] = logits[v] > 0 ? logits[v] / repeat : logits[v] * repeat;
  for (int32_t v = 0; g->times && v < g->entries; v++)
    if (g->times[v] > 0) logits[v] -= (float)(o->presence_penalty + o->frequency_penalty * g->times[v]);
  for (int i = 0; i < o->bias_count; i++) logits[o->biases[i].id] += o->biases[i].bias;
}

void wn_penalties_take(struct wn_generation *g, int32_t id) {
  if (g->times && g->times[id] < INT32_MAX) g->times[id]++;
  if (g->seen) g->seen[id] = 1;
}

void wn_penalties_close(struct wn_generation *g) {
  wn_free(g->times);
  wn_free(g->seen);
}
