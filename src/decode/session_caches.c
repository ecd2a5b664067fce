/* The caches of a session. Each layer has one that holds everything, or one that holds what the layer can see, or under
 * budgets one for each group of neighbouring key-value heads with the same budget. Also here: the arrays that all
 * caches use in turn. */
#include "attention/registry.h"
#include "base/misuse.h"
#include "decode/session.h"
#include "kv/evictions.h"
#include "kv/policy.h"

/* The tokens that a key-value head may hold under the budgets, at most the capacity. */
static int64_t caches_budget_of(const struct wn_session *s, int64_t l, int64_t kv_head) {
  const int64_t K = s->budgets.layers > 0 ? wn_budgets_of(&s->budgets, l, kv_head) : s->capacity;
  return K < s->capacity ? K : s->capacity;
}

/* Has the layer a budget, if its head has K tokens? */
static bool caches_limits(const struct wn_session *s, int64_t K) {
  const wn_budgets *b = &s->budgets;
  const bool unknown = b->share > 0 || b->allot == WN_ALLOT_TAU || b->allot == WN_ALLOT_PYRAMID;
  return K < s->capacity || (b->layers > 0 && unknown);
}

/* Divides heads into parts: neighbouring heads with the same budget, or single heads if each keeps its own number. */
static wn_status caches_choose_parts(wn_context *ctx, struct wn_session *s) {
  const int64_t L = s->model->config.layers, Hkv = s->model->config.kv_heads;
  const bool ragged = s->budgets.allot >= WN_ALLOT_ADA;
  const bool same = s->budgets.heads == 0 && !ragged;
  WN_TRY(WN_ALLOC(ctx, "reach of the layers", L, &s->reach));
  WN_TRY(WN_ALLOC(ctx, "caches of the layers", L + 1, &s->first));
  for (int pass = 0; pass < 2; pass++) {
    int64_t n = 0;
    for (int64_t l = 0; l < L; l++) {
      const int64_t reach = wn_layer_reach(s->model, l);
      s->reach[l] = reach < s->capacity - 1 && !s->whole ? reach + 1 : s->capacity;
      s->first[l] = n;
      for (int64_t g = 0, next; g < Hkv; g = next, n++) {
        const int64_t K = caches_budget_of(s, l, g);
        for (next = g + 1; next < Hkv && !ragged && (same || caches_budget_of(s, l, next) == K);) next++;
        if (pass == 0) continue;
        s->parts[n] = (struct wn_session_part){.layer = l,
                                               .kv0 = g,
                                               .kv_heads = next - g,
                                               .kind = caches_limits(s, K)         ? WN_LAYER_BUDGET
                                                       : s->reach[l] < s->capacity ? WN_LAYER_TRIMMED
                                                                                   : WN_LAYER_WHOLE};
      }
    }
    s->first[L] = n;
    if (pass == 0) WN_TRY(WN_ALLOC(ctx, "parts of the caches", n, &s->parts));
  }
  return WN_OK;
}

bool wn_session_takes_blocks(const struct wn_session *s) {
  const struct wn_policy_row *policy = wn_policy_row(s->budgets.policy);
  const bool sums = wn_policy_needs(&s->budgets) & WN_POLICY_SUMS;
  if (s->control) return false; /* rows must run one by one to know which of their keys are control tokens */
  if (s->budgets.policy == WN_POLICY_OWN) return false; /* one call a layer for all groups */
  if (wn_policy_on_host(policy) && !s->model->backend->memory->host) return false;
  return !s->budgets.cache_positions &&
         !(sums && wn_attention_config_unserved(&s->attention, WN_EVICTIONS_SUMS_SERVED));
}

bool wn_session_takes_cache_position_blocks(const struct wn_session *s) {
  const wn_model_config *c = &s->model->config;
  if (!s->budgets.cache_positions || c->position != WN_POS_ROPE) return false;
  return !wn_attention_config_lacks(&s->attention, WN_TRAIT_LOGIT);
}

bool wn_session_by_cache_position(const struct wn_session *s, int64_t l) {
  return s->parts[s->first[l]].kind == WN_LAYER_BUDGET && s->budgets.cache_positions;
}

/* The tokens that the caches of this part may hold at most. */
static int64_t caches_most(const struct wn_session *s, const struct wn_session_part *part) {
  const int64_t K = caches_budget_of(s, part->layer, part->kv0), every = s->budgets.every;
  if (part->kind == WN_LAYER_TRIMMED) return s->reach[part->layer];
  if (part->kind == WN_LAYER_WHOLE || wn_session_follows(s, part - s->parts)) return s->capacity;
  return every < s->capacity - K ? K + every : s->capacity; /* `every` is 0 under "always" */
}

