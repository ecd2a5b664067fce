/* One layer's key-value cache, or that of some of its heads: for each token held its key and value, for selective
 * attention the selections F that the rows so far have made, and where tokens are evicted its absolute position and the
 * policy's notes (policy.h).
 *
 * Without eviction tokens stay in order, cache position and absolute position agree, and positions are not stored. A
 * cache that evicts is full from its K-th token on: the newest token takes the last cache position, whose content moves
 * to the free one, so cache positions have no order. With P groups of heads that evict on their own a cache position
 * belongs to one group. Evicting costs a comparison per token and a copy of one. Key-value heads with budgets of their
 * own have separate caches, each of its size.
 *
 * All of it lies in the backend's memory, where operations write it, choose what is evicted and move the rest. Where
 * that is not the host's memory, the host has positions as well, as long as it knows them: until a token has been
 * evicted by what is not position alone. Then wn_kv_cache_positions reads them. A policy with functions of its own is
 * asked on the host, on copies of what it needs. */
#ifndef WN_KV_CACHE_H
#define WN_KV_CACHE_H

#include "ops/attention.h"
#include "ops/ops.h"
#include "winnow/kv.h"

struct wn_kv_shape {
  int64_t B, Hkv, D, capacity; /* capacity: tokens per sequence */
  wn_dtype dtype;
  int64_t selections;             /* G, rows of f a sequence; 0: none */
  bool bilinear;                  /* sk */
  int64_t groups;                 /* P, rows of `at` a sequence; 0: nothing is evicted */
  int64_t first_group;            /* of the layer's */
  int64_t notes;                  /* numbers that the policy keeps per token */
  bool asked;                     /* the policy has functions of its own */
  bool half;                      /* k and v in half floats; new rows are floats (dtype F32) */
  const struct wn_memory *memory; /* of keys, values and F; NULL: the host's */
};

struct wn_kv_cache {
  struct wn_kv_shape shape;
  int64_t count; /* tokens held, the same for all sequences and groups */
  int64_t seen;  /* tokens seen so far: the position of the next */
  bool sorted;   /* cache positions are in order of absolute position */
  void *k, *v;   /* [B,Hkv,capacity,D]: a head's tokens are contiguous, as decoding reads them; possibly half floats */
  void *sk;      /* [B,G,capacity,D] or NULL */
  void *f;       /* [B,G,capacity] or NULL */
  void *notes;   /* [B,P,notes,capacity] of the policy, or NULL */
  int32_t *at;   /* [B,P,capacity] absolute positions on the host, or NULL: slot j holds position j */
  int32_t *at_shown;          /* the same in the backend's memory; on the host the same array */
  bool at_known, at_is_shown; /* what of the two is true, where they are two */
  bool at_entered;            /* the next token's is among those shown */
  /* Where the policy is asked: the slots that it chooses [B,P], and on the host what it needs; on the host the same. */
  int32_t *index, *index_shown, *order; /* order [capacity] */
  void *f_read, *notes_read, *sums_read;
  void *host;   /* what is allocated on the host beside the backend's memory; NULL: nothing */
  size_t bytes; /* all that is allocated */
};

/* A cache of `capacity` tokens of a layer with this attention, under the budgets' policy (NULL: nothing is evicted). */
void wn_kv_shape_of(const wn_attention_config *attention, int64_t kv_heads, int64_t head_size, int64_t B,
                    int64_t capacity, wn_dtype dtype, const wn_budgets *budgets, struct wn_kv_shape *out);
/* The part of a layer's cache that belongs to key-value heads g0..g0+n-1: heads with budgets of their own have caches
 * of their own. */
void wn_kv_shape_of_heads(struct wn_kv_shape *shape, int64_t g0, int64_t n);
/* The bytes of such a cache; host: those of them that lie on the host beside the backend's memory, 0 where that is the
 * host's; or NULL. False: they exceed the address space. */
bool wn_kv_shape_bytes(const struct wn_kv_shape *shape, size_t *bytes, size_t *host);

wn_status wn_kv_cache_init(wn_context *ctx, const struct wn_kv_shape *shape, struct wn_kv_cache *out);
/* The same in the caller's memory, the backend's and beside it the host's; wn_kv_cache_clear is not called for it. */
void wn_kv_cache_place(const struct wn_kv_shape *shape, void *memory, void *host, struct wn_kv_cache *out);
void wn_kv_cache_clear(struct wn_kv_cache *cache);
/* Forgets all tokens; the memory stays. */
void wn_kv_cache_reset(struct wn_kv_cache *cache);

/* The fresh keys and values of an attention call's rows. */
struct wn_kv_rows {
  const void *k, *v, *sk; /* [B,T,Hkv,D], sk [B,T,G,D] or NULL */
  struct wn_stride s_k, s_v, s_sk;
};
/* Writes rows t0..t0+T-1 after the tokens held. They count only once wn_kv_cache_advance says so. The caller has
 * checked that they fit, or made room. */
wn_status wn_kv_cache_append(const struct wn_exec *exec, struct wn_kv_cache *cache, const struct wn_kv_rows *rows,
                             int64_t t0, int64_t T);
void wn_kv_cache_advance(struct wn_kv_cache *cache, int64_t T);
/* Makes room for one token in each sequence and group of a full cache: the policy's choice is evicted. room
 * [B,P,capacity] of 8 bytes, for policies that are `ordered`. */
wn_status wn_kv_cache_evict(const struct wn_exec *exec, struct wn_kv_cache *cache, const wn_budgets *budgets,
                            int64_t layer, void *room);
/* The same without a policy: the oldest is evicted. */
wn_status wn_kv_cache_evict_oldest(const struct wn_exec *exec, struct wn_kv_cache *cache);
/* The policy's notes after the row of the token that was appended last and is not counted yet. sums [B,P,capacity]: its
 * attention sums. */
wn_status wn_kv_cache_follow(const struct wn_exec *exec, struct wn_kv_cache *cache, const wn_budgets *budgets,
                             const void *sums);
/* cache->at is true from here on: it is read where it is not known. */
wn_status wn_kv_cache_positions(wn_context *ctx, const struct wn_kv_cache *cache);
/* Copies the tokens `slots` [B,P,n] of `from` (same shape but for the capacity) after those that `to` holds. shown:
 * room for the slots in the backend's memory, where that is not the host's; slots NULL there: it has them already. */
wn_status wn_kv_cache_gather(const struct wn_exec *exec, struct wn_kv_cache *from, const int32_t *slots, int32_t *shown,
                             int64_t n, struct wn_kv_cache *to);
/* `to` holds the first `count` tokens that `from` does, all of them where any was evicted: sequence b what sequence
 * rows[b] does, or, where rows is NULL, sequence b / (to's B / from's B), of which to's is then a multiple of from's.
 * Same shape but for the capacity and for B. Costs the tokens copied, not the capacity. */
wn_status wn_kv_cache_copy(wn_context *ctx, const struct wn_kv_cache *from, int64_t count, const int64_t *rows,
                           struct wn_kv_cache *to);
/* slots [B,P,count]: the tokens held in order of position, which are known. */
void wn_kv_cache_order(const struct wn_kv_cache *cache, int32_t *slots);
/* Puts the keys, values and F, with T tokens more than are held, into an attention call; positions where the slots
 * are not in order. */
void wn_kv_cache_bind(const struct wn_kv_cache *cache, int64_t T, struct wn_attention *out);

#endif
