/* One layer's key-value cache, or that of some of its heads. For each token held it has the key and value; with
 * selective attention F, the sum of the selections so far; with eviction the absolute position and the policy's notes
 * (policy.h).
 *
 * Without eviction tokens stay in order, cache position and absolute position agree, and positions are not stored. A
 * cache that evicts is full from its K-th token on: the last slot's content moves to the slot of the evicted token, and
 * the newest token takes the last slot. So cache positions have no order. With P groups of heads that evict on their
 * own each group has cache positions of its own. Evicting costs one comparison per token and one copied token.
 * Key-value heads with budgets of their own have separate caches, each of its own size.
 *
 * The cache lies in the backend's memory, where operations write it, choose what is evicted and move the rest. If that
 * is not the host's memory, the host also keeps the positions, as long as it knows them: until a token is evicted by a
 * rule that depends on more than positions. wn_kv_cache_positions then reads them back. A policy with functions of its
 * own runs on the host, on copies of what it needs. */
#ifndef WN_KV_CACHE_H
#define WN_KV_CACHE_H

#include "ops/attention.h"
#include "ops/evict.h"
#include "ops/ops.h"
#include "winnow/kv.h"

struct wn_kv_shape {
  int64_t B, Hkv, D, capacity; /* capacity: tokens per sequence */
  wn_dtype dtype;
  int64_t selections;          /* G, the selections per sequence; 0: none */
  bool bilinear;               /* sk */
  int64_t keyed, gates, width; /* keyed maps (ops/score.h), and the numbers that a token has for them in a head */
  struct wn_score_map map[WN_POLICY_NUMBERS_MAX]; /* `width` counts also what is summed, where one is a running sum */
  int64_t groups;                                 /* P, groups that evict on their own; 0: nothing is evicted */
  int64_t first_group;                            /* the number of its first group in the layer */
  int64_t notes;                                  /* numbers that the policy keeps per token */
  bool asked;                                     /* the policy has functions of its own */
  bool asked_keys, asked_values;                  /* which read keys, values */
  wn_gguf_type k_type, v_type;    /* how k and v are stored (io/stored.h); F32: in dtype. New rows are in dtype */
  const struct wn_memory *memory; /* of keys, values and F; NULL: the host's */
};

struct wn_kv_cache {
  struct wn_kv_shape shape;
  int64_t count;              /* tokens held, the same for all sequences and groups */
  int64_t seen;               /* tokens seen so far: the position of the next */
  bool sorted;                /* cache positions are in order of absolute position */
  void *k, *v;                /* [B,Hkv,capacity,D] as stored: a head's tokens are contiguous, as decoding reads them */
  void *sk;                   /* [B,G,capacity,D] or NULL */
  void *f;                    /* [B,G,capacity] or NULL */
  void *numbers;              /* [B,Hkv,width,capacity] or NULL: the maps' one after the other; if one is a running
                               * sum, what is summed in the second half */
  double *total, *next;       /* [gates,B,Hkv] where one is a running sum: over all tokens seen, once there is one; and
                               * over those that have been appended */
  void *notes;                /* [B,P,notes,capacity] of the policy, or NULL */
  int32_t *at;                /* [B,P,capacity] absolute positions, on the host; NULL: slot j holds position j */
  int32_t *at_shown;          /* the same in the backend's memory; the same array if that is the host's */
  bool at_known, at_is_shown; /* which of the two is up to date, if they are two */
  bool at_entered;            /* at_shown already has the next token's position */
  /* For a policy with functions of its own: the slots that it chooses [B,P], and host copies of what it reads. Where
   * the backend's memory is the host's, `index` and `index_shown` are one array. */
  int32_t *index, *index_shown, *order; /* order [capacity] */
  void *k_read, *v_read, *f_read, *numbers_read, *notes_read, *sums_read;
  void *host;   /* the allocation on the host, if the backend's memory is another; NULL: none */
  size_t bytes; /* all bytes allocated */
};

/* The shape of a cache of `capacity` tokens for a layer with this attention, under the budgets' policy (NULL: nothing
 * is evicted). */
struct wn_attention_shape; /* attention/registry.h */
void wn_kv_shape_of(const wn_attention_config *attention, const struct wn_attention_shape *model, int64_t B,
                    int64_t capacity, wn_dtype dtype, const wn_budgets *budgets, struct wn_kv_shape *out);
