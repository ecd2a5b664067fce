/* Options of a budget search: defaults and checks. */
#include "prune/options.h"

#include <math.h>

#include "base/error.h"
#include "base/misuse.h"
#include "base/options.h"
#include "kv/budgets.h"
#include "model/model.h"

void wn_prune_options_init(wn_prune_options *options, size_t size) {
  WN_CHECK_OR(, WN_POINTER(options));
  wn_prune_options defaults = {.step = 8};
  wn_budgets_init(&defaults.budgets, &(wn_attention_config){.selective.enabled = true});
  wn_options_default(&defaults, sizeof defaults, options, size);
}

bool wn_prune_once(const wn_prune_options *o) {
  return o->budgets.when == WN_WHEN_PROMPT || o->budgets.when == WN_WHEN_HOLD;
}

bool wn_prune_tunes(const wn_prune_options *o) {
  return o->finetune.steps || o->finetune.every || o->finetune.after;
}

/* A search for a compression at a context's end. */
static wn_status options_check_once(wn_context *ctx, const wn_prune_options *o, int64_t T, int64_t whole) {
  const wn_budgets *b = &o->budgets;
  if (!wn_prune_once(o))
    return o->read == 0 ? wn_budgets_check_rows(ctx, b)
                        : wn_fail(ctx, WN_ERR_ARGUMENT,
                                  "search: a context of %lld tokens needs \"when\" prompt or hold", (long long)o->read);
  if (whole < 2 || whole >= T)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "search: a context of %lld tokens in rows of %lld, expected 2 to %lld",
                   (long long)whole, (long long)T, (long long)T - 1);
  if (b->share > 0 || b->allot == WN_ALLOT_TAU || b->allot == WN_ALLOT_MODEL || b->allot == WN_ALLOT_PYRAMID)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "search: this \"allot\" divides budgets by itself; expected \"uniform\" or \"ada\"");
  if (wn_prune_tunes(o))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "search: training has no place where a context ends: no fine-tuning");
  return WN_OK;
}

wn_status wn_prune_options_check(wn_context *ctx, const wn_model *model, const wn_prune_options *o,
                                 const struct wn_prune_rows *rows) {
  const wn_model_config *c = &model->config;
  const int64_t T = rows->T, whole = rows->whole;
  if (T < 2 || T > c->context)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "search: context %lld is outside 2..%lld, the model's context", (long long)T,
                   (long long)c->context);
  WN_TRY(options_check_once(ctx, o, T, whole));
  if (o->step < 1 || o->step >= whole)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "search: a step of %lld tokens, expected 1 to %lld", (long long)o->step,
                   (long long)whole - 1);
  if (rows->batch < 1 || o->max_steps < 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "search: batch %lld, at most %lld steps; neither may be negative",
                   (long long)rows->batch, (long long)o->max_steps);
  if (!(o->race >= 0 && o->race < 1) || (o->race > 0 && o->lazy))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "search: a race of %g must be from 0 to below 1, and 0 with lazy",
                   wn_told(o->race));
  if (o->target < 0 || o->tolerance < 0 || !isfinite(o->target) || !isfinite(o->tolerance))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "search: target %g and tolerance %g must be finite and not negative",
                   o->target, o->tolerance);
  if (o->target_model && o->target_model->config.vocab_size != c->vocab_size)
    return wn_fail(ctx, WN_ERR_SHAPE, "search: the target's model has a vocabulary of %lld, the model of %lld",
                   (long long)o->target_model->config.vocab_size, (long long)c->vocab_size);
  if (o->target_model && o->target_model->config.context < T)
    return wn_fail(ctx, WN_ERR_SHAPE, "search: the target's model has a context of %lld, the search one of %lld",
                   (long long)o->target_model->config.context, (long long)T);
  if (wn_prune_tunes(o) && o->target_model == model)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "search: the target's model cannot be the one that is tuned");
  if (c->encoder.layers > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "search: the model has an encoder; budgets are searched for decoders");
  if (c->recurrence > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "search: the model has segment recurrence, which does not support budgets");
  if (o->budgets.cache_positions)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "search: positions within the cache have no batched evaluation");
  wn_budgets check = o->budgets;
  check.layers = c->layers;
  check.tokens = rows->tokens;
  return wn_budgets_check(ctx, &check, c);
}
