/* One layer's key-value cache: keys, values and, for selective attention, the selections F that the rows so far have
 * made. Nothing is evicted yet: every token stays, in order, so that slot and position agree. */
#ifndef WN_KV_CACHE_H
#define WN_KV_CACHE_H

#include "ops/ops.h"
#include "winnow/kv.h"

struct wn_kv_shape {
  int64_t B, Hkv, D, capacity; /* capacity: tokens a sequence */
  wn_dtype dtype;
  int64_t selections; /* G, rows of f a sequence; 0: none */
  bool bilinear;      /* sk */
};

struct wn_kv_cache {
  struct wn_kv_shape shape;
  int64_t count; /* tokens held, the same for all sequences */
  void *k, *v;   /* [B,Hkv,capacity,D]: a head's tokens lie together, as decoding reads them */
  void *sk;      /* [B,G,capacity,D] or NULL */
  void *f;       /* [B,G,capacity] or NULL; zero from `count` on */
  size_t bytes;  /* all that is allocated */
};

/* A cache of `capacity` tokens of this model, under the budgets' policy (NULL: none). */
void wn_kv_shape_of(const wn_model_config *config, int64_t B, int64_t capacity, wn_dtype dtype,
                    const wn_budgets *budgets, struct wn_kv_shape *out);
/* What such a cache allocates; false: more than memory can have. */
bool wn_kv_shape_bytes(const struct wn_kv_shape *shape, size_t *bytes);

wn_status wn_kv_cache_init(wn_context *ctx, const struct wn_kv_shape *shape, struct wn_kv_cache *out);
void wn_kv_cache_clear(struct wn_kv_cache *cache);
/* Forgets all tokens; the memory stays. */
void wn_kv_cache_reset(struct wn_kv_cache *cache);
/* Writes T tokens after those held: k, v with strides s_k, s_v [B,T,Hkv,D]; sk with strides s_sk [B,T,D] where the
 * cache has it. They count only once wn_kv_cache_advance says so. The caller has checked that they fit. */
void wn_kv_cache_append(struct wn_kv_cache *cache, int64_t T, const void *k, struct wn_stride s_k, const void *v,
                        struct wn_stride s_v, const void *sk, struct wn_stride s_sk);
void wn_kv_cache_advance(struct wn_kv_cache *cache, int64_t T);
/* Puts the keys, values and F, with T tokens more than are held, into an attention call. */
void wn_kv_cache_bind(const struct wn_kv_cache *cache, int64_t T, struct wn_attention *out);

#endif
