/* Pinned positions: tokens that no eviction and no compression takes (wn_session_pin). The budgets of a session point
 * to them, so that every rule has them (kv/policy.c) and compressions mark them (kv/keep.c). A budget must have room
 * for one token beside those that stay: a token that arrives always has a place to go to. */
#include "base/misuse.h"
#include "decode/session.h"

wn_status wn_session_check_pins(wn_context *ctx, const struct wn_session *s, bool ends) {
  const wn_budgets *b = &s->budgets;
  const bool later = !ends && (b->share > 0 || b->allot == WN_ALLOT_PYRAMID); /* known where the context ends */
  if (s->pins.count == 0 || b->layers == 0) return WN_OK;
  if (b->cache_positions)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "session: cache_positions moves tokens together: none can be pinned");
  for (int64_t i = 0; i < s->first[s->model->config.layers] && !later && b->allot != WN_ALLOT_TAU; i++) {
    const struct wn_session_part *part = &s->parts[i];
    if (part->kind != WN_LAYER_BUDGET) continue;
    const int64_t K = ends ? wn_session_compressed_budget(s, part) : wn_budgets_of(b, part->layer, part->kv0);
    const int64_t stay = wn_policy_stay(b, K);
    if (K <= stay)
      return wn_fail(
          ctx, WN_ERR_ARGUMENT,
          "session: %lld tokens are pinned or first ones that the policy keeps, and the budget of layer %lld "
          "is %lld tokens: expected more than %lld",
          (long long)stay, (long long)part->layer, (long long)K, (long long)stay);
  }
  return WN_OK;
}

/* Adds a range, joined with those that it overlaps or touches. False: there is no room for one more. */
static bool pins_add(struct wn_pins *pins, int32_t first, int32_t end) {
  struct wn_pins out = {0};
  bool added = false;
  for (int i = 0; i <= pins->count; i++) {
    const bool more = i < pins->count;
    const struct wn_pin pin = more ? pins->of[i] : (struct wn_pin){0};
    if (more && pin.first <= end && pin.end >= first) { /* they become one */
      if (pin.first < first) first = pin.first;
      if (pin.end > end) end = pin.end;
      continue;
    }
    const bool here = !added && (!more || pin.first > end);
    if (out.count + here + more > WN_PINS) return false;
    if (here) out.of[out.count++] = (struct wn_pin){first, end};
    if (more) out.of[out.count++] = pin;
    added = added || here;
  }
  *pins = out;
  return true;
}

wn_status wn_session_pin(wn_context *ctx, wn_session *s, int64_t first, int64_t count) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION));
  const struct wn_pins before = s->pins;
  if (first < 0 || count < 1 || first > s->capacity - count)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: positions from %lld, %lld of them: it has 0 to %lld",
                   (long long)first, (long long)count, (long long)s->capacity - 1);
  if (!pins_add(&s->pins, (int32_t)first, (int32_t)(first + count)))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: pinned tokens in more than %d places", WN_PINS);
  const wn_status status = wn_session_check_pins(ctx, s, false);
  if (status != WN_OK) s->pins = before;
  return status;
}
