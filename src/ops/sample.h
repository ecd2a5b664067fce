/* Drawing a token: adjusting the logits, then the draw. */
#ifndef WN_OPS_SAMPLE_H
#define WN_OPS_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

/* y = x with these changes, in this order: -infinity if the token is not allowed; if the text has the token (`seen`), x
 * / repeat if x > 0, else x * repeat; minus presence + frequency * times[v], if v was drawn; plus the biases, in order.
 * Always floats. */
struct wn_adjust {
  int64_t V, n;           /* ids below n may be drawn; biases may be for any id below V */
  const float *x;         /* [V] */
  float *y;               /* [V], may be x */
  const uint8_t *allowed; /* [allowed_count], ids beyond are not allowed; NULL: all are allowed */
  int64_t allowed_count;
  const uint8_t *seen; /* [n] or NULL */
  double repeat;
  const int32_t *times; /* [n] or NULL */
  double presence, frequency;
  int64_t biases;
  const int32_t *bias_ids; /* [biases] */
  const float *bias;       /* [biases] */
};

/* bad 1: logit `token` is NaN or infinite; 2: all logits are -infinity. */
struct wn_drawn {
  int32_t token, bad;
  double log_probability;
};

/* Draws a token for each row by wn_sample's rule (winnow/model.h): min-p, then temperature, top-k, top-p. Temperature
 * 0: the largest logit, ties to the lowest id. The random number depends on seed and step (base/rng.h) and is the same
 * on every backend. A backend may sum weights in another order than ref; it then draws another token if the number is
 * within rounding of a boundary. A row's result does not depend on the other rows. */
struct wn_sample_row {
  int64_t V, top_k;    /* top_k 0: off */
  const float *logits; /* [V] */
  double temperature, top_p, min_p;
  uint64_t seed, step;
  bool log_probability; /* also of the token, under the softmax of the unchanged logits; else 0 */
};
enum { WN_SAMPLE_ROWS = 32 }; /* the most rows of a call */
struct wn_sample {
  int64_t rows;
  struct wn_sample_row row[WN_SAMPLE_ROWS];
  struct wn_drawn *drawn; /* [rows] */
};

#endif