/* Reduces the shape to key-value heads g0..g0+n-1, since heads with budgets of their own have caches of their own. */
void wn_kv_shape_of_heads(struct wn_kv_shape *shape, int64_t g0, int64_t n);
/* Stores k and v in a format; AUTO reads as float. */
void wn_kv_shape_store(struct wn_kv_shape *shape, wn_cache_format format);
/* The bytes of such a cache. *host (may be NULL): those of them on the host, if the backend's memory is another, else
 * 0. False: the size exceeds the address space. */
bool wn_kv_shape_bytes(const struct wn_kv_shape *shape, size_t *bytes, size_t *host);
/* Where the arrays of a cache of this shape lie: its `memory`, or the host's for NULL. */
const struct wn_memory *wn_kv_memory(const struct wn_kv_shape *shape);

wn_status wn_kv_cache_init(wn_context *ctx, const struct wn_kv_shape *shape, struct wn_kv_cache *out);
/* The same in memory of the caller: `memory` is the backend's, `host` the host's beside it. wn_kv_cache_clear must not
 * be called then. */
void wn_kv_cache_place(const struct wn_kv_shape *shape, void *memory, void *host, struct wn_kv_cache *out);
void wn_kv_cache_clear(struct wn_kv_cache *cache);
/* Forgets all tokens; the memory stays. */
void wn_kv_cache_reset(struct wn_kv_cache *cache);

/* The new keys and values of an attention call's rows. */
struct wn_kv_rows {
  const void *k, *v, *sk; /* [B,T,Hkv,D], sk [B,T,G,D] or NULL */
  struct wn_stride s_k, s_v, s_sk;
  const void *number[WN_SCORE_MAPS_MAX]; /* [B,T,Hkv,gates] of the keyed maps, not summed yet */
  struct wn_stride s_number[WN_SCORE_MAPS_MAX];
};
/* The rows of a call, and those of its heads from g0 on. */
struct wn_kv_rows wn_kv_rows_of(const struct wn_attention *op);
struct wn_kv_rows wn_kv_rows_of_heads(const struct wn_kv_rows *rows, wn_dtype dtype, int64_t g0);
/* numbers.c. _put: fills the numbers of T new slots from rows t0.. on. _take_back: the sums of `to`, whose sequence b
 * is sequence rows[b] (NULL: b / n, as in wn_kv_cache_copy) of the cache, without n tokens in slots from `first` on. */
wn_status wn_kv_numbers_put(const struct wn_exec *exec, struct wn_kv_cache *cache, const struct wn_kv_rows *rows,
                            int64_t t0, int64_t T);
wn_status wn_kv_numbers_take_back(wn_context *ctx, const struct wn_kv_cache *cache, const int64_t *rows, int64_t first,
                                  int64_t n, struct wn_kv_cache *to);
size_t wn_kv_sums_bytes(const struct wn_kv_shape *shape); /* of `total` */
/* What has been appended counts from now on. */
void wn_kv_numbers_advance(struct wn_kv_cache *cache);
/* Sets what a policy sees of the numbers of group `row`, in an array of the cache's shape. */
void wn_kv_numbers_held(const struct wn_kv_cache *cache, const void *numbers, int64_t row, struct wn_policy_held *held);
/* Copies to several caches, which one call of the backend makes. */
enum { WN_KV_LATER = 32 };
struct wn_kv_later {
  struct wn_exec exec[WN_KV_LATER];
  struct wn_gather gather[WN_KV_LATER];
  int64_t count;
};
static inline wn_status wn_kv_later_run(struct wn_kv_later *later) {
  const int64_t n = later->count;
  later->count = 0;
  return wn_op_gather_together(later->exec, later->gather, n);
}
/* Writes rows t0..t0+T-1 after the tokens held, or leaves that to wn_kv_later_run (later NULL: nothing is left). They
 * count only after wn_kv_cache_advance. The caller has checked that they fit, or made room. */
wn_status wn_kv_cache_append(const struct wn_exec *exec, struct wn_kv_cache *cache, const struct wn_kv_rows *rows,
                             int64_t t0, int64_t T, struct wn_kv_later *later);
