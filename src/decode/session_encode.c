/* A session's encoder runs once over the inputs, in a workspace that is then released. The session keeps the keys and
 * values that each decoder layer reads: B*S*2*Hkv*D numbers per layer. */
#include <string.h>

#include "base/misuse.h"
#include "decode/session.h"

static wn_status encode_check_inputs(wn_context *ctx, const struct wn_session *s, const int32_t *inputs,
                                     const int32_t *count, int64_t S) {
  const wn_model_config *c = &s->model->config;
  if (!s->model->encoder) return wn_fail(ctx, WN_ERR_ARGUMENT, "session: the model has no encoder");
  if (!inputs || S < 1 || S > c->encoder.context)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: inputs of %lld tokens, expected 1 to %lld", (long long)S,
                   (long long)c->encoder.context);
  WN_TRY(wn_model_check_ids(ctx, s->model, "session: input", inputs, s->B * S));
  for (int64_t b = 0; count && b < s->B; b++)
    if (count[b] < 0 || count[b] > S)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "session: input_count[%lld] is %d, expected 0 to %lld", (long long)b,
                     count[b], (long long)S);
  return WN_OK;
}

/* Computes keys and values of every layer from the encoder's states. */
static wn_status encode_keep_keys(wn_context *ctx, struct wn_session *s, const void *states) {
  struct wn_run run;
  void *scratch = NULL;
  wn_run_init(&run, s->model, s->B, 1);
  run.cross = (struct wn_cross){.S = s->inputs.S, .states = states};
  run.measuring = true;
  WN_TRY(wn_cross_keys(&run, 0, s->inputs.kv));
  WN_TRY(wn_run_memory(&run)->allocate(ctx, "scratch of a session", run.need, &scratch));
  run.measuring = false;
  run.exec.scratch = scratch, run.exec.scratch_bytes = run.need;
  wn_status status = WN_OK;
  for (int64_t l = 0; l < s->model->config.layers && status == WN_OK; l++)
    status = wn_cross_keys(&run, l, s->inputs.kv + (size_t)l * s->inputs.bytes);
  wn_run_memory(&run)->release(scratch);
  return status;
}

void wn_session_inputs_clear(struct wn_session *s) {
  const struct wn_memory *memory = s->model->backend->memory;
  memory->release(s->inputs.kv);
  if (s->inputs.count_shown != s->inputs.count) memory->release(s->inputs.count_shown);
  wn_free(s->inputs.count);
  s->inputs = (struct wn_session_inputs){0};
}

wn_status wn_session_inputs_count(wn_context *ctx, struct wn_session *s, const int32_t *count) {
  const struct wn_memory *on = s->model->backend->memory;
  const size_t bytes = (size_t)s->B * sizeof *count;
  void *memory;
  WN_TRY(WN_ALLOC(ctx, "input counts", s->B, &s->inputs.count));
  memcpy(s->inputs.count, count, bytes);
  memory = s->inputs.count;
  if (!on->host) WN_TRY(on->allocate(ctx, "input counts", bytes, &memory));
  s->inputs.count_shown = memory;
  return wn_session_show(s->model, s->inputs.count_shown, s->inputs.count, bytes);
}

wn_status wn_session_encode(wn_context *ctx, wn_session *s, const int32_t *inputs, const int32_t *input_count,
                            int64_t S) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(inputs));
  WN_TRY(encode_check_inputs(ctx, s, inputs, input_count, S));
  const wn_model_config *c = &s->model->config;
  wn_session_reset(s);
  wn_session_inputs_clear(s);
  struct wn_workspace *ws;
  WN_TRY(wn_workspace_create(ctx, s->model->encoder, s->B, S,
                             &(struct wn_workspace_options){.activation_dtype = WN_F32}, &ws));
  struct wn_run run;
  void *memory;
  size_t bytes;
  wn_status status;
  if (!wn_mul_size((size_t)(s->B * S), (size_t)(2 * c->kv_heads * c->head_size) * wn_dtype_size(s->model->dtype),
                   &s->inputs.bytes) ||
      !wn_mul_size(s->inputs.bytes, (size_t)c->layers, &bytes)) {
    status = wn_fail(ctx, WN_ERR_ARGUMENT, "session: keys of %lld inputs do not fit in memory", (long long)S);
    goto done;
  }
  WN_TRY_GOTO(s->model->backend->memory->allocate(ctx, "keys of the inputs", bytes, &memory), done);
  s->inputs.kv = memory;
  s->inputs.S = S;
  if (input_count) WN_TRY_GOTO(wn_session_inputs_count(ctx, s, input_count), done);
  const struct wn_batch batch = {.B = s->B, .T = S, .tokens = inputs};
  WN_TRY_GOTO(wn_run_batch(&run, s->model->encoder, ws, &batch, s->inputs.count), done);
  WN_TRY_GOTO(wn_run_stack(&run, ws), done);
  status = encode_keep_keys(ctx, s, ws->n_out);
done:
  if (status != WN_OK) wn_session_inputs_clear(s);
  wn_workspace_destroy(ws);
  return status;
}
