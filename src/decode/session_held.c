/* What the caches of a session hold. Changes nothing; reads every slot of a layer. */
#include <string.h>

#include "base/misuse.h"
#include "decode/session.h"

/* Adds the heads of a part to the positions that it holds. */
static void held_add_part(const struct wn_kv_cache *cache, int64_t kv_heads, int64_t sequence, int32_t *heads) {
  const struct wn_kv_shape *s = &cache->shape;
  const int64_t P = cache->at ? s->groups : 1; /* each group has an equal share of the heads */
  for (int64_t p = 0; p < P; p++) {
    const int32_t *at = cache->at ? cache->at + (sequence * P + p) * s->capacity : NULL;
    for (int64_t j = 0; j < cache->count; j++) heads[at ? at[j] : j] += (int32_t)(kv_heads / P);
  }
}

static wn_status held_check(wn_context *ctx, const struct wn_session *s, int64_t sequence, int64_t layer) {
  if (sequence < 0 || sequence >= s->B || layer < 0 || layer >= s->model->config.layers)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: sequence %lld, layer %lld: it has %lld sequences, %lld layers",
                   (long long)sequence, (long long)layer, (long long)s->B, (long long)s->model->config.layers);
  if (s->broken) return wn_fail(ctx, WN_ERR_ARGUMENT, "session: its last feed failed; it can only be reset");
  return WN_OK;
}

wn_status wn_session_held(wn_context *ctx, const wn_session *s, int64_t sequence, int64_t layer, int32_t *heads) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(heads));
  WN_TRY(held_check(ctx, s, sequence, layer));
  memset(heads, 0, (size_t)s->position * sizeof *heads);
  for (int64_t i = s->first[layer]; i < s->first[layer + 1]; i++) {
    WN_TRY(wn_kv_cache_positions(ctx, &s->caches[i]));
    held_add_part(&s->caches[i], s->parts[i].kv_heads, sequence, heads);
  }
  return WN_OK;
}

int64_t wn_session_held_tokens(const struct wn_session *s, int64_t layer) {
  int64_t all = 0;
  for (int64_t i = s->first[layer]; i < s->first[layer + 1]; i++) all += s->caches[i].count * s->parts[i].kv_heads;
  return all;
}

size_t wn_session_held_bytes(const wn_session *s) {
  WN_CHECK_OR(0, WN_HANDLE_AS("session", s, SESSION));
  size_t bytes = (size_t)s->model->config.layers * s->inputs.bytes;
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++)
    bytes += wn_session_share(s->caches[i].bytes, s->caches[i].shape.capacity, s->caches[i].count);
  return bytes;
}

wn_status wn_session_kept(wn_context *ctx, const wn_session *s, int64_t sequence, int64_t layer, int64_t kv_head,
                          int32_t *positions, int64_t *count) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(positions), WN_POINTER(count));
  WN_TRY(held_check(ctx, s, sequence, layer));
  if (kv_head < 0 || kv_head >= s->model->config.kv_heads)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: key-value head %lld: the model has %lld", (long long)kv_head,
                   (long long)s->model->config.kv_heads);
  int64_t i = s->first[layer];
  while (kv_head >= s->parts[i].kv0 + s->parts[i].kv_heads) i++;
  const struct wn_kv_cache *cache = &s->caches[i];
  WN_TRY(wn_kv_cache_positions(ctx, cache));
  const int64_t P = cache->at ? cache->shape.groups : 1, p = P > 1 ? kv_head - s->parts[i].kv0 : 0;
  const int32_t *at = cache->at ? cache->at + (sequence * P + p) * cache->shape.capacity : NULL;
  *count = cache->count;
  for (int64_t j = 0; j < cache->count; j++) positions[j] = (int32_t)j;
  if (at) wn_evict_sort(cache->count, positions, at);
  for (int64_t j = 0; at && j < cache->count; j++) positions[j] = at[positions[j]];
  return WN_OK;
}
