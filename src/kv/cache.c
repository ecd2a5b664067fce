/* The cache of one layer (cache.h): one allocation, and a second one on the host if the backend's memory is another. */
#include "kv/cache.h"

#include <string.h>

#include "attention/registry.h"
#include "backends/backends.h"
#include "base/arrays.h"
#include "base/memory.h"
#include "kv/policy.h"

/* Bytes of one token's key or value in one head. */
static size_t cache_row_bytes(const struct wn_kv_shape *s, wn_gguf_type type) {
  return wn_stored_bytes(type, s->dtype, s->D);
}

/* Lays out the arrays. own: in the backend's memory; host: on the host. They are one if that memory is the host's. */
static void cache_lay(const struct wn_kv_shape *s, struct wn_arrays *own, struct wn_arrays *host,
                      struct wn_kv_cache *out) {
  const size_t e = wn_dtype_size(s->dtype), key = cache_row_bytes(s, s->k_type), value = cache_row_bytes(s, s->v_type);
  const bool apart = own != host;
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(out->k, key, "keys", true, WN_DIMS(s->B, s->Hkv, s->capacity)),
      WN_ARRAY_SIZED(out->v, value, "values", true, WN_DIMS(s->B, s->Hkv, s->capacity)),
      WN_ARRAY_SIZED(out->sk, e, "selecting keys", s->bilinear, WN_DIMS(s->B, s->selections, s->capacity, s->D)),
      WN_ARRAY_SIZED(out->f, e, "selections", true, WN_DIMS(s->B, s->selections, s->capacity)),
      WN_ARRAY_SIZED(out->numbers, e, "numbers of keys", true, WN_DIMS(s->B, s->Hkv, s->width, s->capacity)),
      WN_ARRAY_FOR(out->total, "running sums", s->width > s->gates, WN_DIMS(s->gates, s->B, s->Hkv)),
      WN_ARRAY_FOR(out->next, "running sums", s->width > s->gates, WN_DIMS(s->gates, s->B, s->Hkv)),
      WN_ARRAY_SIZED(out->at_shown, sizeof *out->at, "positions", true, WN_DIMS(s->B, s->groups, s->capacity)),
      WN_ARRAY_SIZED(out->notes, e, "notes", true, WN_DIMS(s->B, s->groups, s->notes, s->capacity)),
      WN_ARRAY_SIZED(out->index_shown, sizeof *out->index, "slots that are chosen", s->asked, WN_DIMS(s->B, s->groups)),
  };
  const struct wn_array read[] = {
      WN_ARRAY_FOR(out->at, "positions read", apart, WN_DIMS(s->B, s->groups, s->capacity)),
      WN_ARRAY_FOR(out->order, "order of the slots", s->asked, WN_DIMS(s->capacity)),
      WN_ARRAY_FOR(out->index, "chosen slots", apart && s->asked, WN_DIMS(s->B, s->groups)),
      WN_ARRAY_SIZED(out->f_read, e, "selections read", apart && s->asked, WN_DIMS(s->B, s->selections, s->capacity)),
      WN_ARRAY_SIZED(out->numbers_read, e, "numbers", apart && s->asked, WN_DIMS(s->B, s->Hkv, s->width, s->capacity)),
      WN_ARRAY_SIZED(out->notes_read, e, "notes read", apart && s->asked,
                     WN_DIMS(s->B, s->groups, s->notes, s->capacity)),
      WN_ARRAY_SIZED(out->k_read, key, "keys read", apart && s->asked_keys, WN_DIMS(s->B, s->Hkv, s->capacity)),
      WN_ARRAY_SIZED(out->v_read, value, "values read", apart && s->asked_values, WN_DIMS(s->B, s->Hkv, s->capacity)),
      WN_ARRAY_SIZED(out->sums_read, e, "sums read", apart && s->asked, WN_DIMS(s->B, s->groups, s->capacity)),
  };
  WN_ARRAYS_LAY(own, rows);
  WN_ARRAYS_LAY(host, read);
  if (apart) return;
  out->at = out->at_shown, out->index = out->index_shown, out->f_read = out->f, out->notes_read = out->notes;
  out->k_read = out->k, out->v_read = out->v, out->numbers_read = out->numbers;
}

