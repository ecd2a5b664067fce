/* Scores of a whole cache at once: the published protocol of cache compression. A context is read in full, every
 * layer's cache is scored at once, and the best tokens are kept. A method is one file src/kv/once/<name>.c with one
 * struct wn_once_method: a pure function of one layer's keys, values, queries and sums to one number for each key-value
 * head and token. When that happens, how the tokens are moved and what the cache does afterwards is not said here.
 *
 * As everywhere in winnow the token with the HIGHEST score is evicted, of equal ones the oldest: a score is the negated
 * importance of the paper. Two scores have a meaning of their own:
 *
 *   WN_ONCE_SINK    one of the first tokens, which the method always keeps
 *   WN_ONCE_RECENT  one of the last tokens, which it always keeps; where not all protected tokens fit, these go first
 *
 * Dimensions: n tokens held, H heads, Hkv key-value heads (head h reads key-value head h / (H/Hkv)), D a head's size, C
 * the model's width. Arrays are the caller's, contiguous, on the host, valid during a call and never written. Functions
 * return a status, record its line in the context, and keep nothing; their scratch is released when they return. */
#ifndef WN_KV_ONCE_H
#define WN_KV_ONCE_H

#include <float.h>
#include <math.h>
#include "ops/ops.h"
#include "winnow/kv.h"

/* Every method, in the order of help and tables: wn_once_<name>, defined in once/<name>.c. */
#define WN_ONCE_METHODS(X) X(lagkv) X(expected) X(observed) X(snapkv) X(tova) X(leverage) X(compactor) X(rkv) X(kvzip)

#define WN_ONCE_SINK (-INFINITY)
#define WN_ONCE_RECENT (-DBL_MAX)
/* Is a token with this score protected? */
static inline bool wn_once_protected(double score) {
  return score <= WN_ONCE_RECENT;
}

/* What a method reads in addition to positions. */
enum wn_once_need {
  WN_ONCE_KEYS = 1 << 0,    /* k */
  WN_ONCE_PLAIN = 1 << 1,   /* keys before rotation: k and, in a rotary model, rope */
  WN_ONCE_VALUES = 1 << 2,  /* v */
  WN_ONCE_WINDOW = 1 << 3,  /* q: the queries of the last rows */
  WN_ONCE_QUERIES = 1 << 4, /* mean, covariance and rope */
  WN_ONCE_SUMS = 1 << 5,    /* sums */
  WN_ONCE_CHUNKS = 1 << 6,  /* chunks */
  WN_ONCE_OUTPUT = 1 << 7,  /* wo: no method, but wn_once_critical */
  WN_ONCE_REPEAT = 1 << 8   /* largest: the context is read a second time after itself (wn_once_repeat) */
};

/* Options of methods, and of what is combined with them. */
struct wn_once_options {
  uint64_t seed; /* of leverage's random sketch; default 0 */
  struct {
    int64_t rows,
        neighbours; /* 32; 2: a pool of 5 positions. Those of wn_budgets.snapkv, which has the keys for them */
    wn_pool pool;
  } snapkv;
  struct {
    int64_t sinks, lag; /* 4; tokens of a partition: 128 */
    bool cross;         /* scores are compared across partitions, not ranked within each; false */
  } lagkv;
  struct {
    int64_t future, sinks;   /* over how many next positions queries are averaged: 512; 4 */
    bool covariance, values; /* true: the covariance counts; weights are multiplied by the value's norm */
    double epsilon;          /* is added to them before: 0 */
  } expected;
  struct {
    int64_t sketch; /* columns of the sketch: 48 */
  } leverage;
  struct {
    int64_t sinks, recent, chunk; /* 8; 4; 256 */
    bool padded;                  /* a last chunk is filled up with queries and keys of zeros, as kvpress does; true */
    double blend;                 /* the weight of leverage scores; negative, the default: the part evicted */
  } compactor;
  struct {
    int64_t rows, neighbours; /* 8; 3: a pool of 7 positions */
    double importance;        /* lambda: the weight of attention against redundancy: 0.1 */
    double similar;           /* the cosine from which two keys count as similar: 0.5 */
  } rkv;
  struct {
    int64_t sinks, chunk; /* 4; tokens that are repeated at a time: 2048 */
  } kvzip;
  struct {
    double first, epsilon; /* the part of a head's tokens that the method alone chooses: 0.5; 0.0001 */
  } critical;
  struct {
    double safe; /* the part of its even share that each head keeps in any case: 0.2 */
  } ada;
  struct {
    double beta; /* the steepness: 20 */
  } pyramid;
};
void wn_once_options_init(struct wn_once_options *options);

