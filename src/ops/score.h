/* Score maps: terms of attention that change one logit at a time, from its own value, its head and how far the key lies
 * before the row (ALiBi, soft-capping). A mechanism brings its map along; the operation knows of it only what stands
 * here, and runs it after scale * q . k and the relative positions and biases, before selection, masks and spans: what
 * a head selects with has been mapped. Maps of a call run in order; one that has a backward must be the last. */
#ifndef WN_OPS_SCORE_H
#define WN_OPS_SCORE_H

#include <stdint.h>
#include "winnow/context.h"

/* n logits of one row: key i is at position first + i, or at[i]. A map looks at positions' distances alone. Keys after
 * the row may be among them: their logits must stay numbers, and are not looked at but by maps that go with open rows.
 */
struct wn_score_segment {
  int64_t head;     /* of the model */
  int64_t position; /* the row's */
  int64_t first;
  const int32_t *at; /* [n] or NULL */
  int64_t n;
};

struct wn_score_map;
/* Forward: L[n] becomes the mapped logits. Backward: G[n], the gradient of the mapped logits y[n], becomes that of L.
 */
typedef void (*wn_score_forward_float)(const struct wn_score_map *, const struct wn_score_segment *, float *L);
typedef void (*wn_score_forward_double)(const struct wn_score_map *, const struct wn_score_segment *, double *L);
typedef void (*wn_score_backward_float)(const struct wn_score_map *, const struct wn_score_segment *, const float *y,
                                        float *G);
typedef void (*wn_score_backward_double)(const struct wn_score_map *, const struct wn_score_segment *, const double *y,
                                         double *G);

enum { WN_SCORE_ISAS = 3 }; /* by enum wn_isa */

struct wn_score_kind {
  const char *name; /* as messages have it: "alibi" */
  uint32_t traits;  /* ops/terms.h: what the term goes with */
  wn_score_forward_double forward_double;
  wn_score_backward_double backward_double; /* NULL: the identity */
  wn_score_forward_float forward_float[WN_SCORE_ISAS];
  wn_score_backward_float backward_float[WN_SCORE_ISAS]; /* the same */
};

/* A map in a call. A kind without functions is a term that only a backend can serve that knows its name; none does, and
 * the call is refused. */
struct wn_score_map {
  const struct wn_score_kind *kind;
  double number[2]; /* the mechanism's: a cap, a slope's base */
};
#define WN_SCORE_MAPS_MAX 4

/* One logit, of a key `x` before the row, through n maps; and the factor on the gradient of what it became, y. */
static inline double wn_score_one(const struct wn_score_map *map, int64_t n, int64_t head, int64_t x, double logit) {
  const struct wn_score_segment s = {.head = head, .position = x, .n = 1};
  for (int64_t i = 0; i < n; i++) map[i].kind->forward_double(&map[i], &s, &logit);
  return logit;
}
static inline double wn_score_slope(const struct wn_score_map *map, int64_t n, int64_t head, int64_t x, double y) {
  const struct wn_score_segment s = {.head = head, .position = x, .n = 1};
  double slope = 1;
  if (n > 0 && map[n - 1].kind->backward_double) map[n - 1].kind->backward_double(&map[n - 1], &s, &y, &slope);
  return slope;
}

/* A float function for each instruction set: the body, an always-inline function, compiled for each of them.
 * WN_SCORE_FORWARD(f) and WN_SCORE_BACKWARD(f) define them, {WN_SCORE_SLOTS(f)} is the kind's table. */
#if defined(__x86_64__) && defined(__GNUC__)
#define WN_SCORE_AVX2 __attribute__((target("avx2")))
#if defined(__clang__) /* which knows the last one as an option of the command line alone */
#define WN_SCORE_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq")))
#else
#define WN_SCORE_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")))
#endif
#else
#define WN_SCORE_AVX2
#define WN_SCORE_AVX512
#endif
#define WN_SCORE_BODY static inline __attribute__((always_inline)) void
#define WN_SCORE_FORWARD_FOR(target, name, body)                                                                       \
  target static void name(const struct wn_score_map *map, const struct wn_score_segment *s, float *L) {                \
    body(map, s, L);                                                                                                   \
  }
#define WN_SCORE_FORWARD(body)                                                                                         \
  WN_SCORE_FORWARD_FOR(, body##_plain, body)                                                                           \
  WN_SCORE_FORWARD_FOR(WN_SCORE_AVX2, body##_avx2, body)                                                               \
  WN_SCORE_FORWARD_FOR(WN_SCORE_AVX512, body##_avx512, body)
#define WN_SCORE_BACKWARD_FOR(target, name, body)                                                                      \
  target static void name(const struct wn_score_map *map, const struct wn_score_segment *s, const float *y,            \
                          float *G) {                                                                                  \
    body(map, s, y, G);                                                                                                \
  }
#define WN_SCORE_BACKWARD(body)                                                                                        \
  WN_SCORE_BACKWARD_FOR(, body##_plain, body)                                                                          \
  WN_SCORE_BACKWARD_FOR(WN_SCORE_AVX2, body##_avx2, body)                                                              \
  WN_SCORE_BACKWARD_FOR(WN_SCORE_AVX512, body##_avx512, body)
#define WN_SCORE_SLOTS(body) body##_plain, body##_avx2, body##_avx512

#endif