bool wn_kv_shape_bytes(const struct wn_kv_shape *shape, size_t *bytes, size_t *host) {
  struct wn_arrays own = {0}, beside = {0};
  struct wn_kv_cache unused;
  cache_lay(shape, &own, wn_kv_memory(shape)->host ? &own : &beside, &unused);
  *bytes = own.bytes + beside.bytes;
  if (host) *host = beside.bytes;
  return !own.failed && !beside.failed;
}

wn_status wn_kv_cache_init(wn_context *ctx, const struct wn_kv_shape *s, struct wn_kv_cache *out) {
  size_t bytes, host;
  memset(out, 0, sizeof *out);
  if (!wn_kv_shape_bytes(s, &bytes, &host))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a cache of %lld tokens for %lld sequences does not fit in memory",
                   (long long)s->capacity, (long long)s->B);
  void *base, *beside;
  WN_TRY(wn_alloc(ctx, "key-value cache", host, &beside));
  const wn_status status = wn_kv_memory(s)->allocate(ctx, "key-value cache", bytes - host, &base);
  if (status != WN_OK) {
    wn_free(beside);
    return status;
  }
  wn_kv_cache_place(s, base, beside, out);
  return WN_OK;
}

void wn_kv_cache_place(const struct wn_kv_shape *s, void *base, void *host, struct wn_kv_cache *out) {
  struct wn_arrays own = {.base = base}, beside = {.base = host};
  *out = (struct wn_kv_cache){.shape = *s, .host = host};
  cache_lay(s, &own, wn_kv_memory(s)->host ? &own : &beside, out);
  out->bytes = own.bytes + beside.bytes;
  wn_kv_cache_reset(out);
}

void wn_kv_cache_clear(struct wn_kv_cache *cache) {
  wn_kv_memory(&cache->shape)->release(cache->k); /* k is where the allocation starts */
  wn_free(cache->host);
  memset(cache, 0, sizeof *cache);
}

void wn_kv_cache_reset(struct wn_kv_cache *cache) {
  cache->count = cache->seen = 0;
  cache->sorted = cache->at_known = true;
  cache->at_is_shown = cache->at_entered = false;
}

/* --- arrays by slot --- */

/* An array [B,rows,capacity,width]; a group of heads has rows/P of its rows. */
struct slots {
  char *data;
  int64_t rows, width;
  size_t bytes;      /* size of one slot */
  wn_gguf_type type; /* how it is stored */
};
enum { ARRAYS_MAX = 6 };
_Static_assert((int)WN_POLICY_NUMBERS_MAX == (int)WN_SCORE_MAPS_MAX, "every map of a call");

/* All arrays by slot except the positions. */
static int cache_arrays_of(const struct wn_kv_cache *c, struct slots out[ARRAYS_MAX]) {
  const struct wn_kv_shape *s = &c->shape;
  const size_t element = wn_dtype_size(s->dtype);
  const struct slots all[ARRAYS_MAX] = {
      {.data = c->k, .rows = s->Hkv, .width = s->D, .bytes = cache_row_bytes(s, s->k_type), .type = s->k_type},
      {.data = c->v, .rows = s->Hkv, .width = s->D, .bytes = cache_row_bytes(s, s->v_type), .type = s->v_type},
      {.data = c->sk, .rows = s->selections, .width = s->D, .bytes = (size_t)s->D * element},
      {.data = c->f, .rows = s->selections, .width = 1, .bytes = element},
      {.data = c->notes, .rows = s->groups * s->notes, .width = 1, .bytes = element},
      {.data = c->numbers, .rows = s->Hkv * s->width, .width = 1, .bytes = element},
  };
  int n = 0;
  for (int i = 0; i < ARRAYS_MAX; i++)
    if (all[i].data) out[n++] = all[i];
  return n;
}

/* Slot j of row r of the B * rows. */
static char *cache_slot(const struct wn_kv_cache *c, const struct slots *x, int64_t r, int64_t j) {
  return x->data + (size_t)(r * c->shape.capacity + j) * x->bytes;
}

static struct wn_stride cache_stride(const struct wn_kv_cache *c, const struct slots *x) {
  const int64_t capacity = c->shape.capacity;
  return (struct wn_stride){x->rows * capacity * x->width, x->width, capacity * x->width};
}

int64_t wn_kv_cache_groups(const struct wn_kv_cache *c) {
  return c->shape.groups > 0 ? c->shape.groups : 1;
}

