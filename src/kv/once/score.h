/* What several methods share: sums of products, softmax, pools, attention of the last rows, scores in standard units.
 */
#ifndef WN_KV_ONCE_SCORE_H
#define WN_KV_ONCE_SCORE_H

#include "base/alloc.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/wide.h"
#include "kv/once.h"

/* Sums of products, in eight sums that the compiler can keep in vector registers. */
#define WN_ONCE_DOT(x, y, n)                                                                                           \
  double sums[8] = {0};                                                                                                \
  int64_t i = 0;                                                                                                       \
  for (; i + 8 <= (n); i += 8)                                                                                         \
    for (int64_t s = 0; s < 8; s++) sums[s] += (double)(x)[i + s] * (double)(y)[i + s];                                \
  for (; i < (n); i++) sums[0] += (double)(x)[i] * (double)(y)[i];                                                     \
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]))
static inline double wn_once_dot(const float *x, const float *y, int64_t n) {
  WN_ONCE_DOT(x, y, n);
}
static inline double wn_once_dot_double(const double *x, const double *y, int64_t n) {
  WN_ONCE_DOT(x, y, n);
}
static inline double wn_once_dot_mixed(const float *x, const double *y, int64_t n) {
  WN_ONCE_DOT(x, y, n);
}
#undef WN_ONCE_DOT

/* What is computed for a key-value head: room of its own, of as many numbers as the caller says; out [n]. */
struct wn_once_head {
  const struct wn_once_view *v;
  int64_t g;
  double *room, *out;
  const void *more; /* the caller's */
};
/* fn for all heads, which threads take one by one. room [Hkv,each]; out [Hkv,n] or NULL. */
void wn_once_heads(const struct wn_once_view *v, void (*fn)(const struct wn_once_head *), double *room, int64_t each,
                   double *out, const void *more);

/* exp(x - max) / sum, in place; n 0 is allowed. */
void wn_once_softmax(double *x, int64_t n);
/* out[j] = mean over 2r+1 of x[j-r..j+r], where what is outside counts as 0, or the maximum of what is inside. */
void wn_once_pool(const double *x, int64_t n, int64_t r, wn_pool pool, double *out);
/* x of rows [count] of `n` numbers, each row `ld` after the last: minus their mean, divided by their standard
 * deviation, at least 1e-6. */
void wn_once_standard(double *x, int64_t rows, int64_t n, int64_t ld);
/* |v| of a token, key-value head g. */
static inline double wn_once_value_norm(const struct wn_once_view *view, int64_t g, int64_t j) {
  const float *v = view->v + (g * view->n + j) * view->D;
  return sqrt(wn_once_dot(v, v, view->D));
}

/* How many of the tokens held are older than the last `rows` rows. */
int64_t wn_once_before(const struct wn_once_view *view, int64_t rows);
/* attention [Hkv,n] of the last `rows` rows of the view's window to the first m tokens: the mean over rows and over a
 * group's heads of the weights, which are computed over all tokens that the row sees. Entries from m on are not set. */
wn_status wn_once_window(wn_context *ctx, const struct wn_once_view *view, int64_t rows, int64_t m, double *attention);
/* Marks tokens first..n-1 of every key-value head as recent. */
void wn_once_mark_recent(const struct wn_once_view *view, int64_t first, double *scores);

/* Rotated rows: element d of token j, head h at x[j * token + h * head + d]. */
struct wn_once_rows {
  const float *x;
  int64_t n, heads, D, token, head;
  const int32_t *at;          /* [n] positions */
  const struct wn_rope *rope; /* NULL: none */
  double *out;                /* [heads,n,D] */
};
/* Writes the rows as they were before rotation to rows->out. */
void wn_once_unrotate(int threads, const struct wn_once_rows *rows);
/* Radians per position of pair i. */
double wn_once_frequency(const struct wn_rope *rope, int64_t i);
/* The two dimensions of pair i. */
struct wn_once_pair {
  int64_t a, b;
};
struct wn_once_pair wn_once_pair(const struct wn_rope *rope, int64_t i);

/* Leverage scores of tokens first..first+count-1 in standard units, with a given sketch [Hkv,D,columns]; scores
 * [Hkv,ld] receives `count` of each head. */
wn_status wn_once_leverage_of(wn_context *ctx, const struct wn_once_view *view, int64_t first, int64_t count,
                              const double *sketch, int64_t columns, double *scores, int64_t ld);
/* Compactor's scores with a given sketch. */
wn_status wn_once_compactor_of(wn_context *ctx, const struct wn_once_view *view, const double *sketch, double *scores);
/* The sketch of the view's layer: normal random numbers of variance 1/columns; wn_alloc'd. */
wn_status wn_once_sketch(wn_context *ctx, const struct wn_once_view *view, double **out);

#endif
