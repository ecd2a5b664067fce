/* Score maps: terms of attention that change one logit at a time. A mechanism defines its map; the operation knows only
 * this interface. Maps act after scale * q . (k + p[x]) and before selection, masks and spans, in order: a selecting
 * head selects with mapped logits. There are three forms:
 *   bias    L += f(head, x), x the distance of the key from the row; f may have parameters theta[n,H] with gradients
 *   keyed   L = f(L, x, row, key), after all biases: key is a number of the key, row that of the row's own key
 *   curve   L = f(L), the last map of a call
 *
 * The functions of a map are written once, in a header in ops/term/ or in a test, and compiled for every backend:
 *
 *   bias    double NAME_head(t, at)               what all distances of a head share, such as a slope
 *           double NAME_value(t, of_head, at)     f
 *           double NAME_slope(t, at, k)           df / d theta[k,head]
 *           struct wn_interval NAME_reach(t, open, k)       the distances at which that is not 0
 *   keyed   REAL NAME_forward_REAL(t, logit, at); NAME_slope_REAL(t, y, at): the derivatives of y = f by L, row and
 *           key; float and double
 *   curve   REAL NAME_forward_REAL(t, logit), REAL NAME_backward_REAL(t, y): df / dL from y = f(L); float and double */
#ifndef WN_OPS_SCORE_H
#define WN_OPS_SCORE_H

#include "ops/stride.h"
#include "ops/term/term.h"
#include "winnow/context.h"

/* Where a bias is asked for: head of the model, distance. */
struct wn_score_at {
  int64_t head, x;
  bool open; /* rows without causality: x may be below 0 */
  bool wide; /* theta has doubles, not floats */
};

/* Where a keyed map is asked for, and its derivatives. x is below 0 for keys after the row, which no row sees. */
#define WN_SCORE_PAIR(REAL)                                                                                            \
  struct wn_score_pair_##REAL {                                                                                        \
    REAL x, row, key;                                                                                                  \
  };                                                                                                                   \
  struct wn_score_slope_##REAL {                                                                                       \
    REAL logit, row, key;                                                                                              \
  };
WN_SCORE_PAIR(float)
WN_SCORE_PAIR(double)

/* A row and n of its keys. Backward adds to dkey[n] and *drow. */
struct wn_score_keys {
  int64_t n, first; /* distances x[n], or, with x NULL, first, first - 1, ... */
  const int32_t *x;
  double row;
  const void *key; /* [n] */
  void *dkey;
  double *drow;
};

struct wn_score_map;
enum { WN_SCORE_ISAS = 3 }; /* indexed by enum wn_isa */
/* The maps that a backend which compiles them itself (cuda) tells apart. It calls another one's kernels. */
enum wn_score_id {
  WN_SCORE_OTHER,
  WN_SCORE_BUCKETS,
  WN_SCORE_FORGET,
  WN_SCORE_WRITE,
  WN_SCORE_FADE,
  WN_SCORE_ALIBI,
  WN_SCORE_SOFTCAP
};

struct wn_score_kind {
  const char *name; /* the name in messages: "alibi" */
  enum wn_score_id id;
  uint32_t traits; /* ops/terms.h: what the term can be combined with */
  /* A bias: sums[n] += f at distances x[n], or, with x NULL, at.x, at.x - 1, ... Keys after a row whose rows are causal
   * get a number too, which nobody reads. */
  void (*values)(const struct wn_score_map *, struct wn_score_at at, const int32_t *x, int64_t n, double *sums);
  double (*slope)(const struct wn_score_map *, struct wn_score_at at, int64_t k); /* NULL: no parameters */
  struct wn_interval (*reach)(const struct wn_score_map *, bool open, int64_t k);
  const void *kernels; /* struct score_kernels of backends/cuda/attention/score.cuh, for WN_SCORE_OTHER; or NULL */
  /* Keyed: replaces L[n]; turns the gradients G[n] of the mapped logits y[n] into those of L. */
  bool scales; /* its derivatives depend on y: no map may come after it */
  bool sums;   /* the numbers are running sums over the sequence's tokens */
  void (*keyed_double)(const struct wn_score_map *, const struct wn_score_keys *, double *L);
  void (*keyed_back_double)(const struct wn_score_map *, const struct wn_score_keys *, const double *y, double *G);
  void (*keyed_float[WN_SCORE_ISAS])(const struct wn_score_map *, const struct wn_score_keys *, float *L);
  void (*keyed_back_float[WN_SCORE_ISAS])(const struct wn_score_map *, const struct wn_score_keys *, const float *y,
                                          float *G);
  /* A curve: replaces L[n]; multiplies the gradients G[n] of the mapped logits y[n]. */
  void (*forward_double)(const struct wn_score_map *, double *L, int64_t n);
  void (*backward_double)(const struct wn_score_map *, const double *y, double *G, int64_t n);
  void (*forward_float[WN_SCORE_ISAS])(const struct wn_score_map *, float *L, int64_t n);
  void (*backward_float[WN_SCORE_ISAS])(const struct wn_score_map *, const float *y, float *G, int64_t n);
};

