/* The cache of one layer: one allocation. */
#include "kv/cache.h"

#include <string.h>

#include "attention/registry.h"
#include "base/arrays.h"
#include "kv/policy.h"
#include "tensor/f16.h"

/* Of an element of k and v. */
static size_t cache_key_bytes(const struct wn_kv_shape *s) {
  return s->half ? sizeof(uint16_t) : wn_dtype_size(s->dtype);
}

static void cache_lay(const struct wn_kv_shape *s, struct wn_arrays *arrays, struct wn_kv_cache *out) {
  const size_t e = wn_dtype_size(s->dtype), key = cache_key_bytes(s);
  const struct wn_array rows[] = {
      {"keys", true, WN_DIMS(s->B, s->Hkv, s->capacity, s->D), key, &out->k},
      {"values", true, WN_DIMS(s->B, s->Hkv, s->capacity, s->D), key, &out->v},
      {"selecting keys", s->bilinear, WN_DIMS(s->B, s->selections, s->capacity, s->D), e, &out->sk},
      {"selections", true, WN_DIMS(s->B, s->selections, s->capacity), e, &out->f},
      {"positions", true, WN_DIMS(s->B, s->groups, s->capacity), sizeof *out->at, &out->at},
      {"notes", true, WN_DIMS(s->B, s->groups, s->notes, s->capacity), e, &out->notes},
  };
  WN_ARRAYS_LAY(arrays, rows);
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

bool wn_kv_shape_bytes(const struct wn_kv_shape *shape, size_t *bytes) {
  struct wn_arrays arrays = {0};
  struct wn_kv_cache unused;
  cache_lay(shape, &arrays, &unused);
  *bytes = arrays.bytes;
  return !arrays.failed;
}

wn_status wn_kv_cache_init(wn_context *ctx, const struct wn_kv_shape *s, struct wn_kv_cache *out) {
  size_t bytes;
  memset(out, 0, sizeof *out);
  if (!wn_kv_shape_bytes(s, &bytes))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a cache of %lld tokens for %lld sequences does not fit in memory",
                   (long long)s->capacity, (long long)s->B);
  void *base;
  WN_TRY(wn_alloc(ctx, "key-value cache", bytes, &base));
  wn_kv_cache_place(s, base, out);
  return WN_OK;
}

void wn_kv_cache_place(const struct wn_kv_shape *s, void *base, struct wn_kv_cache *out) {
  struct wn_arrays arrays = {.base = base};
  *out = (struct wn_kv_cache){.shape = *s};
  cache_lay(s, &arrays, out);
  out->bytes = arrays.bytes;
  wn_kv_cache_reset(out);
}

void wn_kv_cache_clear(struct wn_kv_cache *cache) {
  wn_free(cache->k); /* the allocation's start */
  memset(cache, 0, sizeof *cache);
}

void wn_kv_cache_reset(struct wn_kv_cache *cache) {
  cache->count = cache->seen = 0;
  cache->sorted = true;
}

/* --- arrays by slot --- */

/* [B,rows,capacity,width] of elements; a group of heads has rows/P of its rows, or all where rows < P. */
struct slots {
  char *data;
  int64_t rows;
  size_t bytes; /* of one slot */
};
enum { ARRAYS_MAX = 6 };

static int cache_arrays_of(const struct wn_kv_cache *c, struct slots out[ARRAYS_MAX]) {
  const struct wn_kv_shape *s = &c->shape;
  const size_t element = wn_dtype_size(s->dtype), vector = (size_t)s->D * element;
  const struct slots all[ARRAYS_MAX] = {{c->k, s->Hkv, (size_t)s->D * cache_key_bytes(s)},
                                        {c->v, s->Hkv, (size_t)s->D * cache_key_bytes(s)},
                                        {c->sk, s->selections, vector},
                                        {c->f, s->selections, element},
                                        {(char *)c->at, s->groups, sizeof(int32_t)},
                                        {c->notes, s->groups * s->notes, element}};
  int n = 0;
  for (int i = 0; i < ARRAYS_MAX; i++)
    if (all[i].data) out[n++] = all[i];
  return n;
}

