/* Budgets for a model: parsed from text, and checked against the model. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/registry.h"
#include "base/file.h"
#include "base/misuse.h"
#include "base/number.h"
#include "base/options.h"
#include "kv/budgets.h"
#include "kv/cache.h"
#include "kv/once.h"
#include "kv/policy.h"
#include "winnow/model.h"

/* The largest budget, the same in every layer, whose caches of one sequence take at most `bytes`. */
static wn_status budgets_from_bytes(wn_context *ctx, const wn_model_config *c, const char *text, double bytes,
                                    wn_budgets *out) {
  int64_t low = 0, high = (int64_t)INT32_MAX + 1; /* a budget of `low` fits, one of `high` does not */
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    size_t each;
    struct wn_kv_shape shape;
    wn_kv_shape_of(&c->attention, &(struct wn_attention_shape){c->heads, c->kv_heads, c->head_size}, 1, middle, WN_F32,
                   out, &shape);
    wn_kv_shape_store(&shape, out->cache);
    if (wn_kv_shape_bytes(&shape, &each, NULL) && (double)each * (double)c->layers <= bytes)
      low = middle;
    else
      high = middle;
  }
  if (low < 1)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": not enough for one token in each of %lld layers", text,
                   (long long)c->layers);
  return wn_budgets_resize(ctx, c->layers, 0, low, out);
}

#define BUDGETS_TAU "tau="

/* Layers are separated by commas, a layer's key-value heads by colons. A single layer with colons is repeated for all.
 */
static wn_status budgets_from_list(wn_context *ctx, const wn_model_config *c, const char *text, wn_budgets *out) {
  int64_t count = 1;
  const bool heads = strchr(text, ':') != NULL;
  for (const char *p = text; *p; p++) count += *p == ',';
  if (count != c->layers && !(heads && count == 1))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": %lld of them, the model has %lld layers", text,
                   (long long)count, (long long)c->layers);
  WN_TRY(wn_budgets_resize(ctx, c->layers, heads ? c->kv_heads : 0, 0, out));
  const char *at = text;
  int64_t number = 0;
  for (int64_t l = 0; l < count; l++) {
    const size_t length = strcspn(at, ",");
    int64_t here = 1;
    for (size_t i = 0; i < length; i++) here += at[i] == ':';
    if (here > 1 && here != c->kv_heads)
      return wn_fail(ctx, WN_ERR_CONFIG,
                     "budgets \"%s\": layer %lld has %lld of them, the model has %lld key-value heads", text,
                     (long long)l, (long long)here, (long long)c->kv_heads);
    for (int64_t h = 0; h < here; h++) {
      char *end;
      errno = 0;
      number++;
      const long long tokens = isdigit((unsigned char)*at) ? strtoll(at, &end, 10) : (end = (char *)(uintptr_t)at, 0);
      if (errno || tokens < 1 || *end != (h + 1 < here ? ':' : l + 1 < count ? ',' : 0))
        return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": number %lld must be a whole number of at least 1", text,
                       (long long)number);
      wn_budgets_put(out, l, here > 1 ? h : -1, tokens);
      at = end + 1;
    }
  }
  for (int64_t l = count; l < c->layers; l++)
    for (int64_t h = 0; h < out->heads; h++) wn_budgets_put(out, l, h, out->head_tokens[h]);
  return WN_OK;
}

/* "tau=0.69": no budget, but a threshold. */
static wn_status budgets_from_threshold(wn_context *ctx, const wn_model_config *c, const char *text, wn_budgets *out) {
  char *end;
  const char *number = text + strlen(BUDGETS_TAU);
  errno = 0;
  const double tau = wn_number_read(number, &end);
  if (end == number || *end || errno || !isfinite(tau))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": \"%s\" is not a number", text, number);
  out->allot = WN_ALLOT_TAU;
  out->tau = tau;
  const struct wn_policy_row *row = wn_policy_row(out->policy);
  if (row && row->info.per_kv_head && !row->info.selective) out->per_kv_head = true;
  return wn_budgets_resize(ctx, c->layers, 0, 1, out);
}

