/* wn_sample: the operation `sample` (ops/sample.h) on logits on the host. */
#include <math.h>

#include "backends/backends.h"
#include "base/error.h"
#include "base/misuse.h"
#include "base/options.h"
#include "decode/generation.h"
#include "ops/sample.h"
#include "winnow/model.h"

void wn_sampling_init(wn_sampling *sampling) {
  WN_CHECK_OR(, WN_POINTER(sampling));
  *sampling = (wn_sampling){.temperature = 0.8, .top_p = 0.95};
}

struct wn_sample_row wn_sample_by(const wn_sampling *s, const float *logits, int64_t V, uint64_t step) {
  return (struct wn_sample_row){.V = V,
                                .top_k = s->top_k,
                                .logits = logits,
                                .temperature = s->temperature,
                                .top_p = s->top_p,
                                .min_p = s->min_p,
                                .seed = s->seed,
                                .step = step};
}

wn_status wn_sample_check(wn_context *ctx, const struct wn_drawn *drawn, int64_t V, float logit) {
  if (drawn->bad == 1)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sample: logit %lld is %g", (long long)drawn->token, wn_told(logit));
  if (drawn->bad)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "sample: all %lld logits are -inf: there is no token to draw", (long long)V);
  return WN_OK;
}

wn_status wn_sample(wn_context *ctx, const float *logits, int64_t V, const wn_sampling *s, uint64_t step,
                    int32_t *token) {
  WN_CHECK_CALL(WN_POINTER(logits), WN_POINTER_AS("sampling", s), WN_POINTER(token));
  WN_TRY(WN_RESERVED_CHECK(ctx, wn_sampling, s));
  const struct wn_exec exec = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F32};
  struct wn_drawn drawn;
  const struct wn_sample by = {.rows = 1, .row = {wn_sample_by(s, logits, V, step)}, .drawn = &drawn};
  WN_TRY(wn_op_sample_forward(&exec, &by));
  WN_TRY(wn_sample_check(ctx, &drawn, V, logits[drawn.token]));
  *token = drawn.token;
  return WN_OK;
}
