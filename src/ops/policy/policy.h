/* What a score of an eviction policy reads, on the host and on a device alike.
 *
 * A score by keys and values is a header in this folder, in plain C that compiles into ref, cpu and cuda, as the
 * headers of ops/term/ do. It has one function, which runs in stages over the tokens that a group of key-value heads
 * holds:
 *
 *   void NAME_stage(held, head, stage, me, scores, room)
 *
 * It is called for each head of the group and each stage, and adds the head's score of token j to scores[j], which
 * begin at 0; the token with the highest is evicted. A stage is shared by many threads of a device, or done by one of
 * the host: thread `me` takes the tokens of WN_POLICY_TOKENS, or its part of a head's dimensions (wn_policy_part), and
 * sees what all threads wrote in the stages before. `room` is what the kind asks for: numbers per token held and per
 * dimension.
 *
 * The functions below sum in double, in an order that they fix, and without fused products: a device's scores have the
 * host's bits. */
#ifndef WN_OPS_POLICY_POLICY_H
#define WN_OPS_POLICY_POLICY_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "base/both.h"
#include "base/wide.h"
#include "io/stored.h"
#include "winnow/tensor.h"

#define WN_POLICY_FUNCTION WN_BOTH
/* A score's function in stages. */
#ifdef __CUDACC__
#define WN_POLICY_STAGE WN_BOTH
#else
#define WN_POLICY_STAGE WN_WIDE static
#endif

struct wn_evict_rule;
struct wn_budgets; /* winnow/kv.h */

/* Keys, or values, of the heads of one group. */
struct wn_policy_rows {
  const void *data;     /* element d of token j, head h: at h * head + (index ? index[j] : j) * token + d */
  const int32_t *index; /* NULL: token j has row j */
  int64_t head, token;
  wn_gguf_type type; /* how they are stored (io/stored.h); F32: of the dtype */
};

/* The numbers of the keys that a keyed map reads (ops/score.h), its gates for each head and token; on the host. */
struct wn_score_map;
enum { WN_POLICY_NUMBERS_MAX = 6 };
struct wn_policy_number {
  const struct wn_score_map *map;
  struct wn_policy_rows rows;
  int64_t gate; /* elements from a token's gate to its next */
};

/* The tokens that one group of heads holds when a row arrives. */
struct wn_policy_held {
  const struct wn_evict_rule *rule;
  const struct wn_budgets *budgets; /* on the host */
  int64_t layer, group, count;
  int64_t row;          /* the position of the arriving token */
  int64_t budget;       /* K: tokens that the group may hold, the row's own included */
  wn_dtype dtype;       /* of F, notes and values */
  const int32_t *at;    /* [count] positions, in any order; -1: a free cache position */
  const int32_t *order; /* [count] indices in order of position, for `ordered` policies; NULL: already in order */
  const double *scores; /* [count] scores that are known already, or NULL */
  const void *F;        /* [count] or NULL */
  const void *notes;    /* [notes,stride] or NULL */
  const void *values;   /* what the rule reads: F, or the notes */
  int64_t stride;
  int64_t heads, D;           /* of the group; D: a head's dimensions */
  struct wn_policy_rows k, v; /* data NULL: not asked for */
  wn_dtype rows;              /* of k and v that are stored as F32 */
  int numbers;                /* of keyed maps */
  struct wn_policy_number number[WN_POLICY_NUMBERS_MAX];
  double *room; /* wn_policy_room numbers, for scores by keys and values */
};

/* The notes of the tokens held, to be updated after one row. */
struct wn_policy_notes {
  const struct wn_budgets *budgets;
  int64_t row, count; /* the row's position; tokens held, its own included */
  wn_dtype dtype;
  void *notes; /* [notes,stride] */
  int64_t stride;
  const void *sums; /* [count] the row's attention sums */
};

/* Thread `of` of `all`. */
struct wn_policy_thread {
  int64_t of, all;
};

enum wn_policy_id { WN_POLICY_ID_OTHER, WN_POLICY_ID_KNORM, WN_POLICY_ID_KEYDIFF };

struct wn_policy_kind {
  enum wn_policy_id id; /* the kinds that cuda compiles itself */
  int stages;
  int64_t per_token, per_dimension; /* numbers of room */
  bool constant; /* one stage without room, and a token's score depends on its own key and value: it never changes */
  void (*stage)(const struct wn_policy_held *held, int64_t head, int stage, struct wn_policy_thread me, double *scores,
                double *room);
  const void *kernels; /* struct policy_kernels of backends/cuda/policy.cuh, for WN_POLICY_ID_OTHER; or NULL */
};

/* Numbers of room for `count` tokens held, their scores included. */
WN_POLICY_FUNCTION int64_t wn_policy_room(const struct wn_policy_kind *kind, int64_t count, int64_t D) {
  return count * (1 + kind->per_token) + D * kind->per_dimension;
}

