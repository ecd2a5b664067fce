/* Score maps: terms of attention that change one logit at a time. The change depends on the logit, its head and the
 * key's distance from the row (ALiBi, soft-capping). A mechanism defines its map; the operation knows only this
 * interface. It applies maps after scale * q . k, relative positions and biases, and before selection, masks and spans:
 * a selecting head selects with mapped logits. The maps of a call run in order; a map that has a backward must be the
 * last. */
#ifndef WN_OPS_SCORE_H
#define WN_OPS_SCORE_H

#include <stdint.h>
#include "winnow/context.h"

/* n logits of one row: key i is at position first + i, or at[i]. A map may depend only on distances of positions. Some
 * keys may come after the row: their logits must not become NaN, and have a meaning only for maps with WN_TRAIT_OPEN.
 */
struct wn_score_segment {
  int64_t head;     /* of the model */
  int64_t position; /* of the row */
  int64_t first;
  const int32_t *at; /* [n] or NULL */
  int64_t n;
};

struct wn_score_map;
/* Forward: replaces L[n] by the mapped logits. Backward: G[n] is the gradient of the mapped logits y[n] and becomes
 * that of the logits before. */
typedef void (*wn_score_forward_float)(const struct wn_score_map *, const struct wn_score_segment *, float *L);
typedef void (*wn_score_forward_double)(const struct wn_score_map *, const struct wn_score_segment *, double *L);
typedef void (*wn_score_backward_float)(const struct wn_score_map *, const struct wn_score_segment *, const float *y,
                                        float *G);
typedef void (*wn_score_backward_double)(const struct wn_score_map *, const struct wn_score_segment *, const double *y,
                                         double *G);

enum { WN_SCORE_ISAS = 3 }; /* indexed by enum wn_isa */

struct wn_score_kind {
  const char *name; /* the name in messages: "alibi" */
  uint32_t traits;  /* ops/terms.h: what the term can be combined with */
  wn_score_forward_double forward_double;
  wn_score_backward_double backward_double; /* NULL: the identity */
  wn_score_forward_float forward_float[WN_SCORE_ISAS];
  wn_score_backward_float backward_float[WN_SCORE_ISAS]; /* likewise */
};

/* A map in a call. A kind without functions is a term that only a backend could serve that knows it by name. None does,
 * so such a call is refused. */
struct wn_score_map {
  const struct wn_score_kind *kind;
  double number[2]; /* the mechanism's parameters: a cap, a slope's base */
};
#define WN_SCORE_MAPS_MAX 4

/* Maps one logit of a key at distance x through n maps; below, the factor for its gradient, from the mapped logit y. */
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

/* Compiles a float function for each instruction set from one body, an always-inline function. WN_SCORE_FORWARD(f) and
 * WN_SCORE_BACKWARD(f) define the functions; {WN_SCORE_SLOTS(f)} is the kind's table. */
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
