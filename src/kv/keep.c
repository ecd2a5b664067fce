/* The choice of the tokens that stay when a cache is compressed (keep.h). */
#include "kv/keep.h"

#include "base/error.h"
#include "kv/once.h"
#include "kv/policy.h"

static wn_status keep_visit(wn_context *ctx, const struct wn_kv_cache *c, unsigned needs, bool open,
                            struct wn_kv_read *read) {
  const struct wn_kv_shape *s = &c->shape;
  const struct wn_memory *memory = wn_kv_memory(s);
  const size_t e = wn_dtype_size(s->dtype), rows = (size_t)(s->B * s->capacity) * e;
  const int64_t numbers = s->B * s->capacity * s->Hkv * s->D;
  const struct {
    void *array, **to;
    size_t bytes;
    bool wanted;
  } all[] = {
      {c->k, &read->k, wn_stored_bytes(s->k_type, s->dtype, numbers), needs & WN_POLICY_KEYS},
      {c->v, &read->v, wn_stored_bytes(s->v_type, s->dtype, numbers), needs & WN_POLICY_VALUES},
      {c->f, &read->f, rows * (size_t)s->selections, needs & WN_POLICY_SELECTIONS},
      {c->notes, &read->notes, rows * (size_t)(s->groups * s->notes), needs & WN_POLICY_SUMS},
      {c->numbers, &read->numbers, rows * (size_t)(s->Hkv * s->width), needs & WN_POLICY_NUMBERS},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!all[i].array || !all[i].wanted) continue;
    if (open)
      WN_TRY(wn_memory_open(ctx, memory, "what a policy reads", all[i].array, all[i].bytes, all[i].to));
    else if (*all[i].to) /* nothing is written back, so it cannot fail */
      (void)wn_memory_close(ctx, memory, all[i].array, all[i].bytes, *all[i].to, false);
  }
  return WN_OK;
}

/* What a policy sees of group `row`. */
static struct wn_policy_held keep_held(const struct wn_kv_cache *c, const struct wn_kv_read *read,
                                       const wn_budgets *budgets, const struct wn_evict_rule *rule, int64_t K,
                                       int64_t row) {
  struct wn_policy_held held = wn_kv_cache_held(c, read, rule, K, row);
  held.budgets = budgets; /* the rule has them only for a policy with functions of its own */
  held.values = wn_policy_needs(budgets) & WN_POLICY_SELECTIONS ? held.F : held.notes;
  return held;
}

/* Is a token at this position protected: WN_ONCE_SINK, WN_ONCE_RECENT, or 0: it is not. The last token is `last`. */
static double keep_protects(const struct wn_evict_rule *rule, int64_t last, int64_t at) {
  return wn_evict_stays(rule, rule->sinks, at) ? WN_ONCE_SINK : at > last - rule->recent ? WN_ONCE_RECENT : 0;
}

/* The scores of a group, by slot. at [count]: room for positions. */
static void keep_score_group(const struct wn_policy_held *group, const int32_t *order, int32_t *at, double *scores) {
  const struct wn_evict_rule *rule = group->rule;
  const bool votes = rule->by == WN_EVICT_VOTES;
  struct wn_policy_held held = *group;
  if (votes || wn_policy_row(held.budgets->policy)->ordered) held.order = order;
  for (int64_t j = 0; votes && j < held.count; j++)
    at[j] = keep_protects(rule, held.row - 1, held.at[j]) < 0 ? -1 : held.at[j];
  if (votes) held.at = at;
  wn_evict_score_all(&held, scores);
}

/* Brings scores by slot in order of position, and marks protected tokens. */
static void keep_arrange(const struct wn_policy_held *held, const int32_t *order, const double *scores, double *out) {
  for (int64_t i = 0; i < held->count; i++) {
    const double is = keep_protects(held->rule, held->row - 1, held->at[order[i]]), score = scores[order[i]];
    out[i] = is < 0 ? is : score > WN_ONCE_RECENT ? score : WN_ONCE_RECENT; /* also what is no number */
  }
}

static wn_status keep_score(wn_context *ctx, const struct wn_kv_cache *c, const wn_budgets *budgets, int64_t layer,
                            int64_t K, const struct wn_kv_read *read, struct wn_kept *out) {
  const int64_t rows = c->shape.B * c->shape.groups, n = c->count;
  struct wn_evict_rule rule;
  struct wn_policy_held *held;
  struct wn_arrays arrays = {0};
  double *scores, *room;
  int32_t *at;
  wn_policy_rule(budgets, layer, K, &rule);
  const struct wn_array of[] = {
      WN_ARRAY_FOR(held, "groups", true, WN_DIMS(rows)), WN_ARRAY_FOR(scores, "scores", true, WN_DIMS(rows, n)),
      WN_ARRAY_FOR(room, "room of the policy", true, WN_DIMS(wn_policy_room_of(budgets, n, c->shape.D))),
      WN_ARRAY_FOR(at, "positions", true, WN_DIMS(n))};
  WN_TRY(WN_ARRAYS_CREATE(ctx, &arrays, "the scores of a compression", of));
  for (int64_t r = 0; r < rows; r++) {
    const int32_t *order = out->order + r * n;
    held[r] = keep_held(c, read, budgets, &rule, K, r);
    held[r].room = room;
    if (budgets->policy != WN_POLICY_OWN) keep_score_group(&held[r], order, at, scores + r * n);
  }
  wn_status status = WN_OK;
  if (budgets->policy == WN_POLICY_OWN) status = wn_policy_ask_layer(ctx, held, c->shape.B, c->shape.groups, scores);
  for (int64_t r = 0; r < rows && status == WN_OK; r++)
    keep_arrange(&held[r], out->order + r * n, scores + r * n, out->scores + r * n);
  wn_arrays_clear(&arrays);
  return status;
}