static bool cache_apart(const struct wn_kv_cache *cache) {
  return cache->at_shown != cache->at;
}

static size_t cache_positions_bytes(const struct wn_kv_cache *cache) {
  const struct wn_kv_shape *s = &cache->shape;
  return (size_t)(s->B * s->groups * s->capacity) * sizeof *cache->at;
}

/* Brings the backend's copy of the positions up to date, for operations that read them. */
static wn_status cache_show_positions(wn_context *ctx, struct wn_kv_cache *cache) {
  if (!cache_apart(cache) || cache->at_is_shown) return WN_OK;
  WN_TRY(wn_kv_memory(&cache->shape)->copy_in(ctx, cache->at_shown, cache->at, cache_positions_bytes(cache)));
  cache->at_is_shown = true;
  return WN_OK;
}

wn_status wn_kv_cache_positions(wn_context *ctx, const struct wn_kv_cache *cache) {
  struct wn_kv_cache *c =
      (struct wn_kv_cache *)(uintptr_t)cache; /* const means the tokens held, not what the host knows of them */
  if (!cache_apart(cache) || cache->at_known) return WN_OK;
  WN_TRY(wn_memory_read(ctx, wn_kv_memory(&cache->shape), c->at, c->at_shown, cache_positions_bytes(cache)));
  c->at_known = true;
  return WN_OK;
}

/* Stores the positions of T tokens that enter. */
static wn_status cache_enter_positions(wn_context *ctx, struct wn_kv_cache *cache, int64_t T) {
  const struct wn_kv_shape *s = &cache->shape;
  const bool entered = cache->at_entered && T == 1;
  if (!cache->at) return WN_OK;
  const bool shown = !entered && !cache->at_known; /* the backend's positions are then the only ones */
  cache->at_entered = false;
  for (int64_t row = 0; (shown || cache->at_known) && row < s->B * s->groups; row++) {
    const int64_t first = row * s->capacity + cache->count;
    for (int64_t t = 0; t < T; t++) cache->at[first + t] = (int32_t)(cache->seen + t);
    if (shown)
      WN_TRY(wn_kv_memory(s)->copy_in(ctx, cache->at_shown + first, cache->at + first, (size_t)T * sizeof *cache->at));
  }
  if (shown) return WN_OK;
  if (!entered) cache->at_is_shown = false;
  /* While tokens are in order nobody reads positions. */
  return cache->sorted && cache->seen == cache->count ? WN_OK : cache_show_positions(ctx, cache);
}

/* Fills T new slots of an array in the backend's memory: rows t0.. of x, or zeros if x is NULL; now or later. */
static wn_status cache_put(const struct wn_exec *exec, const struct wn_kv_cache *cache, const struct slots *to,
                           const void *x, struct wn_stride s_x, int64_t t0, int64_t T, struct wn_kv_later *later) {
  const struct wn_gather put = {.B = cache->shape.B,
                                .H = to->rows,
                                .T = T,
                                .D = to->width,
                                .x = wn_element(x, t0 * s_x.t, cache->shape.dtype),
                                .s_x = s_x,
                                .y_type = to->type,
                                .y = cache_slot(cache, to, 0, cache->count),
                                .s_y = cache_stride(cache, to)};
  if (!later) return wn_op_gather_forward(exec, &put);
  if (later->count == WN_KV_LATER) WN_TRY(wn_kv_later_run(later));
  later->exec[later->count] = *exec;
  later->gather[later->count++] = put;
  return WN_OK;
}

wn_status wn_kv_cache_append(const struct wn_exec *exec, struct wn_kv_cache *cache, const struct wn_kv_rows *r,
                             int64_t t0, int64_t T, struct wn_kv_later *later) {
  struct slots arrays[ARRAYS_MAX];
  const int n = cache_arrays_of(cache, arrays);
  for (int i = 0; i < n; i++) {
    const struct slots *to = &arrays[i];
    if (to->data == cache->k) WN_TRY(cache_put(exec, cache, to, r->k, r->s_k, t0, T, later));
    if (to->data == cache->v) WN_TRY(cache_put(exec, cache, to, r->v, r->s_v, t0, T, later));
    if (to->data == cache->sk) WN_TRY(cache_put(exec, cache, to, r->sk, r->s_sk, t0, T, later));
    if (to->data == cache->f) WN_TRY(cache_put(exec, cache, to, NULL, (struct wn_stride){0}, 0, T, later));
    if (to->data == cache->notes) WN_TRY(cache_put(exec, cache, to, NULL, (struct wn_stride){0}, 0, T, later));
    if (to->data == cache->numbers) WN_TRY(wn_kv_numbers_put(exec, cache, r, t0, T));
  }
  return cache_enter_positions(exec->ctx, cache, T);
}

