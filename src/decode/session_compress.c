/* Compressing a session's caches (wn_when in winnow/kv.h).
 *
 * Under "prompt" and "hold" a layer with a budget holds everything until the context ends: its cache grows with the
 * text, by blocks. Then each layer in turn scores what it holds (kv/keep.h), gathers what stays in order of position
 * into a new allocation of its own size, and releases the old one. After "prompt" the cache grows again, after "hold"
 * it is full and evicts. Under "every" a cache has room for K + every tokens, and is compressed to K when it is full;
 * that depends on the text alone, not on how it is cut.
 *
 * Memory while a context is read in pieces is that of all tokens, and of one layer's new cache more while it is
 * compressed. With a threshold (allot "tau") there is no K: caches grow, and all are sifted at the text's multiples of
 * `every` tokens. A context that is read layer by layer (batch.c) needs all tokens of one layer, what stays of those
 * before it, and the residual stream. */

#include "base/misuse.h"
#include "decode/session_once.h"

/* Have its caches room for K + every tokens, and are they compressed when they are full? */
static bool compress_fills(const struct wn_session *s) {
  return s->budgets.when == WN_WHEN_EVERY && !wn_session_sifts(s);
}

/* ---- other allocations ---- */

void wn_session_count_peak(struct wn_session *s, size_t more) {
  const size_t bytes = wn_session_kv_bytes(s) + s->carried + more;
  if (bytes > s->peak) s->peak = bytes;
}

static wn_status compress_allocate(struct wn_session *s, int64_t i, int64_t capacity, struct wn_kv_cache *out) {
  struct wn_kv_shape shape = s->caches[i].shape;
  shape.capacity = capacity;
  WN_TRY(wn_kv_cache_init(s->ctx, &shape, out));
  wn_session_count_peak(s, out->bytes);
  return WN_OK;
}

/* Takes over the new cache of part i, or after a failure drops it. */
static wn_status compress_swap(struct wn_session *s, int64_t i, struct wn_kv_cache *cache, wn_status status) {
  if (status == WN_OK) {
    struct wn_kv_cache old = s->caches[i];
    s->caches[i] = *cache;
    *cache = old;
  }
  wn_kv_cache_clear(cache);
  return status;
}

wn_status wn_session_set_capacity(struct wn_session *s, int64_t i, int64_t capacity) {
  struct wn_kv_cache to;
  if (s->caches[i].shape.capacity == capacity) return WN_OK;
  WN_TRY(compress_allocate(s, i, capacity, &to));
  return compress_swap(s, i, &to, wn_kv_cache_copy(s->ctx, &s->caches[i], s->caches[i].count, NULL, &to));
}

wn_status wn_session_follow_capacities(struct wn_session *s, const struct wn_session *from) {
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++) {
    const struct wn_kv_cache *other = &from->caches[i];
    const int64_t capacity = wn_session_grows(from, i) ? wn_session_room(s, other->count) : other->shape.capacity;
    if (wn_session_follows(s, i)) WN_TRY(wn_session_set_capacity(s, i, capacity));
  }
  s->compressed = from->compressed;
  s->sifted = from->sifted;
  return WN_OK;
}

/* ---- which tokens stay ---- */

wn_status wn_session_check_ragged(wn_context *ctx, const wn_budgets *budgets, int64_t sequences) {
  if (budgets->allot < WN_ALLOT_ADA || sequences <= 1) return WN_OK;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                 "session: %lld sequences would keep different numbers of tokens in a key-value head: expected one",
                 (long long)sequences);
}

/* Refuses what a session that was compressed cannot do again. */
static wn_status compress_check_again(const struct wn_session *s, int64_t l) {
  for (int64_t i = s->first[l] + 1; i < s->first[l + 1]; i++)
    if (s->caches[i].count != s->caches[s->first[l]].count)
      return wn_fail(s->ctx, WN_ERR_UNSUPPORTED,
                     "session: the heads of layer %lld hold different numbers of tokens: it can be compressed once",
                     (long long)l);
  return WN_OK;
}

/* Scores all parts of a layer, and says how many tokens each keeps. */
static wn_status compress_score(struct wn_session *s, int64_t l, struct wn_kept *keep) {
  const int64_t first = s->first[l], end = s->first[l + 1];
  const wn_budgets *budgets = &s->budgets;
  const bool over_heads = budgets->allot == WN_ALLOT_ADA || budgets->allot == WN_ALLOT_MODEL;
  const bool together = budgets->method || budgets->critical || over_heads;
  for (int64_t i = first; i < end; i++) {
    const int64_t K = wn_session_compressed_budget(s, &s->parts[i]), n = s->caches[i].count;
    const bool waits = compress_fills(s) && n < s->caches[i].shape.capacity;
    if (s->parts[i].kind != WN_LAYER_BUDGET || waits) continue;
    if (budgets->method)
      WN_TRY(wn_keep_open(s->ctx, &s->caches[i], &keep[i - first]));
    else
      WN_TRY(wn_keep_score(s->ctx, &s->caches[i], budgets, l, K, &keep[i - first]));
    keep[i - first].kept = K < n ? K : n;
    if (!over_heads && together) WN_TRY(wn_session_once_score(s, l, K, &keep[i - first], 1));
    if (budgets->allot == WN_ALLOT_TAU) keep[i - first].kept = wn_keep_below(&keep[i - first], budgets);
  }
  if (!over_heads || !keep[0].cache) return WN_OK;
  WN_TRY(compress_check_again(s, l));
  return wn_session_once_score(s, l, wn_session_compressed_budget(s, &s->parts[first]), keep, end - first);
}

