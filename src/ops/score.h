/* Score maps: terms of attention that change one logit at a time, from its own value, its head and how far the key lies
 * before the row (ALiBi, soft-capping). A mechanism brings its map along; the operation knows of it only what stands
 * here, and runs it after scale * q . k and the relative positions and biases, before selection, masks and spans: what
 * a head selects with has been mapped. Maps of a call run in order; one that has a backward must be the last. */
#ifndef WN_OPS_SCORE_H
#define WN_OPS_SCORE_H

#include <stdint.h>
#include "winnow/context.h"

/* n logits of one row: key i is at position first + i, or at[i]. Positions behind the row's may be among them; what
 * becomes of their logits is not looked at. */
struct wn_score_segment {
  int64_t head, heads; /* of the model */
  int64_t position;    /* the row's */
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

#endif