wn_status wn_budgets_parse(wn_context *ctx, const wn_model_config *config, const char *text, wn_budgets *out) {
  WN_CHECK_CALL(WN_POINTER(config), WN_POINTER(text), WN_POINTER(out));
  if (!strncmp(text, BUDGETS_TAU, strlen(BUDGETS_TAU))) return budgets_from_threshold(ctx, config, text, out);
  const size_t digits = strspn(text, "0123456789."), list = strspn(text, "0123456789,:");
  if (list > 0 && text[list] == 0 && strpbrk(text, ",:")) return budgets_from_list(ctx, config, text, out);
  double bytes = 0;
  const bool share = digits > 0 && !strcmp(text + digits, "%");
  if (digits == 0 || strchr(text, '/') || (text[digits] && !share && !wn_bytes_parse(text, &bytes))) {
    if (wn_path_exists(text)) return wn_budgets_load_over(ctx, text, out);
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets \"%s\": neither a number (64), a list (64,32 or 64:16,32:8 for key-value heads), a part of the "
        "context (0.25), a share of the tokens read (25%%), a threshold (tau=0.69), bytes (2MiB) nor a file or folder "
        "that is there",
        text);
  }
  char *end;
  errno = 0;
  const double value = wn_number_read(text, &end);
  if (end != text + digits || errno || !isfinite(value))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": \"%.*s\" is not a number", text, (int)digits, text);
  if (share) {
    if (!(value > 0 && value <= 100))
      return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": a share must be above 0 and at most 100%%", text);
    const int64_t tokens = llround(value / 100 * (double)config->context); /* what is shown before a text is read */
    out->share = value / 100;
    return wn_budgets_resize(ctx, config->layers, 0, tokens > 1 ? tokens : 1, out);
  }
  if (*end) return budgets_from_bytes(ctx, config, text, bytes, out);
  if (memchr(text, '.', digits)) {
    if (!(value > 0 && value <= 1))
      return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": a part of the context must be above 0 and at most 1", text);
    const int64_t tokens = llround(value * (double)config->context);
    return wn_budgets_resize(ctx, config->layers, 0, tokens > 1 ? tokens : 1, out);
  }
  if (!(value >= 1 && value <= 0x1p53))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": must be at least 1 token and at most 2^53", text);
  return wn_budgets_resize(ctx, config->layers, 0, (int64_t)value, out);
}

/* --- with a model --- */

/* Checks budgets of single heads. */
static wn_status budgets_check_heads(wn_context *ctx, const wn_budgets *b, const wn_model_config *c) {
  if (b->heads == 0) return WN_OK;
  if (b->heads != c->kv_heads || !b->head_tokens)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: %lld per layer, the model has %lld key-value heads",
                   (long long)b->heads, (long long)c->kv_heads);
  for (int64_t l = 0; l < b->layers; l++) {
    int64_t largest = 0;
    for (int64_t h = 0; h < b->heads; h++) {
      const int64_t K = wn_budgets_of(b, l, h);
      if (K < 1)
        return wn_fail(ctx, WN_ERR_CONFIG,
                       "budgets: layer %lld, key-value head %lld has %lld tokens, expected at least 1", (long long)l,
                       (long long)h, (long long)K);
      if (K > largest) largest = K;
    }
    if (b->tokens[l] != largest)
      return wn_fail(ctx, WN_ERR_CONFIG,
                     "budgets: layer %lld has %lld tokens, expected %lld, its heads' largest budget", (long long)l,
                     (long long)b->tokens[l], (long long)largest);
  }
  const int64_t selections = wn_attention_selections(&c->attention, c->kv_heads);
  if (wn_policy_groups(b, c->kv_heads, selections) == c->kv_heads) return WN_OK;
  const struct wn_policy_row *row = wn_policy_row(b->policy);
  return wn_fail(ctx, WN_ERR_CONFIG, "budgets: policy \"%s\" has one budget for a layer's key-value heads%s",
                 wn_policy_name(b->policy),
                 row->info.selective     ? " in a model without \"selective.per_kv_head\""
                 : row->info.per_kv_head ? " without \"per_kv_head\""
                                         : "");
}

/* Refuses a policy that the model cannot have, and names the policies that it can. */
static wn_status budgets_refuse_policy(wn_context *ctx, wn_policy policy, const wn_attention_config *config) {
  char others[400] = "";
  for (int p = 0; p < wn_policy_count(); p++) {
    const size_t n = strlen(others);
    if (wn_policy_suits(p, config)) snprintf(others + n, sizeof others - n, "%s%s", n ? ", " : "", wn_policy_name(p));
  }
  return wn_fail(
      ctx, WN_ERR_CONFIG, "budgets: policy \"%s\" needs a model with %s; without it: %s", wn_policy_name(policy),
      wn_policy_row(policy)->needs & WN_POLICY_NUMBERS ? "write, forget or retention gates" : "selective attention",
      others);
}

