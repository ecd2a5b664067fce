#include "decode/session_ahead.h"

#include "base/arrays.h"

int64_t wn_session_ahead_room(const struct wn_session *s, int64_t most) {
  int64_t room = s->capacity - s->position - 1;
  if (s->counting || s->control || s->history || s->inputs.S > 0) return 0;
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++) {
    const struct wn_kv_cache *cache = &s->caches[i];
    if (s->parts[i].kind == WN_LAYER_BUDGET) return 0;
    /* on the host what leaves a window can be kept */
    const int64_t left = s->model->backend->memory->host ? room : cache->shape.capacity - cache->count - 1;
    if (left < room) room = left;
  }
  return room < 1 ? 0 : room < most ? room : most;
}

/* F of layer l after row j; *n: its numbers. */
static void *ahead_f(const struct wn_session *s, int64_t l, int64_t j, int64_t *n) {
  const struct wn_kv_shape *shape = &s->caches[s->first[l]].shape;
  *n = shape->selections * shape->capacity;
  return wn_element(s->ahead->f, (l * (1 + s->ahead->most) + j) * shape->selections * s->capacity, shape->dtype);
}

void wn_session_ahead_before(struct wn_session *s, int64_t l, int64_t j) {
  const struct wn_kv_cache *cache = &s->caches[s->first[l]];
  struct wn_session_ahead *a = s->ahead;
  const int64_t row = l * (1 + a->most) + j;
  a->evicted[row] = cache->count < cache->shape.capacity
                        ? (struct wn_kv_slot){.slot = -1}
                        : wn_kv_cache_save_oldest(cache, a->contents + (size_t)row * a->slot_bytes);
}

wn_status wn_session_ahead_after(struct wn_session *s, int64_t l, int64_t j) {
  const struct wn_kv_cache *cache = &s->caches[s->first[l]];
  int64_t n;
  if (!cache->f) return WN_OK;
  void *f = ahead_f(s, l, j, &n);
  return s->model->backend->memory->copy(s->ctx, f, cache->f, (size_t)n * wn_dtype_size(cache->shape.dtype));
}

static void ahead_lay(const struct wn_session *s, struct wn_session_ahead *a) {
  const size_t e = wn_dtype_size(s->model->dtype);
  const int64_t C = s->model->config.width, G = s->caches[0].shape.selections;
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(a->states, e, "states", true, WN_DIMS(a->most, C)),
      WN_ARRAY_SIZED(a->logits, e, "logits", true, WN_DIMS(a->most, s->model->config.vocab_size)),
      WN_ARRAY_SIZED(a->f, e, "F", G > 0, WN_DIMS(s->model->config.layers, 1 + a->most, G, s->capacity)),
      WN_ARRAY_SIZED(a->scratch, 1, "scratch", true, WN_DIMS(s->model->ctx->threads, (int64_t)a->scratch_bytes)),
  };
  const int64_t L = s->model->config.layers;
  const struct wn_array host[] = {
      WN_ARRAY_FOR(a->evicted, "evicted slots", true, WN_DIMS(L, 1 + a->most)),
      WN_ARRAY_SIZED(a->contents, 1, "evicted keys", a->slot_bytes > 0,
                     WN_DIMS(L, 1 + a->most, (int64_t)a->slot_bytes)),
  };
  WN_ARRAYS_LAY(&a->arrays, rows);
  WN_ARRAYS_LAY(&a->host, host);
}

wn_status wn_session_ahead_open(wn_context *ctx, struct wn_session *s, int64_t most) {
  if (s->ahead && s->ahead->most >= most) return WN_OK;
  wn_session_ahead_close(s);
  WN_TRY(WN_ALLOC(ctx, "rows ahead", 1, &s->ahead));
  s->ahead->most = most;
  s->ahead->scratch_bytes = s->scratch_bytes / WN_ALIGN * WN_ALIGN + WN_ALIGN;
  s->ahead->arrays.memory = s->model->backend->memory;
  for (int64_t l = 0; l < s->model->config.layers; l++) {
    const size_t bytes = wn_kv_cache_slot_bytes(&s->caches[s->first[l]]);
    if (s->parts[s->first[l]].kind == WN_LAYER_TRIMMED && bytes > s->ahead->slot_bytes) s->ahead->slot_bytes = bytes;
  }
  ahead_lay(s, s->ahead);
  wn_status status = wn_arrays_allocate(ctx, &s->ahead->arrays, "rows ahead");
  if (status == WN_OK) status = wn_arrays_allocate(ctx, &s->ahead->host, "rows ahead");
  if (status == WN_OK)
    ahead_lay(s, s->ahead);
  else
    wn_session_ahead_close(s);
  return status;
}

void wn_session_ahead_close(struct wn_session *s) {
  if (!s->ahead) return;
  (void)wn_session_ahead_drop(s);
  wn_arrays_clear(&s->ahead->arrays);
  wn_arrays_clear(&s->ahead->host);
  wn_free(s->ahead);
  s->ahead = NULL;
}

wn_status wn_session_ahead_take(struct wn_session *s) {
  struct wn_session_ahead *a = s->ahead;
  const struct wn_memory *memory = s->model->backend->memory;
  const wn_dtype dtype = s->model->dtype;
  const int64_t C = s->model->config.width, V = s->model->config.vocab_size, i = a->taken++;
  const size_t e = wn_dtype_size(dtype);
  s->position++;
  WN_TRY(memory->copy(s->ctx, s->state, wn_element(a->states, i * C, dtype), (size_t)C * e));
  return memory->copy(s->ctx, s->logits, wn_element(a->logits, i * V, dtype), (size_t)V * e);
}

wn_status wn_session_ahead_drop(struct wn_session *s) {
  struct wn_session_ahead *a = s->ahead;
  const int64_t count = a ? a->count : 0, taken = a ? a->taken : 0;
  if (a) a->count = a->taken = 0;
  if (count == taken) return WN_OK;
  s->broken = true;
  for (int64_t l = 0; l < s->model->config.layers; l++) {
    struct wn_kv_cache *cache = &s->caches[s->first[l]];
    int64_t n;
    for (int64_t j = count; j > taken; j--) {
      const int64_t row = l * (1 + a->most) + j;
      if (a->evicted[row].slot < 0)
        WN_TRY(wn_kv_cache_forget(s->ctx, cache, 1));
      else
        wn_kv_cache_undo(cache, a->evicted[row], a->contents + (size_t)row * a->slot_bytes);
    }
    if (!cache->f) continue;
    const void *f = ahead_f(s, l, taken, &n);
    WN_TRY(s->model->backend->memory->copy(s->ctx, cache->f, f, (size_t)n * wn_dtype_size(cache->shape.dtype)));
  }
  s->broken = false;
  return WN_OK;
}