wn_status wn_keep_open(wn_context *ctx, const struct wn_kv_cache *cache, struct wn_kept *out) {
  const int64_t rows = cache->shape.B * wn_kv_cache_groups(cache), n = cache->count;
  *out = (struct wn_kept){.cache = cache, .kept = n};
  const struct wn_array of[] = {WN_ARRAY_FOR(out->scores, "scores", true, WN_DIMS(rows, n)),
                                WN_ARRAY_FOR(out->order, "order of the slots", true, WN_DIMS(rows, n)),
                                WN_ARRAY_FOR(out->slots, "slots that stay", true, WN_DIMS(rows, n))};
  WN_TRY(wn_kv_cache_positions(ctx, cache));
  WN_TRY(WN_ARRAYS_CREATE(ctx, &out->arrays, "a compression", of));
  wn_kv_cache_order(cache, out->order);
  return WN_OK;
}

wn_status wn_keep_score(wn_context *ctx, const struct wn_kv_cache *cache, const wn_budgets *budgets, int64_t layer,
                        int64_t K, struct wn_kept *out) {
  struct wn_kv_read read = {0};
  const unsigned needs = wn_policy_needs(budgets);
  WN_TRY(wn_keep_open(ctx, cache, out));
  wn_status status = keep_visit(ctx, cache, needs, true, &read);
  if (status == WN_OK) status = keep_score(ctx, cache, budgets, layer, K, &read, out);
  (void)keep_visit(ctx, cache, needs, false, &read);
  if (status != WN_OK) wn_keep_clear(out);
  return status;
}

wn_status wn_keep_pack(wn_context *ctx, const struct wn_kept *keep, bool values, int64_t b, float *out) {
  const struct wn_kv_cache *c = keep->cache;
  const struct wn_kv_shape *s = &c->shape;
  const int64_t groups = wn_kv_cache_groups(c);
  const unsigned needs = values ? WN_POLICY_VALUES : WN_POLICY_KEYS;
  struct wn_kv_read read = {0};
  WN_TRY(keep_visit(ctx, c, needs, true, &read));
  for (int64_t p = 0; p < groups; p++) {
    const int64_t row = b * groups + p, heads = s->Hkv / groups;
    const struct wn_policy_held held = {.heads = heads, .D = s->D, .dtype = s->dtype, .rows = s->dtype};
    const struct wn_policy_rows rows = wn_kv_cache_rows(c, values, values ? read.v : read.k, row);
    wn_policy_pack_rows(&held, &rows, keep->order + row * c->count, c->count, out + p * heads * c->count * s->D);
  }
  return keep_visit(ctx, c, needs, false, &read);
}

wn_status wn_keep_notes(wn_context *ctx, const struct wn_kept *keep, int64_t b, double *out) {
  const struct wn_kv_cache *c = keep->cache;
  const struct wn_kv_shape *s = &c->shape;
  struct wn_kv_read read = {0};
  WN_TRY(keep_visit(ctx, c, WN_POLICY_SUMS, true, &read));
  for (int64_t p = 0; p < s->groups; p++)
    for (int64_t i = 0; i < c->count; i++) {
      const int64_t row = b * s->groups + p, slot = keep->order[row * c->count + i];
      out[p * c->count + i] = wn_number(read.notes, row * s->notes * s->capacity + slot, s->dtype);
    }
  return keep_visit(ctx, c, WN_POLICY_SUMS, false, &read);
}

void wn_keep_pin(const struct wn_pins *pins, const int32_t *at, int64_t n, double *scores) {
  for (int64_t j = 0; pins && pins->count > 0 && j < n; j++) {
    if (wn_pins_have(pins, at[j]))
      scores[j] = WN_ONCE_SINK;
    else if (scores[j] < WN_ONCE_RECENT)
      scores[j] = WN_ONCE_RECENT;
  }
}

wn_status wn_keep_choose(wn_context *ctx, struct wn_kept *keep) {
  const int64_t rows = keep->cache->shape.B * keep->cache->shape.groups, n = keep->cache->count, kept = keep->kept;
  for (int64_t r = 0; r < rows; r++) {
    int32_t *slots = keep->slots + r * kept;
    WN_TRY(wn_once_best(ctx, keep->scores + r * n, n, kept, slots));
    for (int64_t i = 0; i < kept; i++) slots[i] = keep->order[r * n + slots[i]];
  }
  return WN_OK;
}

int64_t wn_keep_below(const struct wn_kept *keep, const wn_budgets *budgets) {
  const struct wn_kv_cache *c = keep->cache;
  int64_t kept = 0;
  for (int64_t i = 0; i < c->count; i++) {
    if (c->at[keep->order[i]] >= c->seen - budgets->window) keep->scores[i] = WN_ONCE_RECENT;
    kept += keep->scores[i] <= budgets->tau;
  }
  return kept > 0 ? kept : 1;
}

void wn_keep_clear(struct wn_kept *keep) {
  wn_arrays_clear(&keep->arrays);
  *keep = (struct wn_kept){0};
}