/* Moves what stays of part i to a cache of its own size. */
static wn_status compress_gather(struct wn_session *s, int64_t i, struct wn_kept *keep) {
  struct wn_kv_cache *from = &s->caches[i], to;
  const struct wn_memory *memory = s->model->backend->memory;
  const struct wn_kv_shape *shape = &from->shape;
  const bool hold = s->budgets.when == WN_WHEN_HOLD, ragged = s->budgets.allot >= WN_ALLOT_ADA;
  const int64_t K = wn_session_compressed_budget(s, &s->parts[i]), most = K < s->capacity ? K : s->capacity;
  const int64_t least = s->pins.count > 0 ? wn_policy_stay(&s->budgets, K) + 1 : 0; /* the next token has a place */
  const int64_t own = keep->kept > least ? keep->kept : least;
  const int64_t capacity = compress_fills(s) ? shape->capacity
                           : hold            ? (ragged ? own : most)
                                             : wn_session_room(s, keep->kept);
  struct wn_run run;
  void *shown = NULL;
  wn_status status;
  WN_TRY(wn_keep_choose(s->ctx, keep));
  WN_TRY(compress_allocate(s, i, capacity, &to));
  wn_session_begin(&run, s, 1);
  if (!memory->host)
    WN_TRY_GOTO(memory->allocate(s->ctx, "slots that stay",
                                 (size_t)(shape->B * shape->groups * keep->kept) * sizeof *keep->slots, &shown),
                done);
  WN_TRY_GOTO(wn_kv_cache_gather(&run.exec, from, keep->slots, shown, keep->kept, &to), done);
  to.count = keep->kept;
  to.seen = from->seen;
  to.sorted = true;
done:
  if (!memory->host) memory->release(shown);
  return compress_swap(s, i, &to, status);
}

wn_status wn_session_compress_layer(struct wn_session *s, int64_t l) {
  const int64_t first = s->first[l], n = s->first[l + 1] - first;
  struct wn_kept *keep;
  WN_TRY(WN_ALLOC(s->ctx, "a compression", n, &keep));
  wn_status status = compress_score(s, l, keep);
  for (int64_t i = 0; i < n; i++) {
    if (status == WN_OK && keep[i].cache) status = compress_gather(s, first + i, &keep[i]);
    wn_keep_clear(&keep[i]);
  }
  wn_free(keep);
  return status;
}

wn_status wn_session_compress(wn_context *ctx, wn_session *s) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION));
  if (s->broken) return wn_fail(ctx, WN_ERR_ARGUMENT, "session: its last feed failed; it can only be reset");
  if (s->budgets.layers == 0 || s->budgets.when == WN_WHEN_ALWAYS || s->budgets.when == WN_WHEN_EVERY) return WN_OK;
  if (s->position == 0) return wn_fail(ctx, WN_ERR_ARGUMENT, "session: nothing has been fed that could be compressed");
  WN_TRY(wn_session_check_ragged(ctx, &s->budgets, s->B));
  WN_TRY(wn_session_check_pins(ctx, s, true));
  const wn_status repeated = wn_session_once_again(s);
  if (repeated != WN_OK) wn_session_once_finish(s);
  WN_TRY(repeated);
  s->broken = true; /* until every layer is done */
  wn_status status = WN_OK;
  for (int64_t l = 0; l < s->model->config.layers && status == WN_OK; l++) status = wn_session_compress_layer(s, l);
  wn_session_once_finish(s);
  WN_TRY(status);
  s->broken = false;
  s->compressed = true;
  return WN_OK;
}

/* Sifts all layers if the text has come to a multiple of `every`. *until: the tokens until the next. */
static wn_status compress_sift(struct wn_session *s, int64_t *until) {
  const int64_t every = s->budgets.every;
  *until = every - s->position % every;
  if (s->position % every > 0 || s->sifted == s->position) return WN_OK;
  s->broken = true; /* until every layer is done */
  for (int64_t l = 0; l < s->model->config.layers; l++) WN_TRY(wn_session_compress_layer(s, l));
  s->broken = false;
  s->sifted = s->position;
  return WN_OK;
}

wn_status wn_session_make_room(struct wn_session *s, int64_t T, int64_t *now) {
  const int64_t left = s->capacity - s->position;
  int64_t more = T < left ? T : left, until;
  if (s->budgets.layers > 0 && wn_session_sifts(s) && !s->broken) {
    WN_TRY(compress_sift(s, &until));
    more = more < until ? more : until;
    if (now && more < *now) *now = more;
  }
  for (int64_t l = 0; s->budgets.when != WN_WHEN_ALWAYS && l < s->budgets.layers; l++)
    for (int64_t i = s->first[l]; i < s->first[l + 1]; i++) {
      const struct wn_kv_cache *cache = &s->caches[i];
      if (wn_session_grows(s, i) && cache->count + more > cache->shape.capacity)
        WN_TRY(wn_session_set_capacity(s, i, wn_session_room(s, cache->count + more)));
      if (!compress_fills(s) || s->parts[i].kind != WN_LAYER_BUDGET) continue;
      if (cache->count == cache->shape.capacity) WN_TRY(wn_session_compress_layer(s, l));
      const int64_t room = cache->shape.capacity - cache->count;
      if (now && room < *now) *now = room;
    }
  return WN_OK;
}

size_t wn_session_peak_bytes(const wn_session *s) {
  WN_CHECK_OR(0, WN_HANDLE_AS("session", s, SESSION));
  return s->peak;
}