void wn_kv_cache_advance(struct wn_kv_cache *cache, int64_t T) {
  wn_kv_numbers_advance(cache);
  cache->count += T;
  cache->seen += T;
}

wn_status wn_kv_cache_forget(wn_context *ctx, struct wn_kv_cache *cache, int64_t T) {
  WN_TRY(wn_kv_numbers_take_back(ctx, cache, NULL, cache->count - T, T, cache));
  cache->count -= T;
  cache->seen -= T;
  return WN_OK;
}

size_t wn_kv_cache_slot_bytes(const struct wn_kv_cache *cache) {
  struct slots arrays[ARRAYS_MAX];
  size_t bytes = 0;
  const int n = cache_arrays_of(cache, arrays);
  for (int i = 0; i < n; i++) bytes += (size_t)arrays[i].rows * arrays[i].bytes;
  return bytes;
}

struct wn_kv_slot wn_kv_cache_save_oldest(const struct wn_kv_cache *cache, void *to) {
  struct slots arrays[ARRAYS_MAX];
  const int n = cache_arrays_of(cache, arrays);
  char *at = to;
  int64_t oldest = 0;
  for (int64_t j = 1; j < cache->count; j++)
    if (cache->at[j] < cache->at[oldest]) oldest = j;
  for (int i = 0; i < n; i++)
    for (int64_t r = 0; r < arrays[i].rows; r++, at += arrays[i].bytes)
      memcpy(at, cache_slot(cache, &arrays[i], r, oldest), arrays[i].bytes);
  return (struct wn_kv_slot){oldest, cache->at[oldest], cache->sorted};
}

void wn_kv_cache_undo(struct wn_kv_cache *cache, struct wn_kv_slot saved, const void *from) {
  struct slots arrays[ARRAYS_MAX];
  const int n = cache_arrays_of(cache, arrays);
  const int64_t last = cache->count - 1;
  const char *at = from;
  (void)wn_kv_numbers_take_back(NULL, cache, NULL, last, 1, cache); /* on the host, where nothing can fail */
  for (int i = 0; i < n; i++)
    for (int64_t r = 0; r < arrays[i].rows; r++, at += arrays[i].bytes) {
      char *slot = cache_slot(cache, &arrays[i], r, saved.slot);
      if (saved.slot != last) memcpy(cache_slot(cache, &arrays[i], r, last), slot, arrays[i].bytes);
      memcpy(slot, at, arrays[i].bytes);
    }
  cache->at[last] = cache->at[saved.slot];
  cache->at[saved.slot] = saved.at;
  cache->sorted = saved.sorted;
  cache->seen--;
}

struct wn_policy_rows wn_kv_cache_rows(const struct wn_kv_cache *cache, bool values, const void *x, int64_t row) {
  const struct wn_kv_shape *s = &cache->shape;
  const struct wn_policy_rows all = {
      .data = x, .head = s->capacity * s->D, .token = s->D, .type = values ? s->v_type : s->k_type};
  return wn_policy_rows_from(all, s->dtype, row * (s->Hkv / wn_kv_cache_groups(cache)) * all.head);
}

