/* Decoding with a key-value cache: a prompt is fed in pieces, then one token at a time.
 *
 * Each piece runs the same layers as training (layer.h). Between the projections before and after the attention, the
 * piece's keys and values go into the layer's cache, and attention reads them there. A token costs 2 x parameters flops
 * in the projections, one read of all parameters, and 4 T H D flops per layer in the attention. */
#include <string.h>

#include "base/misuse.h"
#include "decode/session_group.h"
#include "decode/session_once.h"

#define FIRST_PLACE 128 /* where a prompt's first piece ends */

int64_t wn_session_place_after(int64_t position) {
  return position < FIRST_PLACE ? FIRST_PLACE : (position / WN_SESSION_PIECE + 1) * WN_SESSION_PIECE;
}

int64_t wn_session_place_before(int64_t position) {
  return position < FIRST_PLACE        ? 0
         : position < WN_SESSION_PIECE ? FIRST_PLACE
                                       : position / WN_SESSION_PIECE * WN_SESSION_PIECE;
}

/* Feeds run->T tokens of each sequence, s->tokens and s->positions. full: when measuring, assume full caches. */
static wn_status session_run_layers(struct wn_run *run, struct wn_session *s, bool full, struct wn_session_rows *out) {
  const wn_model_config *c = &s->model->config;
  struct wn_layer_acts a;
  struct wn_layer_blocks blocks = s->room->blocks;
  struct wn_layer_temp *temp = &s->room->temp;
  if (!wn_layer_acts_plan(c, wn_layer_types_of(run->exec.dtype), run->B, run->T, false, &blocks, &a))
    return wn_fail(s->ctx, WN_ERR_ARGUMENT, "session: activations do not fit in memory");
  /* What the embedding's norm stores is not needed later, so layer 0's arrays serve for it. */
  run->tokens = s->tokens_shown;
  WN_TRY(wn_run_embed(run, a.n2, a.rstd2, a.mean2, a.x));
  for (int64_t l = 0; l < c->layers; l++) {
    run->unturned = wn_session_by_cache_position(s, l);
    WN_TRY(wn_layer_before(run, l, &a, l ? wn_layer_stream(run, &a) : NULL, l ? temp->branch : NULL));
    WN_TRY(wn_session_attend(run, s, l, &a, full));
    WN_TRY(wn_layer_after(run, l, &a, temp, true));
  }
  *out = (struct wn_session_rows){wn_layer_stream(run, &a), temp->branch};
  return WN_OK;
}

/* Keeps the last row of each sequence, from which logits are computed on request. */
static wn_status session_keep_last(const struct wn_run *run, struct wn_session *s, const struct wn_session_rows *rows) {
  const int64_t C = s->model->config.width, T = run->T;
  struct wn_gather last = {.B = s->B, .H = 1, .T = 1, .D = C, .s_x = {T * C, C, C}, .s_y = {C, C, C}};
  last.x = wn_element(rows->mid, (T - 1) * C, run->exec.dtype), last.y = s->mid;
  WN_TRY(wn_op_gather_forward(&run->exec, &last));
  last.x = wn_element(rows->branch, (T - 1) * C, run->exec.dtype), last.y = s->branch;
  return wn_op_gather_forward(&run->exec, &last);
}

static wn_status session_output(struct wn_run *run, struct wn_session *s) {
  void *mean = s->model->config.norm == WN_NORM_LAYER ? s->mean : NULL;
  WN_TRY(wn_run_norm(run, s->B, wn_run_final_norm(run, s->rstd, mean), s->mid, s->branch, s->x_out, s->n_out));
  return wn_run_output(run, s->n_out, s->B, s->logits);
}

void wn_session_begin(struct wn_run *run, struct wn_session *s, int64_t T) {
  wn_run_init(run, s->model, s->B, T);
  run->exec.scratch = T == 1 ? s->scratch : s->room->scratch;
  run->exec.scratch_bytes = T == 1 ? s->scratch_bytes : s->room->scratch_bytes;
  run->positions = s->positions_shown;
  run->cross = (struct wn_cross){
      .S = s->inputs.S, .count = s->inputs.count_shown, .kv = s->inputs.kv, .kv_bytes = s->inputs.bytes};
  if (wn_session_turns_itself(s)) run->rotary = &s->rotary;
}

void wn_session_reset_caches(struct wn_session *s) {
  s->compressed = false;
  s->peak = wn_session_kv_bytes(s);
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++) wn_kv_cache_reset(&s->caches[i]);
}

/* The largest scratch of single tokens and of pieces, with empty and with full caches: a backend may need other scratch
 * for few rows than for many. */