static int64_t cache_groups_of(const struct wn_kv_cache *c) {
  return c->shape.groups > 0 ? c->shape.groups : 1;
}

/* Rows of the array that belong to group p of P: first..first+n-1. */
static int64_t cache_group_rows(const struct slots *x, int64_t P, int64_t p, int64_t *first) {
  const int64_t n = x->rows / P;
  *first = p * n;
  return n;
}

static void cache_copy_rows(const struct wn_kv_cache *cache, int64_t heads, int64_t t0, int64_t T, const void *from,
                            struct wn_stride s, void *to) {
  const struct wn_kv_shape *shape = &cache->shape;
  const size_t element = wn_dtype_size(shape->dtype), row = (size_t)shape->D * element;
  for (int64_t b = 0; b < shape->B; b++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t t = 0; t < T; t++)
        memcpy((char *)to + (size_t)((b * heads + h) * shape->capacity + cache->count + t) * row,
               (const char *)from + (size_t)(b * s.b + (t0 + t) * s.t + h * s.h) * element, row);
}

/* The same into half floats. */
static void cache_halve_rows(const struct wn_kv_cache *cache, int64_t heads, int64_t t0, int64_t T, const void *from,
                             struct wn_stride s, void *to) {
  const struct wn_kv_shape *shape = &cache->shape;
  const int64_t D = shape->D;
  for (int64_t b = 0; b < shape->B; b++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t t = 0; t < T; t++)
        wn_f16_from_f32(D, (const float *)from + b * s.b + (t0 + t) * s.t + h * s.h,
                        (uint16_t *)to + ((b * heads + h) * shape->capacity + cache->count + t) * D);
}

void wn_kv_cache_append(struct wn_kv_cache *cache, const struct wn_kv_rows *r, int64_t t0, int64_t T) {
  const struct wn_kv_shape *s = &cache->shape;
  const size_t element = wn_dtype_size(s->dtype);
  void (*put)(const struct wn_kv_cache *, int64_t, int64_t, int64_t, const void *, struct wn_stride, void *) =
      s->half ? cache_halve_rows : cache_copy_rows;
  put(cache, s->Hkv, t0, T, r->k, r->s_k, cache->k);
  put(cache, s->Hkv, t0, T, r->v, r->s_v, cache->v);
  if (cache->sk) cache_copy_rows(cache, s->selections, t0, T, r->sk, r->s_sk, cache->sk);
  for (int64_t n = 0; cache->f && n < s->B * s->selections; n++)
    memset((char *)cache->f + (size_t)(n * s->capacity + cache->count) * element, 0, (size_t)T * element);
  for (int64_t n = 0; cache->at && n < s->B * s->groups; n++) {
    const int64_t first = n * s->capacity + cache->count;
    for (int64_t t = 0; t < T; t++) cache->at[first + t] = (int32_t)(cache->seen + t);
  }
  for (int64_t n = 0; cache->notes && n < s->B * s->groups * s->notes; n++)
    memset((char *)cache->notes + (size_t)(n * s->capacity + cache->count) * element, 0, (size_t)T * element);
}

void wn_kv_cache_advance(struct wn_kv_cache *cache, int64_t T) {
  cache->count += T;
  cache->seen += T;
}

/* Evicts the token in `slot` of sequence b and group p: the last slot's content moves there. */
static void cache_drop(const struct wn_kv_cache *cache, const struct slots *arrays, int n, int64_t b, int64_t p,
                       int64_t slot) {
  const int64_t capacity = cache->shape.capacity, last = cache->count - 1;
  for (int i = 0; i < n && slot != last; i++) {
    int64_t first;
    const int64_t rows = cache_group_rows(&arrays[i], cache_groups_of(cache), p, &first);
    for (int64_t r = first; r < first + rows; r++) {
      char *at = arrays[i].data + (size_t)((b * arrays[i].rows + r) * capacity) * arrays[i].bytes;
      memcpy(at + (size_t)slot * arrays[i].bytes, at + (size_t)last * arrays[i].bytes, arrays[i].bytes);
    }
  }
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
                               .F = wn_element(cache->f, selection * s->capacity, s->dtype),
                               .notes = wn_element(cache->notes, row * s->notes * s->capacity, s->dtype),
                               .stride = s->capacity});
}