/* A map in a call. A kind without functions is a term that nobody can serve, so such a call is refused. */
struct wn_score_map {
  const struct wn_score_kind *kind;
  double number[2];  /* the mechanism's settings: a cap, a slope's base */
  bool idle;         /* of a keyed map: logits stay as they are; policies read the numbers all the same */
  int64_t n;         /* parameters of a head; 0: none */
  int64_t stride;    /* elements from one row of theta to the next: the model's heads */
  const void *theta; /* [n,stride] */
  void *dtheta;      /* [n,stride] added to; or NULL */
  const void *key;   /* [B,Tk,Hkv,gates] of a keyed map: a number for each key */
  struct wn_stride s_key;
  int64_t gates, s_gate; /* a key's numbers in a key-value head, s_gate apart: one, or one for each query head */
  void *dkey;            /* with the strides of key; overwritten; or NULL */
};
#define WN_SCORE_MAPS_MAX 6

/* Which of a key's numbers head h reads, whose key-value head has `share` heads; where it lies for key 0. */
WN_TERM int64_t wn_score_gate(const struct wn_score_map *t, int64_t h, int64_t share) {
  return t->gates > 1 ? h % share : 0;
}
WN_TERM int64_t wn_score_number(const struct wn_score_map *t, int64_t b, int64_t h, int64_t share) {
  return b * t->s_key.b + h / share * t->s_key.h + wn_score_gate(t, h, share) * t->s_gate;
}

WN_TERM double wn_score_theta(const struct wn_score_map *t, struct wn_score_at at, int64_t k) {
  const int64_t i = k * t->stride + at.head;
  return at.wide ? ((const double *)t->theta)[i] : (double)((const float *)t->theta)[i];
}

/* Defines NAME_values for a kind. */
#define WN_SCORE_BIAS(NAME)                                                                                            \
  static void NAME##_values(const struct wn_score_map *t, struct wn_score_at at, const int32_t *x, int64_t n,          \
                            double *sums) {                                                                            \
    const double of_head = NAME##_head(t, at);                                                                         \
    const int64_t first = at.x;                                                                                        \
    for (int64_t i = 0; i < n; i++) at.x = x ? x[i] : first - i, sums[i] += NAME##_value(t, of_head, at);              \
  }

/* Defines a curve's functions on arrays, floats for each instruction set; WN_SCORE_CURVE_OF(NAME) puts them into a
 * kind. */
#if defined(__x86_64__) && defined(__GNUC__)
#define WN_SCORE_AVX2 __attribute__((target("avx2")))
#if defined(__clang__) /* clang knows prefer-vector-width only as a command line option */
#define WN_SCORE_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq")))
#else
#define WN_SCORE_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")))
#endif
#else
#define WN_SCORE_AVX2
#define WN_SCORE_AVX512
#endif
/* NOLINTBEGIN(bugprone-macro-parentheses): types and attributes */
#define WN_SCORE_CURVE_FOR(TARGET, NAME, REAL, ISA)                                                                    \
  TARGET static void NAME##_on_##ISA(const struct wn_score_map *t, REAL *L, int64_t n) {                               \
    _Pragma("omp simd") for (int32_t i = 0; i < (int32_t)n; i++) L[i] = NAME##_forward_##REAL(t, L[i]);                \
  }                                                                                                                    \
  TARGET static void NAME##_back_##ISA(const struct wn_score_map *t, const REAL *y, REAL *G, int64_t n) {              \
    _Pragma("omp simd") for (int32_t i = 0; i < (int32_t)n; i++) G[i] *= NAME##_backward_##REAL(t, y[i]);              \
  }
