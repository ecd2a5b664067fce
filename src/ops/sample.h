/* Drawing a token: what changes the logits first, and the draw. */
#ifndef WN_OPS_SAMPLE_H
#define WN_OPS_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

/* y = x, then, in this order: minus infinity where a token is not allowed; of tokens that the text has (`seen`) x over
 * `repeat` where it is above 0, else times it; minus presence + frequency times[v] of those that were drawn; plus
 * biases, in their order. Floats, whatever the dtype. */
struct wn_adjust {
  int64_t V, n;           /* ids below n may be drawn; biases are of any below V */
  const float *x;         /* [V] */
  float *y;               /* [V], may be x */
  const uint8_t *allowed; /* [allowed_count], the ids behind it are not allowed; NULL: all are */
  int64_t allowed_count;
  const uint8_t *seen; /* [n] or NULL */
  double repeat;
  const int32_t *times; /* [n] or NULL */
  double presence, frequency;
  int64_t biases;
  const int32_t *bias_ids; /* [biases] */
  const float *bias;       /* [biases] */
};

/* bad 1: logit `token` is NaN or infinite; 2: none is above minus infinity. */
struct wn_drawn {
  int32_t token, bad;
  double log_probability;
};

/* A token by wn_sample's rule (winnow/model.h): min-p, then temperature, top-k, top-p; temperature 0: the largest, ties
 * to the lowest id. The random number is that of seed and step (base/rng.h), the same on every backend; sums of weights
 * may be in another order than ref's, and then draw another token where a number falls within rounding of a border. */
struct wn_sample {
  int64_t V, top_k;    /* top_k 0: all */
  const float *logits; /* [V] */
  double temperature, top_p, min_p;
  uint64_t seed, step;
  bool log_probability;   /* of the token, by the softmax of the logits as they are; else 0 */
  struct wn_drawn *drawn; /* [1] */
};

#endif