static wn_status budgets_refuse_cache_positions(wn_context *ctx) {
  char which[400] = "";
  for (int p = 0; p < wn_policy_count(); p++) {
    const size_t n = strlen(which);
    if (wn_policy_row(p)->info.cache_positions)
      snprintf(which + n, sizeof which - n, "%s\"%s\"", n ? ", " : "", wn_policy_name(p));
  }
  return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"cache_positions\" is for the policy %s", which);
}

/* Checks that a policy's numbers, which C callers may set by hand, are in the range of its keys. Numbers of other
 * policies may be left at 0. */
static wn_status budgets_check_fields(wn_context *ctx, const wn_budgets *b, const struct wn_policy_row *row) {
  for (int i = 0; i < row->field_count; i++) {
    const struct wn_field *f = &row->fields[i];
    const char *at = (const char *)b + f->offset;
    if (f->type != WN_FIELD_INT64 && f->type != WN_FIELD_DOUBLE) continue;
    const double value =
        f->type == WN_FIELD_DOUBLE ? *(const double *)(const void *)at : (double)*(const int64_t *)(const void *)at;
    if (value == 0 && row != wn_policy_row(b->policy)) continue;
    if (!(value >= f->min && value <= f->max))
      return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"%s\" is %g, expected %g to %g", f->key, value, f->min, f->max);
  }
  return WN_OK;
}

/* Checks what belongs to the protocols. */
static wn_status budgets_check_protocol(wn_context *ctx, const wn_budgets *b, const wn_model_config *c) {
  const bool once = b->when == WN_WHEN_PROMPT || b->when == WN_WHEN_HOLD;
  const bool alone = b->allot >= WN_ALLOT_ADA, apart = alone || b->method || b->critical;
  const int64_t selections = wn_attention_selections(&c->attention, c->kv_heads);
  const int64_t groups = wn_policy_groups(b, c->kv_heads, selections);
  if ((unsigned)b->when >= WN_WHEN_COUNT || (unsigned)b->allot >= WN_ALLOT_COUNT)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: unknown protocol: when %d, allot %d", (int)b->when, (int)b->allot);
  if (!(b->share >= 0 && b->share <= 1) || b->window < 0 || isnan(b->tau))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: share %g, window %lld, tau %g: expected 0 to 1, at least 0, a number",
                   b->share, (long long)b->window, b->tau);
  if ((b->when == WN_WHEN_EVERY) != (b->every > 0) || b->every < 0)
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets: \"when\" is \"%s\", \"every\" %lld: tokens beyond the budget go with \"when\" \"every\" alone, "
        "at least 1",
        wn_when_name(b->when), (long long)b->every);
  const bool sifts = b->when == WN_WHEN_EVERY && b->allot == WN_ALLOT_TAU;
  if (!once && !sifts && b->allot == WN_ALLOT_TAU)
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets: \"when\" is \"%s\": with a threshold (\"allot\" \"tau\") expected \"prompt\", \"hold\" or \"every\"",
        wn_when_name(b->when));
  if (!once && !sifts && (b->share > 0 || b->allot != WN_ALLOT_UNIFORM))
    return wn_fail(
        ctx, WN_ERR_CONFIG, "budgets: \"when\" is \"%s\": %s need a context that ends: \"when\" \"prompt\" or \"hold\"",
        wn_when_name(b->when), b->share > 0 ? "shares of the tokens read, such as 25%," : "budgets that are allotted");
  const struct wn_once_method *method = wn_once_at(b->method - 1);
  const bool sums = wn_policy_needs(b) & WN_POLICY_SUMS && wn_policy_change(b) == WN_NOTES_ADD;
  if (b->method < 0 || b->method >= wn_method_count())
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: unknown method %d", b->method);
  if (b->when == WN_WHEN_ALWAYS && (method || b->critical))
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets: %s\"%s\" scores a whole cache at once: \"when\" is \"always\", expected \"prompt\", \"hold\" or "
        "\"every\"",
        method ? "method " : "", method ? method->name : "critical");
  const bool repeats = method && method->needs & WN_ONCE_REPEAT;
  if (repeats && b->when == WN_WHEN_EVERY)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "budgets: method \"%s\" repeats a context that ends: \"when\" is \"every\", expected \"prompt\" or "
                   "\"hold\"",
                   method->name);
  if (b->allot == WN_ALLOT_MODEL && !repeats)
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets: \"allot\" is \"model\", which compares all layers before the first is compressed: expected "
        "the method \"kvzip\", found \"%s\"",
        wn_method_name(b->method, NULL));
  if (method && method->needs & WN_ONCE_SUMS && !sums)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "budgets: method \"%s\" reads the sums that the policy \"h2o\" keeps, found \"%s\"", method->name,
                   wn_policy_name(b->policy));
  if (b->when != WN_WHEN_ALWAYS && b->cache_positions)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "budgets: \"cache_positions\" goes with \"when\" \"always\" alone");
  if (b->allot != WN_ALLOT_UNIFORM && b->heads > 0)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: key-value heads have budgets of their own: nothing is left to allot");
  if (apart && groups != c->kv_heads && (alone || groups != 1))
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets: with this \"allot\" or \"method\" each key-value head decides for itself%s: expected a policy that "
        "does (\"per_kv_head\"), found \"%s\" without",
        alone ? "" : ", or all together", wn_policy_name(b->policy));
  return WN_OK;
}