/* One layer of one sequence, with all of its key-value heads: some methods compare scores across them. What a method
 * does not need may be NULL. */
struct wn_once_view {
  const struct wn_once_options *options;
  int threads;          /* at least 1 */
  int64_t layer;        /* for random numbers */
  int64_t n, H, Hkv, D; /* H a multiple of Hkv */
  int64_t next;         /* the position of the next token: more than at[n-1] */
  int64_t kept;         /* tokens that each head will keep on average, 1..n */
  double ratio;         /* the part that is evicted, as the user gave it; negative: 1 - kept / n */
  double scale;         /* the factor on logits, 1/sqrt(D) in most models */
  const int32_t *at;    /* [n] positions, ascending */
  const float *k, *v;   /* [Hkv,n,D]; k rotated, as the cache has it */
  /* The layer's rotation, NULL in a layer without one. D, R, adjacent, theta, frequencies and magnitude are read;
   * frequencies are on the host. */
  const struct wn_rope *rope;
  const float *q;           /* [w,H,D] rotated queries of the last w rows, the last one at the end */
  int64_t w;                /* at most what the method's `rows` says; fewer if fewer rows were read */
  const double *mean;       /* [H,D] of queries before rotation, over the context */
  const double *covariance; /* [H,D,D] of the same, divided by their number */
  const double *sums;    /* [Hkv,n] attention weights that the token has received from all rows, summed over a group's
                            heads */
  const double *chunks;  /* [Hkv,n] attention sums without a causal mask within chunks (compactor.c), the mean over a
                            group's heads; first and last tokens that are in no chunk have 0 */
  const double *largest; /* [Hkv,n] the largest attention weight while the context was repeated (kvzip.c) */
  const float *wo;       /* [C,wo_row] the output projection: y[c] = sum over these H heads of wo[c][h*D+d] o[h][d] */
  int64_t C, wo_row;     /* wo_row: H*D, or more where the view has some of a layer's heads */
};

struct wn_once_method {
  const char *name, *summary;                             /* "lagkv", and in one line which tokens it keeps */
  unsigned needs;                                         /* of enum wn_once_need */
  bool by_kept;                                           /* scores depend on how many tokens stay */
  int64_t (*rows)(const struct wn_once_options *options); /* WN_ONCE_WINDOW: how many last rows it reads */
  int64_t (*sinks)(
      const struct wn_once_options *options); /* WN_ONCE_QUERIES, _CHUNKS: first rows that do not count; NULL: 0 */
  /* Fills scores [Hkv,n]. */
  wn_status (*score)(wn_context *ctx, const struct wn_once_view *view, double *scores);
};

#define WN_ONCE_DECLARE(name) extern const struct wn_once_method wn_once_##name;
WN_ONCE_METHODS(WN_ONCE_DECLARE)

int wn_once_count(void);
const struct wn_once_method *wn_once_at(int i);
const struct wn_once_method *wn_once_find(const char *name); /* NULL: there is none of that name */
/* The scores of a method, checked: WN_ERR_ARGUMENT if the view lacks what it needs, WN_ERR_DIVERGED if one is NaN. */
wn_status wn_once_score(wn_context *ctx, const struct wn_once_method *method, const struct wn_once_view *view,
                        double *scores);

/* ---- what is collected while the context is read: one for each layer and sequence ---- */