/* Lays out what evicting caches share for single tokens. */
static void caches_shared_lay(struct wn_session *s) {
  const int64_t B = s->B, D = s->model->config.head_size, Hkv = s->model->config.kv_heads, K = s->largest;
  const size_t e = wn_dtype_size(s->model->dtype);
  const bool rotates = s->budgets.cache_positions, sums = wn_policy_needs(&s->budgets) & WN_POLICY_SUMS;
  const bool apart = !s->model->backend->memory->host;
  s->policy_room_of_group = K > 0 ? wn_policy_room_of(&s->budgets, K, D) : 0;
  const struct wn_array host[] = {
      WN_ARRAY_FOR(s->cache_positions, "cache positions", rotates, WN_DIMS(B, K)),
  };
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(s->sums, e, "attention sums of a row", sums, WN_DIMS(B, Hkv, K)),
      WN_ARRAY_SIZED(s->policy_room, sizeof(double), "room of the policy", true,
                     WN_DIMS(B, Hkv, s->policy_room_of_group)),
      WN_ARRAY_SIZED(s->rotated, e, "rotated keys", rotates, WN_DIMS(B, K, Hkv, D)),
      WN_ARRAY_SIZED(s->cache_positions_shown, sizeof *s->cache_positions, "cache positions shown", apart && rotates,
                     WN_DIMS(B, K)),
  };
  WN_ARRAYS_LAY(&s->shared_host, host);
  WN_ARRAYS_LAY(&s->shared, rows);
  if (!apart) s->cache_positions_shown = s->cache_positions;
}

/* Makes the room's stage large enough for every cache. */
static wn_status caches_stage(wn_context *ctx, struct wn_session *s) {
  const int64_t rows = s->piece < WN_SESSION_BLOCK ? s->piece : WN_SESSION_BLOCK;
  const int64_t H = s->model->config.heads, D = s->model->config.head_size;
  const bool on_host = s->model->backend->memory->host; /* blocks by cache position need the host's memory */
  int64_t size[WN_STAGE_SIZES] = {0};
  s->blocks_of_rows = s->budgets.layers > 0 && wn_session_takes_blocks(s);
  s->cache_position_blocks = on_host && s->budgets.layers > 0 && wn_session_takes_cache_position_blocks(s);
  const bool any_blocks = s->blocks_of_rows || s->cache_position_blocks;
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++) {
    struct wn_kv_shape shape = s->caches[i].shape;
    const enum wn_session_kind kind = s->parts[i].kind;
    const bool staged =
        any_blocks && (s->budgets.when == WN_WHEN_ALWAYS || s->budgets.when == WN_WHEN_HOLD || shape.notes);
    size_t bytes, host;
    int64_t slots;
    if (kind == WN_LAYER_BUDGET) shape.capacity = caches_most(s, &s->parts[i]);
    if (kind == WN_LAYER_BUDGET && shape.capacity > s->largest) s->largest = shape.capacity;
    if (kind == WN_LAYER_WHOLE || (kind == WN_LAYER_BUDGET && !staged)) continue;
    shape.capacity += kind == WN_LAYER_TRIMMED ? s->piece : rows;
    if (!wn_kv_shape_bytes(&shape, &bytes, &host) ||
        __builtin_mul_overflow(s->B * shape.groups, shape.capacity, &slots))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "session: a stage of %lld tokens does not fit in memory",
                     (long long)shape.capacity);
    if ((int64_t)(bytes - host) > size[WN_STAGE_BYTES]) size[WN_STAGE_BYTES] = (int64_t)(bytes - host);
    if ((int64_t)host > size[WN_STAGE_HOST_BYTES]) size[WN_STAGE_HOST_BYTES] = (int64_t)host;
    if (slots > size[WN_STAGE_SLOTS]) size[WN_STAGE_SLOTS] = slots;
  }
  if (s->blocks_of_rows && s->largest > 0) size[WN_STAGE_EVICTIONS] = size[WN_STAGE_SLOTS];
  if (s->cache_position_blocks && s->largest > 0) {
    size[WN_STAGE_QUERIES] = s->B * rows * H * D;
    size[WN_STAGE_WEIGHTS] = s->B * rows * H;
    size[WN_STAGE_POSITIONS] = s->largest + rows;
  }
  return wn_room_fit_stage(ctx, s->model, size, s->room);
}

static wn_status caches_shared_arrays(wn_context *ctx, struct wn_session *s) {
  WN_TRY(caches_stage(ctx, s));
  s->shared.memory = s->model->backend->memory;
  caches_shared_lay(s);
  WN_TRY(wn_arrays_check(ctx, &s->shared_host, "session of %lld sequences", (long long)s->B));
  WN_TRY(wn_arrays_check(ctx, &s->shared, "session of %lld sequences", (long long)s->B));
  WN_TRY(wn_arrays_allocate(ctx, &s->shared_host, "what the caches of a session share"));
  WN_TRY(wn_arrays_allocate(ctx, &s->shared, "what the caches of a session share"));
  caches_shared_lay(s);
  return WN_OK;
}