/* Checks everything except the tokens. */
static wn_status budgets_check_policy(wn_context *ctx, const wn_budgets *b, const wn_model_config *c) {
  const struct wn_policy_row *row = wn_policy_row(b->policy);
  const wn_selective_config *selective = &c->attention.selective;
  const char *input = wn_attention_input_not_cached(&c->attention);
  if (input)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "budgets: a key-value cache does not keep the input \"%s\"", input);
  WN_TRY(wn_policy_check_needs(ctx, row, WN_POLICY_SERVED, "a key-value cache"));
  if (b->policy == WN_POLICY_OWN) WN_TRY(wn_policy_check_own(ctx, b, selective->enabled));
  if (!wn_policy_suits(b->policy, &c->attention)) return budgets_refuse_policy(ctx, b->policy, &c->attention);
  if (b->per_kv_head && !row->info.per_kv_head)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: policy \"%s\" holds the same tokens in all heads: no \"per_kv_head\"",
                   wn_policy_name(b->policy));
  if (b->per_kv_head && selective->enabled && !selective->per_kv_head && c->kv_heads > 1)
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets: \"per_kv_head\" needs \"selective.per_kv_head\" in a model with selective attention: one F "
        "for all heads belongs to tokens that all of them hold");
  if (b->cache_positions && !row->info.cache_positions) return budgets_refuse_cache_positions(ctx);
  struct wn_score_map maps[WN_SCORE_MAPS_MAX];
  if (b->cache_positions && wn_attention_keyed(&c->attention, c->heads, c->kv_heads, maps) > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "budgets: \"cache_positions\" does not go with %s, which count by the text",
                   maps[0].kind->name);
  if (b->cache_positions && c->position != WN_POS_ROPE && !c->attention.relative.enabled &&
      !c->attention.buckets.enabled)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"cache_positions\" needs rotary or relative positions, or buckets");
  for (int p = 0; p < wn_policy_count(); p++) WN_TRY(budgets_check_fields(ctx, b, wn_policy_row(p)));
  return WN_OK;
}

wn_status wn_budgets_check(wn_context *ctx, const wn_budgets *b, const wn_model_config *c) {
  WN_CHECK_CALL(WN_POINTER_AS("budgets", b), WN_POINTER_AS("config", c));
  WN_TRY(WN_RESERVED_CHECK(ctx, wn_budgets, b));
  if (!wn_policy_row(b->policy)) return wn_fail(ctx, WN_ERR_CONFIG, "budgets: unknown policy %d", (int)b->policy);
  if (b->layers != c->layers)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: %lld of them, the model has %lld layers", (long long)b->layers,
                   (long long)c->layers);
  for (int64_t l = 0; l < b->layers; l++)
    if (b->tokens[l] < 1)
      return wn_fail(ctx, WN_ERR_CONFIG, "budgets: layer %lld has %lld tokens, expected at least 1", (long long)l,
                     (long long)b->tokens[l]);
  WN_TRY(budgets_check_heads(ctx, b, c));
  WN_TRY(budgets_check_protocol(ctx, b, c));
  return budgets_check_policy(ctx, b, c);
}

wn_status wn_budgets_move(wn_context *ctx, const wn_model_config *c, wn_policy policy, wn_budgets *b) {
  WN_CHECK_CALL(WN_POINTER_AS("config", c), WN_POINTER_AS("budgets", b));
  const struct wn_policy_row *row = wn_policy_row(policy);
  if (!row) return wn_fail(ctx, WN_ERR_CONFIG, "budgets: unknown policy %d", (int)policy);
  b->policy = policy;
  b->per_kv_head = b->per_kv_head && row->info.per_kv_head;
  b->cache_positions = b->cache_positions && row->info.cache_positions;
  return b->layers > 0 ? wn_budgets_check(ctx, b, c) : budgets_check_policy(ctx, b, c);
}