struct wn_once_shape {
  int64_t H, Hkv, D;
  int64_t capacity;           /* tokens of the longest context */
  const struct wn_rope *rope; /* as in the view; outlives what is collected */
  int threads;
};
struct wn_once_seen; /* collects for WN_ONCE_WINDOW, _QUERIES and _CHUNKS; other needs are the caller's */
/* NULL in *out if the method needs none of them. options outlive it. */
wn_status wn_once_seen_create(wn_context *ctx, const struct wn_once_method *method,
                              const struct wn_once_options *options, const struct wn_once_shape *shape,
                              struct wn_once_seen **out);
void wn_once_seen_destroy(struct wn_once_seen *seen); /* NULL is allowed */
void wn_once_seen_reset(struct wn_once_seen *seen);   /* for another context */
/* Makes `to` have seen what `from` has, which was created with the same method, options and shape but for the capacity:
 * that of `to` is at least what was seen. */
wn_status wn_once_seen_copy(wn_context *ctx, struct wn_once_seen *to, const struct wn_once_seen *from);
/* The next T rows: queries q [T,H,D] and keys k [T,Hkv,D], both rotated by positions at [T]. */
wn_status wn_once_seen_rows(wn_context *ctx, struct wn_once_seen *seen, const float *q, const float *k,
                            const int32_t *at, int64_t T);
/* Sets the view's q, w, mean, covariance and chunks to arrays that are valid until the next call with `seen`. n: the
 * tokens of the context, all rows so far. */
wn_status wn_once_seen_show(wn_context *ctx, struct wn_once_seen *seen, struct wn_once_view *view);

/* KVzip's reading: after a context of view->n tokens, a request to repeat the tokens first..end-1 and these tokens
 * themselves are read as more rows, in pieces. This piece is the last `rows` of T rows so far. */
struct wn_once_repeated {
  int64_t first, end, rows, T;
  const float *q;   /* [rows,H,D] rotated queries */
  const float *own; /* [Hkv,T,D] rotated keys of all T */
};
/* Raises largest [Hkv,n], zeros before the first piece, to the largest attention weight that a token of first..end-1
 * receives from any row and head of the group. The caller drops the rows afterwards. */
wn_status wn_once_repeat(wn_context *ctx, const struct wn_once_view *view, const struct wn_once_repeated *piece,
                         double *largest);

/* ---- which tokens stay ---- */

/* The `kept` tokens with the lowest of n scores, in ascending order; of equal ones the newest. 0 <= kept <= n. */
wn_status wn_once_best(wn_context *ctx, const double *scores, int64_t n, int64_t kept, int32_t *out);
/* CriticalKV over any method: changes the method's scores [Hkv,n] by the norms [Hkv,n] of the projected values (needs
 * v, wo). kept [Hkv]: what each head will keep. What is added to importances (critical.epsilon) is meant for mean
 * attention weights, as methods give them; a policy's sums over rows and heads are so many times larger. */
wn_status wn_once_projected(wn_context *ctx, const struct wn_once_view *view, double *norms);
wn_status wn_once_critical(wn_context *ctx, const struct wn_once_view *view, const int64_t *kept, const double *norms,
                           double *scores);
/* AdaKV: `total` tokens over all rows of scores [rows,n] go to the lowest scores, but each row has at least `safe`.
 * Rows are the key-value heads of a layer, or of all layers. kept [rows] receives the numbers. */
wn_status wn_once_ada(wn_context *ctx, const double *scores, int64_t rows, int64_t n, int64_t total, int64_t safe,
                      int64_t *kept);
/* How many of a budget of `kept` tokens AdaKV's safeguard gives each head. */
int64_t wn_once_ada_safe(const struct wn_once_options *options, int64_t kept);
/* PyramidKV: the tokens that a layer of `layers` keeps of n, where layers keep `kept` on average (a real number: n (1 -
 * ratio)) and a method reads a window of `window` rows. */
int64_t wn_once_pyramid(const struct wn_once_options *options, int64_t layer, int64_t layers, int64_t n, double kept,
                        int64_t window);

/* The keys of a view before rotation, [Hkv,n,D]: those of tokens first..first+count-1, [Hkv,count,D]. */
void wn_once_plain_keys(const struct wn_once_view *view, int64_t first, int64_t count, double *out);

#endif