/* Evicts by a rule on the given values: the last slot's content moves to the slot that becomes free. */
static wn_status cache_evict_by(const struct wn_exec *exec, struct wn_kv_cache *cache, const struct wn_evict_rule *rule,
                                const void *values, void *room) {
  const struct wn_kv_shape *s = &cache->shape;
  struct slots arrays[ARRAYS_MAX];
  struct wn_evict_slots move[WN_EVICT_ARRAYS];
  struct wn_evict evict = {.B = s->B,
                           .P = wn_kv_cache_groups(cache),
                           .N = cache->count,
                           .capacity = s->capacity,
                           .rule = *rule,
                           .row = cache->seen,
                           .first_group = s->first_group,
                           .at = cache->at_shown,
                           .values = values,
                           .room = room,
                           .index = rule->by == WN_EVICT_GIVEN ? cache->index_shown : NULL,
                           .count = cache_arrays_of(cache, arrays),
                           .slots = move,
                           .heads = s->Hkv / wn_kv_cache_groups(cache),
                           .D = s->D,
                           .k = wn_kv_cache_rows(cache, false, cache->k, 0),
                           .v = wn_kv_cache_rows(cache, true, cache->v, 0)};
  for (int i = 0; i < evict.count; i++)
    move[i] = (struct wn_evict_slots){arrays[i].data, arrays[i].rows / evict.P, arrays[i].bytes};
  WN_TRY(cache_show_positions(exec->ctx, cache));
  WN_TRY(wn_op_evict_forward(exec, &evict));
  cache->at_entered = true;
  cache->count--;
  cache->sorted = false;
  if (!cache_apart(cache)) return WN_OK;
  if (cache->at_known &&
      (rule->by == WN_EVICT_OLDEST || rule->by == WN_EVICT_GIVEN)) { /* the host can compute the choice as well */
    struct wn_exec host = *exec;
    host.backend = wn_backend_ref();
    evict.at = cache->at, evict.index = cache->index, evict.count = 0;
    return wn_op_evict_forward(&host, &evict);
  }
  cache->at_known = false;
  return WN_OK;
}

struct wn_policy_held wn_kv_cache_held(const struct wn_kv_cache *cache, const struct wn_kv_read *read,
                                       const struct wn_evict_rule *rule, int64_t K, int64_t row) {
  const struct wn_kv_shape *s = &cache->shape;
  const int64_t selection = s->selections > 1 ? row : row / s->groups;
  struct wn_policy_held held = {.rule = rule,
                                .budgets = rule->budgets,
                                .layer = rule->layer,
                                .group = s->first_group + row % s->groups,
                                .count = cache->count,
                                .row = cache->seen,
                                .budget = K,
                                .dtype = s->dtype,
                                .at = cache->at + row * s->capacity,
                                .F = wn_element(read->f, selection * s->capacity, s->dtype),
                                .notes = wn_element(read->notes, row * s->notes * s->capacity, s->dtype),
                                .stride = s->capacity,
                                .heads = s->Hkv / s->groups,
                                .D = s->D,
                                .k = wn_kv_cache_rows(cache, false, read->k, row),
                                .v = wn_kv_cache_rows(cache, true, read->v, row),
                                .rows = s->dtype,
                                .numbers = (int)s->keyed};
  wn_kv_numbers_held(cache, read->numbers, row, &held);
  return held;
}

/* What a policy on the host sees of a group of a full cache. */
static struct wn_policy_held cache_held(const struct wn_kv_cache *cache, const struct wn_evict_rule *rule,
                                        int64_t row) {
  const struct wn_kv_read read = {cache->k_read, cache->v_read, cache->f_read, cache->notes_read, cache->numbers_read};
  struct wn_policy_held held = wn_kv_cache_held(cache, &read, rule, cache->shape.capacity, row);
  if (!wn_policy_row(rule->budgets->policy)->ordered) return held;
  for (int64_t j = 0; j < cache->count; j++) cache->order[j] = (int32_t)j;
  wn_evict_sort(cache->count, cache->order, held.at);
  held.order = cache->order;
  return held;
}

/* Asks a policy of the caller's own about all groups at once. */
static wn_status cache_ask_own(wn_context *ctx, struct wn_kv_cache *cache, const struct wn_evict_rule *rule) {
  const struct wn_kv_shape *s = &cache->shape;
  const int64_t rows = s->B * s->groups, n = cache->count;
  struct wn_policy_held *held;
  double *scores;
  const struct wn_array of[] = {WN_ARRAY_FOR(held, "groups", true, WN_DIMS(rows)),
                                WN_ARRAY_FOR(scores, "scores", true, WN_DIMS(rows, n))};
  struct wn_arrays arrays = {0};
  WN_TRY(WN_ARRAYS_CREATE(ctx, &arrays, "what a policy is asked", of));
  for (int64_t row = 0; row < rows; row++) held[row] = cache_held(cache, rule, row);
  const wn_status status = wn_policy_ask_layer(ctx, held, s->B, s->groups, scores);
  for (int64_t row = 0; row < rows && status == WN_OK; row++) {
    held[row].scores = scores + row * n;
    cache->index[row] = (int32_t)wn_evict_choose(&held[row]);
  }
  wn_arrays_clear(&arrays);
  return status;
}

