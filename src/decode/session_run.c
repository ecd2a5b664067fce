/* What passes over a session need beside its layers: where its text is cut, copies between the host and the backend's
 * memory, its run, its logits. */
#include <string.h>

#include "base/misuse.h"
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

wn_status wn_session_show(const struct wn_model *model, void *shown, const void *at, size_t n) {
  return shown == at ? WN_OK : model->backend->memory->copy_in(model->ctx, shown, at, n);
}

wn_status wn_session_read(const struct wn_model *model, void *to, const void *at, size_t n) {
  return to == at ? WN_OK : wn_memory_read(model->ctx, model->backend->memory, to, at, n);
}

void wn_session_begin(struct wn_run *run, struct wn_session *s, int64_t T) {
  wn_run_init(run, s->model, s->B, T);
  run->exec.scratch = T == 1 ? s->scratch : s->room->scratch;
  run->exec.scratch_bytes = T == 1 ? s->scratch_bytes : s->room->scratch_bytes;
  if (wn_session_turns_itself(s)) run->rotary = &s->rotary;
}

void wn_session_reset_caches(struct wn_session *s) {
  s->compressed = false;
  s->sifted = 0;
  s->peak = wn_session_kv_bytes(s);
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++) wn_kv_cache_reset(&s->caches[i]);
}

wn_status wn_session_take_back(struct wn_session *s, int64_t n) {
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++) WN_TRY(wn_kv_cache_forget(s->ctx, &s->caches[i], n));
  s->position -= n;
  s->logits_known = s->counted = false;
  return WN_OK;
}

void wn_session_reset(wn_session *s) {
  WN_CHECK_OR(, WN_HANDLE(s, SESSION));
  wn_session_reset_caches(s);
  wn_session_once_reset(s);
  s->pins.count = 0;
  s->position = 0;
  s->stretched = s->broken = s->cut = s->logits_known = s->counted = false;
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

wn_status wn_session_last_logits(struct wn_session *s) {
  struct wn_run run;
  if (s->logits_known) return WN_OK;
  wn_session_begin(&run, s, 1);
  WN_TRY(wn_run_output(&run, s->state, s->B, s->logits));
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
