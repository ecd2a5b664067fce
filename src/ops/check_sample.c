/* Checks the arguments of drawing and of eviction. */

#include "ops/check.h"
#include "ops/attention.h"
#include "ops/evictions.h"
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

static wn_status check_sample_row(struct wn_check c, const struct wn_sample_row *a) {
  WN_TRY(check_floats(c, a->V));
  WN_TRY(wn_check_pointer(c, "logits", a->logits));
  WN_TRY(wn_check_number(c, "temperature", a->temperature, a->temperature >= 0, "a number >= 0"));
  WN_TRY(wn_check_number(c, "top_p", a->top_p, a->top_p > 0 && a->top_p <= 1, "above 0 and at most 1"));
  WN_TRY(wn_check_number(c, "min_p", a->min_p, a->min_p >= 0 && a->min_p <= 1, "0 to 1"));
  if (a->top_k >= 0) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "sample: top_k is %lld, expected at least 0", (long long)a->top_k);
}

wn_status wn_check_sample(const struct wn_exec *exec, const struct wn_sample *a, bool backward) {
  const struct wn_check c = {exec, "sample"};
  (void)backward;
  WN_TRY(wn_check_pointer(c, "drawn", a->drawn));
  if (a->rows < 1 || a->rows > WN_SAMPLE_ROWS)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "sample: %lld rows, expected 1 to %d", (long long)a->rows,
                   WN_SAMPLE_ROWS);
  for (int64_t r = 0; r < a->rows; r++) WN_TRY(check_sample_row(c, &a->row[r]));
  return WN_OK;
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
  if ((unsigned)r->by > WN_EVICT_KIND || a->count < 0 || a->count > WN_EVICT_ARRAYS || a->row > INT32_MAX)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "evict: rule %d, %d arrays, position %lld", (int)r->by, a->count,
                   (long long)a->row);
  if (a->count > 0) WN_TRY(wn_check_pointer(c, "slots", a->slots));
  if (votes || r->by == WN_EVICT_VALUES) WN_TRY(wn_check_pointer(c, "values", a->values));
  if (r->by == WN_EVICT_GIVEN) WN_TRY(wn_check_pointer(c, "index", a->index));
  if (r->by == WN_EVICT_KIND) {
    WN_TRY(wn_check_pointer(c, "kind", r->kind));
    WN_TRY(wn_check_least(c, "heads", a->heads, 1));
    WN_TRY(wn_check_least(c, "D", a->D, 1));
    return wn_check_pointer(c, "room", a->room);
  }
  if (!votes) return WN_OK;
  WN_TRY(wn_check_least(c, "votes", r->votes, 1));
  WN_TRY(wn_check_number(c, "neighbours", (double)r->neighbours,
                         r->neighbours >= 0 && r->neighbours <= WN_EVICT_NEIGHBOURS, "0 to 15"));
  return wn_check_pointer(c, "room", a->room);
}

wn_status wn_check_evictions(const struct wn_exec *exec, const struct wn_evictions *op, bool backward) {
  const struct wn_check c = {exec, "evictions"};
  const struct wn_attention *a = op->a;
  const bool votes = op->rule.by == WN_EVICT_VOTES;
  (void)backward;
  WN_TRY(wn_check_pointer(c, "a", a));
  WN_TRY(wn_check_pointer(c, "evicted_at", op->evicted_at));
  const int64_t P = wn_slot_groups(a);
  if (op->group0 < 0 || op->groups < 1 || op->groups > WN_EVICTIONS_GROUPS || op->group0 + op->groups > P ||
      a->Hkv % P != 0)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "evictions: groups %lld to %lld of %lld, %lld key-value heads",
                   (long long)op->group0, (long long)(op->group0 + op->groups - 1), (long long)P, (long long)a->Hkv);
  for (int64_t g = 0; g < op->groups; g++) {
    WN_TRY(wn_check_least(c, "K", op->group[g].K, 1));
    WN_TRY(wn_check_least(c, "sinks", op->group[g].sinks, 0));
    WN_TRY(wn_check_least(c, "recent", op->group[g].recent, 0));
    if (op->left && op->group[g].K != op->group[0].K)
      return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "evictions: keys left of groups of %lld and %lld tokens",
                     (long long)op->group[0].K, (long long)op->group[g].K);
  }
  if (a->Tq > a->Tk || (!op->piece && a->Tq != a->Tk))
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "evictions: %lld rows of %lld keys", (long long)a->Tq, (long long)a->Tk);
  if (op->sums && op->change != WN_NOTES_OWN) WN_TRY(wn_check_least(c, "notes", op->notes, 1));
  if (op->piece && op->notes > 0) WN_TRY(wn_check_pointer(c, "note", op->note));
  if (op->selections && !a->sel.on)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "evictions: by F, which the call does not have");
  if (votes && (op->rule.votes != op->notes || op->rule.neighbours < 0 || op->rule.neighbours > WN_EVICT_NEIGHBOURS))
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "evictions: %lld votes of %lld notes, %lld neighbours",
                   (long long)op->rule.votes, (long long)op->notes, (long long)op->rule.neighbours);
  if ((op->own || op->rule.score || op->rule.ask) && !wn_backend_on_host(exec->backend))
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "evictions: backend %s does not serve functions of a policy's own",
                   exec->backend->name);
  const char *term =
      wn_call_lacks(a, op->sums && !wn_evictions_attends(op) ? WN_EVICTIONS_SUMS_SERVED : WN_EVICTIONS_SERVED);
  if (!term) return WN_OK;
  return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "evictions: the term \"%s\" is not served", term);
}
