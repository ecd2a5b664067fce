/* The cache of one layer: one allocation, given back as a whole. */
#include "kv/cache.h"

#include <string.h>

#include "attention/registry.h"
#include "base/alloc.h"

static bool area(int64_t a, int64_t b, int64_t c, size_t element, size_t *total, size_t *offset) {
  size_t n;
  if (!wn_mul_size((size_t)a, (size_t)b, &n) || !wn_mul_size(n, (size_t)c, &n) || !wn_mul_size(n, element, &n) ||
      !wn_add_size(n, WN_ALIGN - 1, &n))
    return false;
  *offset = *total;
  return wn_add_size(*total, n / WN_ALIGN * WN_ALIGN, total);
}

struct offsets {
  size_t total, k, v, sk, f;
};

static bool lay(const struct wn_kv_shape *s, struct offsets *o) {
  const size_t element = wn_dtype_size(s->dtype);
  memset(o, 0, sizeof *o);
  return area(s->B * s->Hkv, s->capacity, s->D, element, &o->total, &o->k) &&
         area(s->B * s->Hkv, s->capacity, s->D, element, &o->total, &o->v) &&
         (!s->bilinear || area(s->B * s->selections, s->capacity, s->D, element, &o->total, &o->sk)) &&
         (!s->selections || area(s->B * s->selections, s->capacity, 1, element, &o->total, &o->f));
}

void wn_kv_shape_of(const wn_model_config *c, int64_t B, int64_t capacity, wn_dtype dtype, const wn_budgets *budgets,
                    struct wn_kv_shape *out) {
  (void)budgets;
  *out = (struct wn_kv_shape){.B = B,
                              .Hkv = c->kv_heads,
                              .D = c->head_size,
                              .capacity = capacity,
                              .dtype = dtype,
                              .selections = wn_attention_selections(&c->attention, c->kv_heads),
                              .bilinear = c->attention.selective.enabled && c->attention.selective.bilinear};
}

bool wn_kv_shape_bytes(const struct wn_kv_shape *shape, size_t *bytes) {
  struct offsets o;
  const bool fits = lay(shape, &o);
  *bytes = o.total;
  return fits;
}

wn_status wn_kv_cache_init(wn_context *ctx, const struct wn_kv_shape *s, struct wn_kv_cache *out) {
  struct offsets o;
  memset(out, 0, sizeof *out);
  if (!lay(s, &o))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a cache of %lld tokens for %lld sequences does not fit in memory",
                   (long long)s->capacity, (long long)s->B);
  void *base;
  WN_TRY(wn_alloc(ctx, "key-value cache", o.total, &base));
  out->shape = *s;
  out->bytes = o.total;
  out->k = (char *)base + o.k;
  out->v = (char *)base + o.v;
  if (s->bilinear) out->sk = (char *)base + o.sk;
  if (s->selections) out->f = (char *)base + o.f;
  return WN_OK;
}

void wn_kv_cache_clear(struct wn_kv_cache *cache) {
  wn_free(cache->k); /* the allocation's start */
  memset(cache, 0, sizeof *cache);
}

void wn_kv_cache_reset(struct wn_kv_cache *cache) {
  if (cache->f)
    memset(cache->f, 0,
           (size_t)(cache->shape.B * cache->shape.selections * cache->shape.capacity) *
               wn_dtype_size(cache->shape.dtype));
  cache->count = 0;
}

static void copy_rows(const struct wn_kv_cache *cache, int64_t heads, int64_t T, const void *from, struct wn_stride s,
                      void *to) {
  const struct wn_kv_shape *shape = &cache->shape;
  const size_t element = wn_dtype_size(shape->dtype), row = (size_t)shape->D * element;
  for (int64_t b = 0; b < shape->B; b++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t t = 0; t < T; t++)
        memcpy((char *)to + (size_t)((b * heads + h) * shape->capacity + cache->count + t) * row,
               (const char *)from + (size_t)(b * s.b + t * s.t + h * s.h) * element, row);
}

void wn_kv_cache_append(struct wn_kv_cache *cache, int64_t T, const void *k, struct wn_stride s_k, const void *v,
                        struct wn_stride s_v, const void *sk, struct wn_stride s_sk) {
  copy_rows(cache, cache->shape.Hkv, T, k, s_k, cache->k);
  copy_rows(cache, cache->shape.Hkv, T, v, s_v, cache->v);
  if (cache->sk) copy_rows(cache, cache->shape.selections, T, sk, s_sk, cache->sk);
}

void wn_kv_cache_advance(struct wn_kv_cache *cache, int64_t T) {
  cache->count += T;
}

void wn_kv_cache_bind(const struct wn_kv_cache *cache, int64_t T, struct wn_attention *out) {
  const struct wn_kv_shape *s = &cache->shape;
  const struct wn_stride stride = {s->Hkv * s->capacity * s->D, s->D, s->capacity * s->D};
  out->Tk = cache->count + T;
  out->k = cache->k;
  out->v = cache->v;
  out->s_k = out->s_v = stride;
  if (cache->sk) {
    out->sel.sk = cache->sk;
    out->sel.s_sk = (struct wn_stride){s->selections * s->capacity * s->D, s->D, s->capacity * s->D};
  }
  if (cache->f) {
    out->sel.f_in = cache->f;
    out->sel.f_out = cache->f;
    out->sel.f_stride = s->capacity;
  }
}