/* Asks a policy with a function of its own; its choice goes to cache->index. */
static wn_status cache_ask(const struct wn_exec *exec, struct wn_kv_cache *cache, const wn_budgets *budgets,
                           const struct wn_evict_rule *rule) {
  const struct wn_kv_shape *s = &cache->shape;
  const struct wn_memory *memory = wn_kv_memory(s);
  const int64_t rows = s->B * s->groups;
  const size_t e = wn_dtype_size(s->dtype), each = (size_t)s->capacity * e;
  if (cache->f_read != cache->f)
    WN_TRY(wn_memory_read(exec->ctx, memory, cache->f_read, cache->f, (size_t)(s->B * s->selections) * each));
  const size_t slots = (size_t)(s->B * s->Hkv * s->capacity);
  if (cache->numbers_read != cache->numbers)
    WN_TRY(wn_memory_read(exec->ctx, memory, cache->numbers_read, cache->numbers, slots * (size_t)s->width * e));
  if (cache->k_read && cache->k_read != cache->k)
    WN_TRY(wn_memory_read(exec->ctx, memory, cache->k_read, cache->k, slots * cache_row_bytes(s, s->k_type)));
  if (cache->v_read && cache->v_read != cache->v)
    WN_TRY(wn_memory_read(exec->ctx, memory, cache->v_read, cache->v, slots * cache_row_bytes(s, s->v_type)));
  if (cache->notes_read != cache->notes)
    WN_TRY(wn_memory_read(exec->ctx, memory, cache->notes_read, cache->notes, (size_t)(rows * s->notes) * each));
  WN_TRY(wn_kv_cache_positions(exec->ctx, cache));
  if (budgets->policy == WN_POLICY_OWN)
    WN_TRY(cache_ask_own(exec->ctx, cache, rule));
  else
    for (int64_t row = 0; row < rows; row++) {
      const struct wn_policy_held held = cache_held(cache, rule, row);
      cache->index[row] = (int32_t)wn_evict_choose(&held);
    }
  if (cache->index == cache->index_shown) return WN_OK;
  return memory->copy_in(exec->ctx, cache->index_shown, cache->index, (size_t)rows * sizeof *cache->index);
}

wn_status wn_kv_cache_evict(const struct wn_exec *exec, struct wn_kv_cache *cache, const wn_budgets *budgets,
                            int64_t layer, void *room) {
  const bool selections = wn_policy_needs(budgets) & WN_POLICY_SELECTIONS;
  struct wn_evict_rule rule;
  wn_policy_rule(budgets, layer, cache->shape.capacity, &rule);
  if (rule.by == WN_EVICT_GIVEN) WN_TRY(cache_ask(exec, cache, budgets, &rule));
  return cache_evict_by(exec, cache, &rule, selections ? cache->f : cache->notes, room);
}

wn_status wn_kv_cache_evict_oldest(const struct wn_exec *exec, struct wn_kv_cache *cache) {
  const struct wn_evict_rule rule = {.by = WN_EVICT_OLDEST};
  return cache_evict_by(exec, cache, &rule, NULL, NULL);
}

/* Updates the notes on the host (wn_policy_follow). */
static wn_status cache_follow_asked(const struct wn_exec *exec, struct wn_kv_cache *cache, const wn_budgets *budgets,
                                    const void *sums) {
  const struct wn_kv_shape *s = &cache->shape;
  const struct wn_memory *memory = wn_kv_memory(s);
  const int64_t rows = s->B * s->groups;
  const size_t each = (size_t)s->capacity * wn_dtype_size(s->dtype), notes = (size_t)(rows * s->notes) * each;
  const bool read = !memory->host;
  if (read) WN_TRY(wn_memory_read(exec->ctx, memory, cache->notes_read, cache->notes, notes));
  if (read) WN_TRY(wn_memory_read(exec->ctx, memory, cache->sums_read, sums, (size_t)rows * each));
  for (int64_t row = 0; row < rows; row++)
    wn_policy_follow(
        &(struct wn_policy_notes){.budgets = budgets,
                                  .row = cache->seen,
                                  .count = cache->count + 1,
                                  .dtype = s->dtype,
                                  .notes = wn_element(cache->notes_read, row * s->notes * s->capacity, s->dtype),
                                  .stride = s->capacity,
                                  .sums = wn_element(read ? cache->sums_read : sums, row * s->capacity, s->dtype)});
  return read ? memory->copy_in(exec->ctx, cache->notes, cache->notes_read, notes) : WN_OK;
}