/* The shape of a part's cache, as large as it may become. */
static struct wn_kv_shape caches_shape(const struct wn_session *s, const struct wn_session_part *part) {
  const wn_model_config *c = &s->model->config;
  struct wn_kv_shape shape;
  wn_kv_shape_of(&c->attention, &(struct wn_attention_shape){c->heads, c->kv_heads, c->head_size}, s->B,
                 caches_most(s, part), s->model->dtype, part->kind == WN_LAYER_BUDGET ? &s->budgets : NULL, &shape);
  if (part->kind == WN_LAYER_TRIMMED) shape.groups = 1; /* one group, which evicts the oldest token */
  wn_kv_shape_of_heads(&shape, part->kv0, part->kv_heads);
  wn_kv_shape_store(&shape, s->cache);
  shape.memory = s->model->backend->memory;
  return shape;
}

size_t wn_session_share(size_t all, int64_t capacity, int64_t count) {
  const size_t of = (size_t)capacity, n = (size_t)count;
  return all / of * n + all % of * n / of;
}

wn_status wn_session_caches_plan(wn_context *ctx, struct wn_session *s, int64_t tokens, size_t *bytes) {
  size_t one;
  *bytes = 0;
  WN_TRY(caches_choose_parts(ctx, s));
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++) {
    const struct wn_kv_shape shape = caches_shape(s, &s->parts[i]);
    const int64_t held = tokens < shape.capacity ? tokens : shape.capacity;
    if (!wn_kv_shape_bytes(&shape, &one, NULL) ||
        !wn_add_size(*bytes, wn_session_share(one, shape.capacity, held), bytes))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "a cache of %lld tokens does not fit in memory", (long long)s->capacity);
  }
  return WN_OK;
}

enum { GROW = 64 }; /* tokens */

bool wn_session_grows(const struct wn_session *s, int64_t i) {
  return wn_session_follows(s, i) && !wn_session_evicts(s);
}

int64_t wn_session_room(const struct wn_session *s, int64_t tokens) {
  const int64_t blocks = tokens > 0 ? (tokens + GROW - 1) / GROW : 1;
  return blocks * GROW < s->capacity ? blocks * GROW : s->capacity;
}

void wn_session_pretend(struct wn_session *s, bool large) {
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++)
    if (wn_session_grows(s, i)) s->caches[i].shape.capacity = large ? s->capacity : wn_session_room(s, 0);
}

size_t wn_session_kv_bytes(const wn_session *s) {
  WN_CHECK_OR(0, WN_HANDLE(s, SESSION));
  size_t bytes = 0;
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++) bytes += s->caches[i].bytes;
  return bytes + (size_t)s->model->config.layers * s->inputs.bytes;
}

wn_status wn_session_caches_init(wn_context *ctx, struct wn_session *s) {
  const wn_model_config *c = &s->model->config;
  WN_TRY(caches_choose_parts(ctx, s));
  WN_TRY(WN_ALLOC(ctx, "caches", s->first[c->layers], &s->caches));
  for (int64_t i = 0; i < s->first[c->layers]; i++) {
    struct wn_kv_shape shape = caches_shape(s, &s->parts[i]);
    if (wn_session_grows(s, i)) shape.capacity = wn_session_room(s, 0);
    WN_TRY(wn_kv_cache_init(ctx, &shape, &s->caches[i]));
  }
  s->peak = wn_session_kv_bytes(s);
  return caches_shared_arrays(ctx, s);
}

void wn_session_caches_clear(struct wn_session *s) {
  for (int64_t i = 0; s->caches && i < s->first[s->model->config.layers]; i++) wn_kv_cache_clear(&s->caches[i]);
  wn_arrays_clear(&s->shared);
  wn_arrays_clear(&s->shared_host);
  wn_free(s->caches);
  wn_free(s->parts);
  wn_free(s->first);
  wn_free(s->reach);
  wn_budgets_clear(&s->budgets);
}

wn_status wn_session_stage(const struct wn_run *run, struct wn_session *s, struct wn_kv_cache *cache,
                           const struct wn_kv_rows *rows, int64_t t0, int64_t T) {
  struct wn_room_stage *room = &s->room->stage;
  struct wn_kv_cache *stage = &room->cache;
  struct wn_kv_shape shape = cache->shape;
  shape.capacity = cache->count + T;
  wn_kv_cache_place(&shape, room->memory, room->memory_host, stage);
  if (!run->measuring) {
    if (!cache->sorted) WN_TRY(wn_kv_cache_positions(s->ctx, cache));
    wn_kv_cache_order(cache, room->slots);
    WN_TRY(wn_kv_cache_gather(&run->exec, cache, room->slots, room->slots_shown, cache->count, stage));
  }
  stage->count = cache->count;
  stage->seen = cache->seen;
  return run->measuring ? WN_OK : wn_kv_cache_append(&run->exec, stage, rows, t0, T, NULL);
}

wn_status wn_session_unstage(const struct wn_run *run, struct wn_session *s, const int32_t *slots, int64_t n,
                             struct wn_kv_cache *cache) {
  wn_kv_cache_reset(cache);
  WN_TRY(wn_kv_cache_gather(&run->exec, &s->room->stage.cache, slots, s->room->stage.slots_shown, n, cache));
  cache->count = n;
  cache->seen = s->room->stage.cache.seen;
  return WN_OK;
}