#define WN_SCORE_CURVE(NAME)                                                                                           \
  WN_SCORE_CURVE_FOR(, NAME, double, double)                                                                           \
  WN_SCORE_CURVE_FOR(, NAME, float, plain)                                                                             \
  WN_SCORE_CURVE_FOR(WN_SCORE_AVX2, NAME, float, avx2)                                                                 \
  WN_SCORE_CURVE_FOR(WN_SCORE_AVX512, NAME, float, avx512)
/* A loop for each kind of distances: in one, a masked load of the distances that are not there costs more than the
 * rest. */
#define WN_SCORE_KEYED_ON(NAME, REAL, X)                                                                               \
  _Pragma("omp simd") for (int32_t i = 0; i < n; i++) L[i] =                                                           \
      NAME##_forward_##REAL(&map, L[i], (struct wn_score_pair_##REAL){(REAL)(X), row, key[i]});
#define WN_SCORE_KEYED_BACK(NAME, REAL, X)                                                                             \
  _Pragma("omp simd reduction(+ : drow)") for (int32_t i = 0; i < n; i++) {                                            \
    const struct wn_score_pair_##REAL at = {(REAL)(X), row, key[i]};                                                   \
    const struct wn_score_slope_##REAL slope = NAME##_slope_##REAL(&map, y[i], at);                                    \
    drow += G[i] * slope.row;                                                                                          \
    dkey[i] += G[i] * slope.key;                                                                                       \
    G[i] *= slope.logit;                                                                                               \
  }
#define WN_SCORE_KEYED_FOR(TARGET, NAME, REAL, ISA)                                                                    \
  TARGET static void NAME##_on_##ISA(const struct wn_score_map *t, const struct wn_score_keys *k, REAL *L) {           \
    const struct wn_score_map map = *t;                                                                                \
    const REAL *key = k->key, row = (REAL)k->row;                                                                      \
    const int32_t *x = k->x, first = (int32_t)k->first, n = (int32_t)k->n;                                             \
    if (x) {                                                                                                           \
      WN_SCORE_KEYED_ON(NAME, REAL, x[i])                                                                              \
    } else {                                                                                                           \
      WN_SCORE_KEYED_ON(NAME, REAL, first - i)                                                                         \
    }                                                                                                                  \
  }                                                                                                                    \
  TARGET static void NAME##_back_##ISA(const struct wn_score_map *t, const struct wn_score_keys *k, const REAL *y,     \
                                       REAL *G) {                                                                      \
    const struct wn_score_map map = *t;                                                                                \
    const REAL *key = k->key, row = (REAL)k->row;                                                                      \
    const int32_t *x = k->x, first = (int32_t)k->first, n = (int32_t)k->n;                                             \
    REAL *dkey = k->dkey, drow = 0;                                                                                    \
    if (x) {                                                                                                           \
      WN_SCORE_KEYED_BACK(NAME, REAL, x[i])                                                                            \
    } else {                                                                                                           \
      WN_SCORE_KEYED_BACK(NAME, REAL, first - i)                                                                       \
    }                                                                                                                  \
    *k->drow += (double)drow;                                                                                          \
  }
/* NOLINTEND(bugprone-macro-parentheses) */
#define WN_SCORE_KEYED(NAME)                                                                                           \
  WN_SCORE_KEYED_FOR(, NAME, double, double)                                                                           \
  WN_SCORE_KEYED_FOR(, NAME, float, plain)                                                                             \
  WN_SCORE_KEYED_FOR(WN_SCORE_AVX2, NAME, float, avx2)                                                                 \
  WN_SCORE_KEYED_FOR(WN_SCORE_AVX512, NAME, float, avx512)
#define WN_SCORE_KEYED_OF(NAME)                                                                                        \
  .keyed_double = NAME##_on_double, .keyed_back_double = NAME##_back_double,                                           \
  .keyed_float = {NAME##_on_plain, NAME##_on_avx2, NAME##_on_avx512},                                                  \
  .keyed_back_float = {NAME##_back_plain, NAME##_back_avx2, NAME##_back_avx512}
#define WN_SCORE_CURVE_OF(NAME)                                                                                        \
  .forward_double = NAME##_on_double, .backward_double = NAME##_back_double,                                           \
  .forward_float = {NAME##_on_plain, NAME##_on_avx2, NAME##_on_avx512},                                                \
  .backward_float = {NAME##_back_plain, NAME##_back_avx2, NAME##_back_avx512}

#endif