wn_status wn_kv_cache_follow(const struct wn_exec *exec, struct wn_kv_cache *cache, const wn_budgets *budgets,
                             const void *sums) {
  const struct wn_kv_shape *s = &cache->shape;
  const enum wn_notes_change change = wn_policy_change(budgets);
  const int64_t n = s->notes, rows = s->B * s->groups, count = cache->count + 1;
  if (wn_kv_memory(s)->host || change == WN_NOTES_OWN) return cache_follow_asked(exec, cache, budgets, sums);
  if (change == WN_NOTES_RING)
    return wn_op_gather_forward(
        exec, &(struct wn_gather){.B = rows,
                                  .H = 1,
                                  .T = 1,
                                  .D = count,
                                  .x = sums,
                                  .s_x = {s->capacity, count, count},
                                  .y = wn_element(cache->notes, cache->seen % n * s->capacity, s->dtype),
                                  .s_y = {n * s->capacity, count, count}});
  for (int64_t row = 0; row < (n > 1 ? rows : 1);
       row++) { /* adds whole rows: what slots without a token hold does not matter */
    void *to = wn_element(cache->notes, row * n * s->capacity, s->dtype);
    const void *x = wn_element(sums, row * s->capacity, s->dtype);
    WN_TRY(wn_op_add_forward(exec, &(struct wn_add){.n = (n > 1 ? 1 : rows) * s->capacity, .x = to, .z = x, .y = to}));
  }
  return WN_OK;
}

/* Gathers positions: on the host if it knows them and the slots, else on the backend, as 32-bit words. */
static wn_status cache_gather_positions(const struct wn_exec *exec, struct wn_kv_cache *from, const int32_t *slots,
                                        const int32_t *shown, int64_t n, struct wn_kv_cache *to) {
  const struct wn_kv_shape *s = &from->shape;
  const int64_t rows = s->B * s->groups, capacity = to->shape.capacity;
  if (!from->at) return WN_OK;
  if (slots && from->at_known && to->at_known) {
    for (int64_t row = 0; row < rows; row++)
      for (int64_t j = 0; j < n; j++)
        to->at[row * capacity + to->count + j] = from->at[row * s->capacity + slots[row * n + j]];
    to->at_is_shown = false;
    return WN_OK;
  }
  struct wn_exec words = *exec;
  words.dtype = WN_F32;
  WN_TRY(cache_show_positions(exec->ctx, from));
  if (to->count > 0) WN_TRY(cache_show_positions(exec->ctx, to));
  to->at_known = false;
  to->at_is_shown = true;
  return wn_op_gather_forward(&words, &(struct wn_gather){.B = rows,
                                                          .H = 1,
                                                          .T = n,
                                                          .D = 1,
                                                          .x = from->at_shown,
                                                          .s_x = {s->capacity, 1, s->capacity},
                                                          .index = shown,
                                                          .y = to->at_shown + to->count,
                                                          .s_y = {capacity, 1, capacity}});
}

wn_status wn_kv_cache_gather(const struct wn_exec *exec, struct wn_kv_cache *from, const int32_t *slots, int32_t *shown,
                             int64_t n, struct wn_kv_cache *to) {
  const struct wn_kv_shape *s = &from->shape;
  const int64_t P = wn_kv_cache_groups(from);
  const struct wn_memory *memory = wn_kv_memory(s);
  struct slots a[ARRAYS_MAX], z[ARRAYS_MAX];
  const int arrays = cache_arrays_of(from, a);
  cache_arrays_of(to, z);
  if (to->total) WN_TRY(memory->copy(exec->ctx, to->total, from->total, wn_kv_sums_bytes(s)));
  if (n == 0) return WN_OK;
  if (!memory->host && slots) WN_TRY(memory->copy_in(exec->ctx, shown, slots, (size_t)(s->B * P * n) * sizeof *slots));
  for (int i = 0; i < arrays; i++) {
    const struct wn_gather move = {.B = s->B,
                                   .H = a[i].rows,
                                   .T = n,
                                   .D = a[i].width,
                                   .x_type = a[i].type,
                                   .y_type = a[i].type,
                                   .x = a[i].data,
                                   .s_x = cache_stride(from, &a[i]),
                                   .groups = P,
                                   .index = memory->host ? slots : shown,
                                   .y = cache_slot(to, &z[i], 0, to->count),
                                   .s_y = cache_stride(to, &z[i])};
    if (a[i].rows % P == 0) WN_TRY(wn_op_gather_forward(exec, &move));
  }
  return cache_gather_positions(exec, from, slots, shown, n, to);
}

