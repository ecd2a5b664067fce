/* Checks the arguments of a mixture of experts. */
#include "ops/check.h"

static wn_status check_expert(struct wn_check c, const struct wn_expert *e, int64_t C, int64_t F) {
  WN_TRY(wn_check_weights(c, "in", e->in, e->packed_in, 2 * F, C));
  return wn_check_weights(c, "out", e->out, e->packed_out, C, F);
}

static wn_status check_notes(struct wn_check c, const struct wn_experts *a) {
  WN_TRY(wn_check_pointer(c, "prob", a->prob));
  WN_TRY(wn_check_pointer(c, "weight", a->weight));
  WN_TRY(wn_check_pointer(c, "chosen", a->chosen));
  WN_TRY(wn_check_pointer(c, "place", a->place));
  WN_TRY(wn_check_pointer(c, "in", a->in));
  if (a->S == 0) return WN_OK;
  WN_TRY(wn_check_pointer(c, "shared_in", a->shared_in));
  WN_TRY(wn_check_pointer(c, "shared_factor", a->shared_factor));
  return wn_check_pointer(c, "shared_out", a->shared_out);
}

wn_status wn_check_experts(const struct wn_exec *exec, const struct wn_experts *a, bool backward) {
  const struct wn_check c = {exec, "experts"};
  WN_TRY(wn_check_least(c, "M", a->M, 0));
  WN_TRY(wn_check_least(c, "T", a->T, 1));
  WN_TRY(wn_check_least(c, "C", a->C, 1));
  WN_TRY(wn_check_least(c, "E", a->E, 1));
  WN_TRY(wn_check_least(c, "F", a->F, 1));
  WN_TRY(wn_check_least(c, "S", a->S, 0));
  if (a->top < 1 || a->top > a->E || a->top > WN_EXPERTS_TOP)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "experts: top is %lld, expected 1 to %lld of %lld", (long long)a->top,
                   (long long)(a->E < WN_EXPERTS_TOP ? a->E : WN_EXPERTS_TOP), (long long)a->E);
  if (a->M % a->T != 0)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "experts: %lld rows are no multiple of T, %lld", (long long)a->M,
                   (long long)a->T);
  WN_TRY(wn_check_least(c, "rows that experts take", INT32_MAX - a->M, 0));
  WN_TRY(wn_check_product(c, "in", a->M * a->top, 2, a->F));
  WN_TRY(wn_check_product(c, "rows", a->M * a->top, a->C, 1));
  WN_TRY(wn_check_product(c, "shared_in", a->M, 2, a->S));
  if (a->M * a->top > INT32_MAX)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "experts: %lld rows of %lld experts each are too many", (long long)a->M,
                   (long long)a->top);
  WN_TRY(wn_check_pointer(c, "x", a->x));
  WN_TRY(wn_check_pointer(c, "router", a->router));
  WN_TRY(wn_check_pointer(c, "expert", a->expert));
  for (int64_t e = 0; e < a->E; e++) WN_TRY(check_expert(c, &a->expert[e], a->C, a->F));
  if (a->S > 0) WN_TRY(check_expert(c, &a->shared, a->C, a->S));
  WN_TRY(check_notes(c, a));
  if (!backward) return wn_check_pointer(c, "y", a->y);
  WN_TRY(wn_check_pointer(c, "dy", a->dy));
  WN_TRY(wn_check_pointer(c, "dx", a->dx));
  return wn_check_number(c, "balance_scale", a->balance_scale, true, "a number");
}
