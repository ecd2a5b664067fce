/* The cache of one layer: one allocation. */
#include "kv/cache.h"

#include <string.h>

#include "attention/registry.h"
#include "base/arrays.h"
#include "base/memory.h"
#include "kv/policy.h"

/* Of an element of k and v. */
static size_t cache_key_bytes(const struct wn_kv_shape *s) {
  return s->half ? sizeof(uint16_t) : wn_dtype_size(s->dtype);
}

static const struct wn_memory *cache_memory(const struct wn_kv_shape *s) {
  return s->memory ? s->memory : &wn_host_memory;
}

/* own, host: the backend's arrays and the host's, one and the same where the backend's memory is the host's. */
static void cache_lay(const struct wn_kv_shape *s, struct wn_arrays *own, struct wn_arrays *host,
                      struct wn_kv_cache *out) {
  const size_t e = wn_dtype_size(s->dtype), key = cache_key_bytes(s);
  const bool apart = own != host;
  const struct wn_array rows[] = {
      {"keys", true, WN_DIMS(s->B, s->Hkv, s->capacity, s->D), key, &out->k},
      {"values", true, WN_DIMS(s->B, s->Hkv, s->capacity, s->D), key, &out->v},
      {"selecting keys", s->bilinear, WN_DIMS(s->B, s->selections, s->capacity, s->D), e, &out->sk},
      {"selections", true, WN_DIMS(s->B, s->selections, s->capacity), e, &out->f},
      {"positions shown", apart, WN_DIMS(s->B, s->groups, s->capacity), sizeof *out->at, &out->at_shown},
  };
  const struct wn_array notes[] = {
      {"positions", true, WN_DIMS(s->B, s->groups, s->capacity), sizeof *out->at, &out->at},
      {"notes", true, WN_DIMS(s->B, s->groups, s->notes, s->capacity), e, &out->notes},
      {"selections read", apart && s->groups > 0, WN_DIMS(s->B, s->selections, s->capacity), e, &out->f_read},
  };
  WN_ARRAYS_LAY(own, rows);
  WN_ARRAYS_LAY(host, notes);
  if (!apart) out->at_shown = out->at, out->f_read = out->f;
}

void wn_kv_shape_of(const wn_attention_config *attention, int64_t kv_heads, int64_t head_size, int64_t B,
                    int64_t capacity, wn_dtype dtype, const wn_budgets *budgets, struct wn_kv_shape *out) {
  *out = (struct wn_kv_shape){.B = B,
                              .Hkv = kv_heads,
                              .D = head_size,
                              .capacity = capacity,
                              .dtype = dtype,
                              .selections = wn_attention_selections(attention, kv_heads),
                              .bilinear = attention->selective.enabled && attention->selective.bilinear};
  if (!budgets) return;
  out->groups = wn_policy_groups(budgets, kv_heads, out->selections);
  out->notes = wn_policy_notes(budgets);
}

void wn_kv_shape_of_heads(struct wn_kv_shape *shape, int64_t g0, int64_t n) {
  if (shape->selections > 1) shape->selections = n;
  if (shape->groups > 1) shape->groups = n, shape->first_group = g0;
  shape->Hkv = n;
}

bool wn_kv_shape_bytes(const struct wn_kv_shape *shape, size_t *bytes, size_t *host) {
  struct wn_arrays own = {0}, beside = {0};
  struct wn_kv_cache unused;
  cache_lay(shape, &own, cache_memory(shape)->host ? &own : &beside, &unused);
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
  const wn_status status = cache_memory(s)->allocate(ctx, "key-value cache", bytes - host, &base);
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
  cache_lay(s, &own, cache_memory(s)->host ? &own : &beside, out);
  out->bytes = own.bytes + beside.bytes;
  wn_kv_cache_reset(out);
}

void wn_kv_cache_clear(struct wn_kv_cache *cache) {
  cache_memory(&cache->shape)->release(cache->k); /* the allocation's start */
  wn_free(cache->host);
  memset(cache, 0, sizeof *cache);
}

void wn_kv_cache_reset(struct wn_kv_cache *cache) {
  cache->count = cache->seen = 0;
  cache->sorted = true;
}

/* --- arrays by slot --- */

/* [B,rows,capacity,width] of elements; a group of heads has rows/P of its rows. */
struct slots {
  char *data;
  int64_t rows, width;
  size_t bytes;    /* of one slot */
  bool half, host; /* of half floats; in the host's memory, whatever the backend's */
};
enum { ARRAYS_MAX = 6 };