void wn_kv_cache_evict(struct wn_kv_cache *cache, const wn_budgets *budgets, int64_t layer, int32_t *order) {
  struct slots arrays[ARRAYS_MAX];
  const int n = cache_arrays_of(cache, arrays);
  const bool ordered = wn_policy_row(budgets->policy)->ordered;
  if (ordered) wn_kv_cache_order(cache, order);
  for (int64_t b = 0; b < cache->shape.B; b++)
    for (int64_t p = 0; p < cache_groups_of(cache); p++)
      cache_drop(cache, arrays, n, b, p, cache_choose(cache, budgets, layer, b, p, ordered ? order : NULL));
  cache->count--;
  cache->sorted = false;
}

void wn_kv_cache_evict_oldest(struct wn_kv_cache *cache) {
  struct slots arrays[ARRAYS_MAX];
  const int n = cache_arrays_of(cache, arrays);
  for (int64_t row = 0; row < cache->shape.B * cache_groups_of(cache); row++) {
    const int32_t *at = cache->at + row * cache->shape.capacity;
    int64_t oldest = 0;
    for (int64_t j = 1; j < cache->count; j++) oldest = at[j] < at[oldest] ? j : oldest;
    cache_drop(cache, arrays, n, row / cache_groups_of(cache), row % cache_groups_of(cache), oldest);
  }
  cache->count--;
  cache->sorted = false;
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

void wn_kv_cache_gather(const struct wn_kv_cache *from, const int32_t *slots, int64_t n, struct wn_kv_cache *to) {
  const int64_t P = cache_groups_of(from);
  struct slots a[ARRAYS_MAX], z[ARRAYS_MAX];
  const int arrays = cache_arrays_of(from, a);
  cache_arrays_of(to, z);
  for (int i = 0; i < arrays; i++) {
    const size_t bytes = a[i].bytes;
    for (int64_t b = 0; b < from->shape.B; b++) {
      for (int64_t p = 0; p < P; p++) {
        const int32_t *slot = slots + (b * P + p) * n;
        int64_t first;
        const int64_t rows = cache_group_rows(&a[i], P, p, &first);
        for (int64_t r = b * a[i].rows + first; r < b * a[i].rows + first + rows; r++) {
          const char *x = a[i].data + (size_t)(r * from->shape.capacity) * bytes;
          char *y = z[i].data + (size_t)(r * to->shape.capacity + to->count) * bytes;
          for (int64_t j = 0; j < n; j++) memcpy(y + (size_t)j * bytes, x + (size_t)slot[j] * bytes, bytes);
        }
      }
    }
  }
}

void wn_kv_cache_copy(const struct wn_kv_cache *from, int64_t count, const int64_t *rows, struct wn_kv_cache *to) {
  struct slots a[ARRAYS_MAX], z[ARRAYS_MAX];
  const int arrays = cache_arrays_of(from, a);
  cache_arrays_of(to, z);
  const int64_t each = to->shape.B / from->shape.B;
  for (int i = 0; i < arrays; i++)
    for (int64_t b = 0; b < to->shape.B; b++)
      for (int64_t r = 0; r < a[i].rows; r++)
        memcpy(z[i].data + (size_t)((b * a[i].rows + r) * to->shape.capacity) * a[i].bytes,
               a[i].data + (size_t)(((rows ? rows[b] : b / each) * a[i].rows + r) * from->shape.capacity) * a[i].bytes,
               (size_t)count * a[i].bytes);
  to->count = count;
  to->seen = from->seen - (from->count - count);
  to->sorted = from->sorted;
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
  if (!cache->sorted || cache->seen > cache->count) out->slots.at = cache->at;
}