void wn_kv_cache_advance(struct wn_kv_cache *cache, int64_t T);
/* Forgets the last T tokens that entered. Nothing may have been evicted for them; F and notes stay as they are. */
wn_status wn_kv_cache_forget(wn_context *ctx, struct wn_kv_cache *cache, int64_t T);
/* For a cache of one sequence and group on the host: a slot and its content, in wn_kv_cache_slot_bytes bytes at `to`;
 * _save: the oldest token's. _undo: forgets the last token, and what was evicted for it comes back to its slot. */
struct wn_kv_slot {
  int64_t slot; /* -1: none */
  int32_t at;
  bool sorted; /* the cache's slots were in order */
};
size_t wn_kv_cache_slot_bytes(const struct wn_kv_cache *cache);
struct wn_kv_slot wn_kv_cache_save_oldest(const struct wn_kv_cache *cache, void *to);
void wn_kv_cache_undo(struct wn_kv_cache *cache, struct wn_kv_slot saved, const void *from);
/* Makes room for one token in each sequence and group of a full cache: evicts the token that the policy chooses. room:
 * memory for [B,P,wn_policy_room_of] elements of 8 bytes. */
wn_status wn_kv_cache_evict(const struct wn_exec *exec, struct wn_kv_cache *cache, const wn_budgets *budgets,
                            int64_t layer, void *room);
/* The same without a policy: the oldest is evicted. */
wn_status wn_kv_cache_evict_oldest(const struct wn_exec *exec, struct wn_kv_cache *cache);
/* Updates the policy's notes after the row of the token that was appended last and is not counted yet. sums
 * [B,P,capacity]: that row's attention sums. */
wn_status wn_kv_cache_follow(const struct wn_exec *exec, struct wn_kv_cache *cache, const wn_budgets *budgets,
                             const void *sums);
/* Brings cache->at up to date: reads the positions from the backend if the host does not know them. */
wn_status wn_kv_cache_positions(wn_context *ctx, const struct wn_kv_cache *cache);
/* Copies the tokens in `slots` [B,P,n] of `from` to `to`, after those that `to` holds. Both have the same shape except
 * for the capacity. shown: memory of the backend for the slots, if that is not the host's; with slots NULL it holds
 * them already. */
wn_status wn_kv_cache_gather(const struct wn_exec *exec, struct wn_kv_cache *from, const int32_t *slots, int32_t *shown,
                             int64_t n, struct wn_kv_cache *to);
/* Makes `to` hold the first `count` tokens of `from`, or all of them if any was evicted. Sequence b of `to` is a copy
 * of sequence rows[b] of `from`. If rows is NULL, B of `to` is n times B of `from`, and sequence b is a copy of
 * sequence b / n. Both have the same shape except for capacity and B. Cost: the tokens copied, not the capacity. */
wn_status wn_kv_cache_copy(wn_context *ctx, const struct wn_kv_cache *from, int64_t count, const int64_t *rows,
                           struct wn_kv_cache *to);
/* A cache's arrays as the host reads them; NULL: not read. */
struct wn_kv_read {
  void *k, *v, *f, *notes, *numbers;
};
/* What a policy sees of group `row` of the B * P where K tokens may be held: all but `order`, `values` and its room. */
struct wn_policy_held wn_kv_cache_held(const struct wn_kv_cache *cache, const struct wn_kv_read *read,
                                       const struct wn_evict_rule *rule, int64_t K, int64_t row);
/* Keys, or values, of the heads of group `row` of the B * P, in an array of the cache's shape. */
struct wn_policy_rows wn_kv_cache_rows(const struct wn_kv_cache *cache, bool values, const void *x, int64_t row);
/* Groups of key-value heads with positions of their own; 1 where nothing is evicted. */
int64_t wn_kv_cache_groups(const struct wn_kv_cache *cache);
/* slots [B,P,count] receives the tokens held in order of position. The host must know the positions. */
void wn_kv_cache_order(const struct wn_kv_cache *cache, int32_t *slots);
/* Sets an attention call's keys, values and F to those of the cache, with T tokens more than are held, and its
 * positions if the slots are not in order. */
void wn_kv_cache_bind(const struct wn_kv_cache *cache, int64_t T, struct wn_attention *out);

#endif