static int cache_arrays_of(const struct wn_kv_cache *c, struct slots out[ARRAYS_MAX]) {
  const struct wn_kv_shape *s = &c->shape;
  const size_t element = wn_dtype_size(s->dtype), key = (size_t)s->D * cache_key_bytes(s);
  const struct slots all[ARRAYS_MAX] = {
      {c->k, s->Hkv, s->D, key, s->half, false},
      {c->v, s->Hkv, s->D, key, s->half, false},
      {c->sk, s->selections, s->D, (size_t)s->D * element, false, false},
      {c->f, s->selections, 1, element, false, false},
      {(char *)c->at, s->groups, 1, sizeof *c->at, false, true},
      {c->notes, s->groups * s->notes, 1, element, false, true},
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

static int64_t cache_groups_of(const struct wn_kv_cache *c) {
  return c->shape.groups > 0 ? c->shape.groups : 1;
}

/* Operations read positions from here on. Where tokens are in order nobody asks for them. */
static wn_status cache_show_positions(wn_context *ctx, const struct wn_kv_cache *cache) {
  const struct wn_kv_shape *s = &cache->shape;
  if (cache->at_shown == cache->at || (cache->sorted && cache->seen == cache->count)) return WN_OK;
  const size_t bytes = (size_t)(s->B * s->groups * s->capacity) * sizeof *cache->at;
  return cache_memory(s)->copy_in(ctx, cache->at_shown, cache->at, bytes);
}

/* T new slots of an array of the backend's: rows t0.. of x, or zeros where x is NULL. */
static wn_status cache_put(const struct wn_exec *exec, const struct wn_kv_cache *cache, const struct slots *to,
                           const void *x, struct wn_stride s_x, int64_t t0, int64_t T) {
  return wn_op_gather_forward(exec, &(struct wn_gather){.B = cache->shape.B,
                                                        .H = to->rows,
                                                        .T = T,
                                                        .D = to->width,
                                                        .x = wn_element(x, t0 * s_x.t, cache->shape.dtype),
                                                        .s_x = s_x,
                                                        .y_half = to->half,
                                                        .y = cache_slot(cache, to, 0, cache->count),
                                                        .s_y = cache_stride(cache, to)});
}

wn_status wn_kv_cache_append(const struct wn_exec *exec, struct wn_kv_cache *cache, const struct wn_kv_rows *r,
                             int64_t t0, int64_t T) {
  const struct wn_kv_shape *s = &cache->shape;
  struct slots arrays[ARRAYS_MAX];
  const int n = cache_arrays_of(cache, arrays);
  for (int i = 0; i < n; i++) {
    const struct slots *to = &arrays[i];
    if (to->data == cache->k) WN_TRY(cache_put(exec, cache, to, r->k, r->s_k, t0, T));
    if (to->data == cache->v) WN_TRY(cache_put(exec, cache, to, r->v, r->s_v, t0, T));
    if (to->data == cache->sk) WN_TRY(cache_put(exec, cache, to, r->sk, r->s_sk, t0, T));
    if (to->data == cache->f) WN_TRY(cache_put(exec, cache, to, NULL, (struct wn_stride){0}, 0, T));
    if (to->data == cache->notes)
      for (int64_t row = 0; row < s->B * to->rows; row++)
        memset(cache_slot(cache, to, row, cache->count), 0, (size_t)T * to->bytes);
  }
  for (int64_t row = 0; cache->at && row < s->B * s->groups; row++) {
    const int64_t first = row * s->capacity + cache->count;
    for (int64_t t = 0; t < T; t++) cache->at[first + t] = (int32_t)(cache->seen + t);
  }
  return cache_show_positions(exec->ctx, cache);
}

void wn_kv_cache_advance(struct wn_kv_cache *cache, int64_t T) {
  cache->count += T;
  cache->seen += T;
}

/* Evicts the token in `slot` of sequence b and group p: the last slot's content moves there. */
static wn_status cache_drop(const struct wn_exec *exec, const struct wn_kv_cache *cache, const struct slots *arrays,
                            int n, int64_t b, int64_t p, int64_t slot) {
  const int64_t last = cache->count - 1;
  for (int i = 0; i < n && slot != last; i++) {
    const struct slots *x = &arrays[i];
    const int64_t rows = x->rows / cache_groups_of(cache), first = b * x->rows + p * rows;
    const struct wn_stride stride = cache_stride(cache, x);
    if (x->host) {
      for (int64_t r = first; r < first + rows; r++)
        memcpy(cache_slot(cache, x, r, slot), cache_slot(cache, x, r, last), x->bytes);
      continue;
    }
    const struct wn_gather move = {.B = 1,
                                   .H = rows,
                                   .T = 1,
                                   .D = x->width,
                                   .x_half = x->half,
                                   .y_half = x->half,
                                   .x = cache_slot(cache, x, first, last),
                                   .s_x = stride,
                                   .y = cache_slot(cache, x, first, slot),
                                   .s_y = stride};
    WN_TRY(wn_op_gather_forward(exec, &move));
  }
  return WN_OK;
}

static int64_t cache_choose(const struct wn_kv_cache *cache, const wn_budgets *budgets, int64_t layer, int64_t b,
                            int64_t p, const int32_t *order) {
  const struct wn_kv_shape *s = &cache->shape;
  const int64_t row = b * s->groups + p, selection = s->selections > 1 ? b * s->selections + p : b;
  return wn_policy_choose(
      &(struct wn_policy_held){.budgets = budgets,
                               .layer = layer,
                               .group = s->first_group + p,
                               .count = cache->count,
                               .row = cache->seen,
                               .budget = s->capacity,
                               .dtype = s->dtype,
                               .at = cache->at + row * s->capacity,
                               .order = order ? order + row * cache->count : NULL,
                               .F = wn_element(cache->f_read, selection * s->capacity, s->dtype),
                               .notes = wn_element(cache->notes, row * s->notes * s->capacity, s->dtype),
                               .stride = s->capacity});
}

wn_status wn_kv_cache_evict(const struct wn_exec *exec, struct wn_kv_cache *cache, const wn_budgets *budgets,
                            int64_t layer, int32_t *order) {
  const struct wn_kv_shape *s = &cache->shape;
  const struct wn_policy_row *policy = wn_policy_row(budgets->policy);
  struct slots arrays[ARRAYS_MAX];
  const int n = cache_arrays_of(cache, arrays);
  if (policy->ordered) wn_kv_cache_order(cache, order);
  if (cache->f_read != cache->f && policy->needs & WN_POLICY_SELECTIONS)
    WN_TRY(wn_memory_read(exec->ctx, cache_memory(s), cache->f_read, cache->f,
                          (size_t)(s->B * s->selections * s->capacity) * wn_dtype_size(s->dtype)));
  for (int64_t b = 0; b < s->B; b++)
    for (int64_t p = 0; p < cache_groups_of(cache); p++)
      WN_TRY(cache_drop(exec, cache, arrays, n, b, p,
                        cache_choose(cache, budgets, layer, b, p, policy->ordered ? order : NULL)));
  cache->count--;
  cache->sorted = false;
  return WN_OK;
}

wn_status wn_kv_cache_evict_oldest(const struct wn_exec *exec, struct wn_kv_cache *cache) {
  struct slots arrays[ARRAYS_MAX];
  const int n = cache_arrays_of(cache, arrays);
  for (int64_t row = 0; row < cache->shape.B * cache_groups_of(cache); row++) {
    const int32_t *at = cache->at + row * cache->shape.capacity;
    int64_t oldest = 0;
    for (int64_t j = 1; j < cache->count; j++) oldest = at[j] < at[oldest] ? j : oldest;
    WN_TRY(cache_drop(exec, cache, arrays, n, row / cache_groups_of(cache), row % cache_groups_of(cache), oldest));
  }
  cache->count--;
  cache->sorted = false;
  return WN_OK;
}

void wn_kv_cache_follow(struct wn_kv_cache *cache, const wn_budgets *budgets, const void *sums) {
  const struct wn_kv_shape *s = &cache->shape;
  const struct wn_policy_row *policy = wn_policy_row(budgets->policy);
  for (int64_t row = 0; row < s->B * s->groups; row++)
    policy->follow(&(struct wn_policy_notes){.budgets = budgets,
                                             .row = cache->seen,
                                             .count = cache->count + 1,
                                             .dtype = s->dtype,
                                             .notes = wn_element(cache->notes, row * s->notes * s->capacity, s->dtype),
                                             .stride = s->capacity,
                                             .sums = wn_element(sums, row * s->capacity, s->dtype)});
}

/* The host's arrays of wn_kv_cache_gather. */
static void cache_gather_host(const struct wn_kv_cache *from, const struct slots *x, const int32_t *slots, int64_t n,
                              const struct wn_kv_cache *to, const struct slots *y) {
  const int64_t P = cache_groups_of(from), each = x->rows / P; /* rows of a group */
  for (int64_t r = 0; r < from->shape.B * x->rows; r++)
    for (int64_t j = 0; j < n; j++)
      memcpy(cache_slot(to, y, r, to->count + j), cache_slot(from, x, r, slots[r / each * n + j]), x->bytes);
}

wn_status wn_kv_cache_gather(const struct wn_exec *exec, const struct wn_kv_cache *from, const int32_t *slots,
                             int32_t *shown, int64_t n, struct wn_kv_cache *to) {
  const struct wn_kv_shape *s = &from->shape;
  const int64_t P = cache_groups_of(from);
  const struct wn_memory *memory = cache_memory(s);
  struct slots a[ARRAYS_MAX], z[ARRAYS_MAX];
  const int arrays = cache_arrays_of(from, a);
  cache_arrays_of(to, z);
  if (n == 0) return WN_OK;
  if (!memory->host) WN_TRY(memory->copy_in(exec->ctx, shown, slots, (size_t)(s->B * P * n) * sizeof *slots));
  for (int i = 0; i < arrays; i++) {
    if (a[i].host) {
      cache_gather_host(from, &a[i], slots, n, to, &z[i]);
      continue;
    }
    const struct wn_gather move = {.B = s->B,
                                   .H = a[i].rows,
                                   .T = n,
                                   .D = a[i].width,
                                   .x_half = a[i].half,
                                   .y_half = a[i].half,
                                   .x = a[i].data,
                                   .s_x = cache_stride(from, &a[i]),
                                   .groups = P,
                                   .index = memory->host ? slots : shown,
                                   .y = cache_slot(to, &z[i], 0, to->count),
                                   .s_y = cache_stride(to, &z[i])};
    if (a[i].rows % P == 0) WN_TRY(wn_op_gather_forward(exec, &move));
  }
  return WN_OK;
}

wn_status wn_kv_cache_copy(wn_context *ctx, const struct wn_kv_cache *from, int64_t count, const int64_t *rows,
                           struct wn_kv_cache *to) {
  const struct wn_memory *memory = cache_memory(&from->shape);
  struct slots a[ARRAYS_MAX], z[ARRAYS_MAX];
  const int arrays = cache_arrays_of(from, a);
  cache_arrays_of(to, z);
  const int64_t each = to->shape.B / from->shape.B;
  for (int i = 0; i < arrays; i++) {
    const size_t bytes = (size_t)count * a[i].bytes;
    for (int64_t b = 0; b < to->shape.B; b++)
      for (int64_t r = 0; r < a[i].rows; r++) {
        const char *x = cache_slot(from, &a[i], (rows ? rows[b] : b / each) * a[i].rows + r, 0);
        WN_TRY(
            (a[i].host ? &wn_host_memory : memory)->copy(ctx, cache_slot(to, &z[i], b * a[i].rows + r, 0), x, bytes));
      }
  }
  to->count = count;
  to->seen = from->seen - (from->count - count);
  to->sorted = from->sorted;
  return WN_OK;
}

/* Heap sort by position: in place, O(n log n) in the worst case too. */
static void cache_sift(int32_t *slot, int64_t root, int64_t n, const int32_t *at) {
  for (int64_t child; (child = 2 * root + 1) < n; root = child) {
    if (child + 1 < n && at[slot[child + 1]] > at[slot[child]]) child++;
    if (at[slot[root]] >= at[slot[child]]) return;
    const int32_t x = slot[root];
    slot[root] = slot[child];
    slot[child] = x;
  }
}

void wn_kv_cache_order(const struct wn_kv_cache *cache, int32_t *slots) {
  const int64_t n = cache->count, capacity = cache->shape.capacity;
  for (int64_t row = 0; row < cache->shape.B * cache_groups_of(cache); row++) {
    int32_t *slot = slots + row * n;
    for (int64_t j = 0; j < n; j++) slot[j] = (int32_t)j;
    if (cache->sorted || !cache->at) continue;
    const int32_t *at = cache->at + row * capacity;
    for (int64_t root = n / 2; root-- > 0;) cache_sift(slot, root, n, at);
    for (int64_t end = n; end-- > 1;) {
      const int32_t x = slot[0];
      slot[0] = slot[end];
      slot[end] = x;
      cache_sift(slot, 0, end, at);
    }
  }
}

void wn_kv_cache_bind(const struct wn_kv_cache *cache, int64_t T, struct wn_attention *out) {
  const struct wn_kv_shape *s = &cache->shape;
  const struct wn_stride stride = {s->Hkv * s->capacity * s->D, s->D, s->capacity * s->D};
  out->Tk = cache->count + T;
  out->k = cache->k;
  out->v = cache->v;
  out->s_k = out->s_v = stride;
  out->half = s->half;
  if (cache->sk) {
    out->sel.sk = cache->sk;
    out->sel.s_sk = (struct wn_stride){s->selections * s->capacity * s->D, s->D, s->capacity * s->D};
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