/* NOLINTBEGIN(bugprone-macro-parentheses): j is a name */
/* A thread's tokens. */
#define WN_POLICY_TOKENS(held, me, j)                                                                                  \
  for (int64_t j = (me).of; j < (held)->count; j += (me).all)                                                          \
    if ((held)->at[j] >= 0)
/* NOLINTEND(bugprone-macro-parentheses) */

/* A thread's dimensions: from `first` to before `end`. */
struct wn_policy_range {
  int64_t first, end;
};
WN_POLICY_FUNCTION struct wn_policy_range wn_policy_part(struct wn_policy_thread me, int64_t D) {
  struct wn_policy_range part = {me.of * D / me.all, (me.of + 1) * D / me.all};
  return part;
}

/* The rows that begin `elements` further on. */
WN_POLICY_FUNCTION struct wn_policy_rows wn_policy_rows_from(struct wn_policy_rows x, wn_dtype dtype,
                                                             int64_t elements) {
  if (x.data) x.data = (const char *)x.data + wn_stored_bytes(x.type, dtype, elements);
  return x;
}

/* A product that the compiler does not fuse with a sum. */
WN_BOTH_INLINE double wn_policy_times(double x, double y) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(x, y);
#else
  return x * y;
#endif
}

/* ---- one row: the key or value of a token in a head ---- */

/* So many numbers of a row are read at a time: on the host in vectors, on a device in registers. A multiple of 4. */
#ifdef __CUDACC__
enum { WN_POLICY_PIECE = 4 };
#else
enum { WN_POLICY_PIECE = 32 };
#endif

WN_BOTH_INLINE int64_t wn_policy_row_at(const struct wn_policy_rows *x, int64_t head, int64_t j) {
  return head * x->head + (x->index ? x->index[j] : j) * x->token;
}

/* sum[d - first] += factor * x[d] for d in the part. */
WN_BOTH_INLINE void wn_policy_add(const struct wn_policy_held *h, const struct wn_policy_rows *x, int64_t head,
                                  int64_t j, double factor, struct wn_policy_range part, double *sum) {
  const int64_t at = wn_policy_row_at(x, head, j);
  double some[WN_POLICY_PIECE];
  for (int64_t d = part.first, n; d < part.end; d += n) {
    n = part.end - d < WN_POLICY_PIECE ? part.end - d : (int64_t)WN_POLICY_PIECE;
    wn_stored_numbers(x->type, h->rows, x->data, at + d, n, some);
    for (int64_t i = 0; i < n; i++) sum[d + i - part.first] += wn_policy_times(factor, some[i]);
  }
}

/* sums += x, four numbers: on the host one vector, which compilers do not find by themselves. */
WN_BOTH_INLINE void wn_policy_add_four(const double *x, double *sums) {
#ifdef __CUDACC__
  for (int i = 0; i < 4; i++) sums[i] += x[i];
#else
  typedef double four __attribute__((vector_size(32), aligned(8), may_alias));
  *(four *)sums += *(const four *)x;
#endif
}

/* Adds the products of numbers at..at+n-1 of the rows with y, or with themselves (y NULL), to four sums in turn. */
WN_BOTH_INLINE void wn_policy_dot_piece(const struct wn_policy_held *h, const struct wn_policy_rows *x, int64_t at,
                                        int64_t n, const double *y, double *sums) {
  double some[WN_POLICY_PIECE];
  wn_stored_numbers(x->type, h->rows, x->data, at, n, some);
  for (int64_t i = 0; i < n; i++) some[i] = wn_policy_times(some[i], y ? y[i] : some[i]);
  for (int64_t i = n; i % 4; i++) some[i] = 0;
  for (int64_t i = 0; i < n; i += 4) wn_policy_add_four(some + i, sums);
}

/* Sums of the products of a row with y, or with itself (y NULL): four, which are then added in pairs. */
WN_BOTH_INLINE double wn_policy_dot(const struct wn_policy_held *h, const struct wn_policy_rows *x, int64_t head,
                                    int64_t j, const double *y) {
  const int64_t at = wn_policy_row_at(x, head, j), whole = h->D - h->D % WN_POLICY_PIECE;
  double sums[4] = {0, 0, 0, 0};
  for (int64_t d = 0; d < whole; d += WN_POLICY_PIECE) /* so many that the loops have no ends of their own */
    wn_policy_dot_piece(h, x, at + d, WN_POLICY_PIECE, y ? y + d : NULL, sums);
  wn_policy_dot_piece(h, x, at + whole, h->D - whole, y ? y + whole : NULL, sums);
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}

/* x with 16 bits: what the order of a product's sums can change in a key does not decide between two of the same score.
 */
WN_BOTH_INLINE double wn_policy_rounded(double x) {
  float value = (float)x;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x3f + (bits >> 7 & 1)) & ~0x7fu;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

WN_BOTH_INLINE double wn_policy_norm(const struct wn_policy_held *h, const struct wn_policy_rows *x, int64_t head,
                                     int64_t j) {
  return sqrt(wn_policy_dot(h, x, head, j, NULL));
}

#endif
