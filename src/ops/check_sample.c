/* The checks of draws and of evictions. */
#include <math.h>

#include "ops/check.h"
#include "ops/evict.h"
#include "ops/sample.h"

static wn_status check_floats(struct wn_check c, int64_t V) {
  if (V < 1 || V > INT32_MAX)
    return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "%s: %lld logits; at least 1 is needed", c.op, (long long)V);
  if (c.exec->dtype == WN_F32) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "%s: dtype %s; logits are floats", c.op,
                 wn_dtype_name(c.exec->dtype));
}

wn_status wn_check_adjust(const struct wn_exec *exec, const struct wn_adjust *a, bool backward) {
  const struct wn_check c = {exec, "adjust"};
  (void)backward;
  WN_TRY(check_floats(c, a->V));
  WN_TRY(wn_check_pointer(c, "x", a->x));
  WN_TRY(wn_check_pointer(c, "y", a->y));
  if (a->n < 0 || a->n > a->V)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "adjust: %lld of %lld ids may be drawn", (long long)a->n,
                   (long long)a->V);
  if (a->seen) WN_TRY(wn_check_number(c, "repeat", a->repeat, a->repeat > 0, "a number above 0"));
  if (a->times) WN_TRY(wn_check_number(c, "presence", a->presence, true, "a number"));
  if (a->times) WN_TRY(wn_check_number(c, "frequency", a->frequency, true, "a number"));
  if (a->biases > 0) WN_TRY(wn_check_pointer(c, "bias_ids", a->bias_ids));
  if (a->biases > 0) WN_TRY(wn_check_pointer(c, "bias", a->bias));
  for (int64_t i = 0; wn_backend_on_host(exec->backend) && i < a->biases; i++)
    if (a->bias_ids[i] < 0 || a->bias_ids[i] >= a->V)
      return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "adjust: bias_ids[%lld] is %d, expected 0 to %lld", (long long)i,
                     a->bias_ids[i], (long long)a->V - 1);
  return WN_OK;
}

wn_status wn_check_sample(const struct wn_exec *exec, const struct wn_sample *a, bool backward) {
  const struct wn_check c = {exec, "sample"};
  (void)backward;
  WN_TRY(check_floats(c, a->V));
  WN_TRY(wn_check_pointer(c, "logits", a->logits));
  WN_TRY(wn_check_pointer(c, "drawn", a->drawn));
  WN_TRY(wn_check_number(c, "temperature", a->temperature, a->temperature >= 0, "a number >= 0"));
  WN_TRY(wn_check_number(c, "top_p", a->top_p, a->top_p > 0 && a->top_p <= 1, "above 0 and at most 1"));
  WN_TRY(wn_check_number(c, "min_p", a->min_p, a->min_p >= 0 && a->min_p <= 1, "0 to 1"));
  if (a->top_k >= 0) return WN_OK;
  return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "sample: top_k is %lld, expected at least 0", (long long)a->top_k);
}

wn_status wn_check_evict(const struct wn_exec *exec, const struct wn_evict *a, bool backward) {
  const struct wn_check c = {exec, "evict"};
  const struct wn_evict_rule *r = &a->rule;
  const bool votes = r->by == WN_EVICT_VOTES;
  (void)backward;
  WN_TRY(wn_check_least(c, "B", a->B, 0));
  WN_TRY(wn_check_least(c, "P", a->P, 1));
  WN_TRY(wn_check_least(c, "N", a->N, 1));
  WN_TRY(wn_check_least(c, "capacity", a->capacity, a->N));
  WN_TRY(wn_check_least(c, "sinks", r->sinks, 0));
  WN_TRY(wn_check_least(c, "recent", r->recent, 0));
  WN_TRY(wn_check_pointer(c, "at", a->at));
  if ((unsigned)r->by > WN_EVICT_GIVEN || a->count < 0 || a->count > WN_EVICT_ARRAYS || a->row > INT32_MAX)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "evict: rule %d, %d arrays, position %lld", (int)r->by, a->count,
                   (long long)a->row);
  if (a->count > 0) WN_TRY(wn_check_pointer(c, "slots", a->slots));
  if (votes || r->by == WN_EVICT_VALUES) WN_TRY(wn_check_pointer(c, "values", a->values));
  if (r->by == WN_EVICT_GIVEN) WN_TRY(wn_check_pointer(c, "index", a->index));
  if (!votes) return WN_OK;
  WN_TRY(wn_check_least(c, "votes", r->votes, 1));
  WN_TRY(wn_check_number(c, "neighbours", (double)r->neighbours,
                         r->neighbours >= 0 && r->neighbours <= WN_EVICT_NEIGHBOURS, "0 to 15"));
  return wn_check_pointer(c, "room", a->room);
}