wn_status wn_kv_cache_copy(wn_context *ctx, const struct wn_kv_cache *from, int64_t count, const int64_t *rows,
                           struct wn_kv_cache *to) {
  const struct wn_memory *memory = wn_kv_memory(&from->shape);
  struct slots a[ARRAYS_MAX], z[ARRAYS_MAX];
  const int arrays = cache_arrays_of(from, a);
  cache_arrays_of(to, z);
  const int64_t each = to->shape.B / from->shape.B, P = from->shape.groups;
  for (int i = 0; i < arrays; i++) {
    const size_t bytes = (size_t)count * a[i].bytes;
    for (int64_t b = 0; b < to->shape.B; b++)
      for (int64_t r = 0; r < a[i].rows; r++) {
        const char *x = cache_slot(from, &a[i], (rows ? rows[b] : b / each) * a[i].rows + r, 0);
        WN_TRY(memory->copy(ctx, cache_slot(to, &z[i], b * a[i].rows + r, 0), x, bytes));
      }
  }
  WN_TRY(wn_kv_cache_positions(ctx, from));
  for (int64_t b = 0; from->at && b < to->shape.B; b++)
    for (int64_t p = 0; p < P; p++)
      memcpy(to->at + (b * P + p) * to->shape.capacity,
             from->at + ((rows ? rows[b] : b / each) * P + p) * from->shape.capacity, (size_t)count * sizeof *to->at);
  WN_TRY(wn_kv_numbers_take_back(ctx, from, rows, count, from->count - count, to));
  to->count = count;
  to->seen = from->seen - (from->count - count);
  to->sorted = from->sorted;
  to->at_known = true;
  to->at_is_shown = to->at_entered = false;
  return WN_OK;
}

void wn_kv_cache_order(const struct wn_kv_cache *cache, int32_t *slots) {
  const int64_t n = cache->count, capacity = cache->shape.capacity;
  for (int64_t row = 0; row < cache->shape.B * wn_kv_cache_groups(cache); row++) {
    int32_t *slot = slots + row * n;
    for (int64_t j = 0; j < n; j++) slot[j] = (int32_t)j;
    if (cache->sorted || !cache->at) continue;
    wn_evict_sort(n, slot, cache->at + row * capacity);
  }
}

void wn_kv_cache_bind(const struct wn_kv_cache *cache, int64_t T, struct wn_attention *out) {
  const struct wn_kv_shape *s = &cache->shape;
  const struct wn_stride stride = {s->Hkv * s->capacity * s->D, s->D, s->capacity * s->D};
  out->Tk = cache->count + T;
  out->k = cache->k;
  out->v = cache->v;
  out->s_k = out->s_v = stride;
  out->k_type = s->k_type, out->v_type = s->v_type;
  if (cache->sk) {
    out->sel.sk = cache->sk;
    out->sel.s_sk = (struct wn_stride){s->selections * s->capacity * s->D, s->D, s->capacity * s->D};
  }
  int64_t first = 0;
  for (struct wn_score_map *t = out->map; t < out->map + out->maps; t++)
    if (t->kind->keyed_double) {
      t->key = wn_element(cache->numbers, first * s->capacity, s->dtype);
      t->s_key = (struct wn_stride){s->Hkv * s->width * s->capacity, 1, s->width * s->capacity};
      t->s_gate = s->capacity;
      first += t->gates;
    }
  if (cache->f) {
    out->sel.f_in = cache->f;
    out->sel.f_out = cache->f;
    out->sel.f_stride = s->capacity;
  }
  if (!cache->at) return;
  out->slots.groups = s->groups;
  out->slots.stride = s->capacity;
  if (!cache->sorted || cache->seen > cache->count) out->slots.at = cache->at_shown;
}