wn_status wn_session_measure(struct wn_session *s, size_t *step, size_t *piece) {
  *step = *piece = 0;
  wn_session_pretend(s, true);
  for (int64_t T = 1;; T = 2 * T < s->piece ? 2 * T : s->piece) {
    for (int pass = 0; pass < (T == 1 ? 4 : 2); pass++) { /* single tokens also on one thread (session_group.c) */
      const bool full = pass & 1;
      struct wn_run run;
      wn_session_begin(&run, s, T);
      if (pass & 2) run.exec.threads = 1;
      run.measuring = true;
      if (s->model->encoder) run.cross.S = s->model->config.encoder.context, run.cross.kv = (char *)s->model->params;
      struct wn_session_rows rows;
      WN_TRY(session_run_layers(&run, s, full, &rows));
      WN_TRY(session_output(&run, s));
      size_t *need = T == 1 ? step : piece;
      if (run.need > *need) *need = run.need;
    }
    if (T == s->piece) break;
  }
  wn_session_pretend(s, false);
  wn_session_reset_caches(s);
  return WN_OK;
}

void wn_session_reset(wn_session *s) {
  WN_CHECK_OR(, WN_HANDLE(s, SESSION));
  wn_session_reset_caches(s);
  wn_session_once_reset(s);
  s->position = 0;
  s->pins.count = 0;
  s->stretched = s->broken = s->logits_known = s->counted = false;
  if (s->marks) memset(s->marks, 0, (size_t)(s->B * s->capacity));
}

wn_status wn_session_check_tokens(wn_context *ctx, const struct wn_session *s, const int32_t *tokens, int64_t T,
                                  int64_t chunk) {
  if (!tokens || T < 1 || chunk < 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: %lld tokens in pieces of %lld; both must be positive", (long long)T,
                   (long long)chunk);
  if (T > s->capacity - s->position)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: %lld tokens more than the %lld seen do not fit in a cache of %lld",
                   (long long)T, (long long)s->position, (long long)s->capacity);
  if (s->broken) return wn_fail(ctx, WN_ERR_ARGUMENT, "session: its last feed failed; it can only be reset");
  return wn_model_check_ids(ctx, s->model, "session: token", tokens, s->B * T);
}

wn_status wn_session_take_tokens(struct wn_session *s, const int32_t *tokens, int64_t stride, int64_t T) {
  wn_session_note_history(s, tokens, stride, T);
  for (int64_t b = 0; b < s->B; b++) {
    for (int64_t t = 0; t < T; t++) {
      s->tokens[b * T + t] = tokens[b * stride + t];
      s->positions[b * T + t] = (int32_t)(s->position + t);
      if (!s->control) continue;
      const int64_t at = b * s->capacity + s->position + t;
      const bool by_id = s->model->control && s->model->control[tokens[b * stride + t]];
      s->control[at] = by_id || (s->marks && s->marks[at]);
    }
  }
  const size_t bytes = (size_t)(s->B * T) * sizeof *s->tokens;
  WN_TRY(wn_session_show(s->model, s->tokens_shown, s->tokens, bytes));
  return wn_session_show(s->model, s->positions_shown, s->positions, bytes);
}

wn_status wn_session_feed_piece(struct wn_session *s, const int32_t *tokens, int64_t stride, int64_t T,
                                struct wn_session_rows *rows) {
  struct wn_run run;
  WN_TRY(wn_session_take_tokens(s, tokens, stride, T));
  wn_session_begin(&run, s, T);
  s->broken = true;
  WN_TRY(session_run_layers(&run, s, false, rows));
  WN_TRY(session_keep_last(&run, s, rows));
  s->broken = false;
  s->position += T;
  s->logits_known = false;
  s->counted = s->counts != NULL;
  return WN_OK;
}

wn_status wn_session_last_logits(struct wn_session *s) {
  struct wn_run run;
  if (s->logits_known) return WN_OK;
  wn_session_begin(&run, s, 1);
  WN_TRY(session_output(&run, s));
  s->logits_known = true;
  return WN_OK;
}

wn_status wn_session_copy_logits(const struct wn_model *model, const void *from, int64_t n, float *to) {
  const int64_t count = n * model->config.vocab_size;
  const struct wn_memory *memory = model->backend->memory;
  if (model->dtype == WN_F32) return wn_memory_read(model->ctx, memory, to, from, (size_t)count * sizeof *to);
  void *opened;
  WN_TRY(wn_memory_open(model->ctx, memory, "logits", from, (size_t)count * sizeof(double), &opened));
  for (int64_t i = 0; i < count; i++) to[i] = (float)((const double *)opened)[i];
  return wn_memory_close(model->ctx, memory, NULL, 0, opened, false);
}
