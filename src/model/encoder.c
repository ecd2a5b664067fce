/* The encoder of an encoder-decoder (Vaswani et al. 2017, section 3; Raffel et al. 2020, section 2.1). It is a second
 * struct wn_model with a configuration of its own over the same table of parameters: attention is bidirectional, with
 * position biases and, with encoder.selective, selection as its only mechanisms. The same layer code runs it, in a
 * workspace of its own. */
#include "model/workspace.h"

/* Padding may be any ids in range; nothing reads it. */
static wn_status encoder_check_inputs(const struct wn_model *model, const struct wn_batch *batch) {
  const wn_model_config *c = &model->config;
  if (!batch->inputs || batch->S < 1 || batch->S > c->encoder.context)
    return wn_fail(model->ctx, WN_ERR_ARGUMENT,
                   "step: the model has an encoder; expected inputs of 1 to %lld tokens, found %lld",
                   (long long)c->encoder.context, batch->inputs ? (long long)batch->S : 0);
  for (int64_t b = 0; batch->input_count && b < batch->B; b++)
    if (batch->input_count[b] < 0 || batch->input_count[b] > batch->S)
      return wn_fail(model->ctx, WN_ERR_ARGUMENT, "step: input_count[%lld] is %d, expected 0 to %lld", (long long)b,
                     batch->input_count[b], (long long)batch->S);
  return WN_OK;
}

/* The encoder's run, separate from the decoder's. */
static wn_status encoder_run(const struct wn_run *run, struct wn_workspace *ws, const struct wn_batch *batch,
                             struct wn_run *out) {
  const struct wn_batch own = {.B = batch->B, .T = batch->S, .tokens = batch->inputs};
  WN_TRY(wn_run_batch(out, run->model->encoder, ws->encoder, &own, batch->input_count));
  out->dropout = run->dropout, out->dropout_hidden = run->dropout_hidden;
  out->training = run->training;
  out->seed = run->seed;
  out->stream = run->stream + wn_decoder_streams(&run->model->config);
  out->grads = run->grads;
  out->grad_at = run->grad_at;
  return WN_OK;
}

wn_status wn_encoder_forward(struct wn_run *run, struct wn_workspace *ws, const struct wn_batch *batch) {
  struct wn_run encoder;
  WN_TRY(encoder_check_inputs(run->model, batch));
  WN_TRY(encoder_run(run, ws, batch, &encoder));
  WN_TRY(wn_run_stack(&encoder, ws->encoder));
  run->cross = (struct wn_cross){.S = batch->S, .count = encoder.key_count, .states = ws->encoder->n_out};
  if (!run->grads) return WN_OK;
  run->cross.d_states = ws->encoder->temp.d_n;
  return wn_run_zero(run, run->cross.d_states, batch->B * batch->S * run->model->config.width);
}

wn_status wn_encoder_backward(struct wn_run *run, struct wn_workspace *ws, const struct wn_batch *batch) {
  struct wn_run encoder;
  WN_TRY(encoder_run(run, ws, batch, &encoder));
  return wn_run_backward(&encoder, ws->encoder);
}

wn_status wn_encoder_look(const struct wn_model *encoder, wn_workspace *ws, const struct wn_batch *batch,
                          const int32_t *count, const struct wn_layer_observer *observer) {
  struct wn_run run;
  WN_TRY(wn_model_check_ids(encoder->ctx, encoder, "step: token", batch->tokens, batch->B * batch->T));
  WN_TRY(wn_run_batch(&run, encoder, ws, batch, count));
  run.observer = observer;
  return wn_run_stack(&run, ws);
}

void wn_encoder_measure(struct wn_run *run, const struct wn_workspace *ws) {
  if (!ws->encoder) return;
  run->cross = (struct wn_cross){.S = ws->encoder->T, .states = ws->encoder->n_out, .d_states = ws->encoder->n_out};
}
