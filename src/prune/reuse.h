/* What is held between evaluations, and what an evaluation computes. Private to reuse*.c. */
#ifndef WN_PRUNE_REUSE_H
#define WN_PRUNE_REUSE_H

#include "model/layer.h"
#include "model/workspace.h"
#include "prune/evaluator.h"

/* One layer's arrays for all rows of the set, [rows,T,width] each. */
struct wn_reuse_held {
  float *x, *k, *v;
  float *sq, *sk; /* selecting queries; bilinear keys; or NULL */
};
struct wn_reuse_version {
  struct wn_reuse_held *layers; /* [L+1]; the last one is the stream's end and has only x */
  double *loss;                 /* [rows,T] */
  int64_t *first; /* [batches,L+1] for a trial: the first position that its arrays hold (L: also `loss`) */
};

struct wn_reuse {
  struct wn_prune_evaluator base;
  wn_context *ctx;
  struct wn_model *model;
  const struct wn_prune_set *set;
  wn_budgets budgets; /* tokens: the accepted ones */
  int64_t batch;
  struct wn_rotary rotary;                    /* its own table, if rows are longer than the model's */
  int64_t select_heads, select_width;         /* G, G*D; 0 without selection */
  struct wn_reuse_version state, trial, best; /* trial.layers NULL: trials are not kept */
  int64_t best_layer, best_to;                /* -1: none */
  double best_loss;
  bool probed;
  struct wn_arrays arrays;
  /* The current batch. */
  struct wn_layer_blocks blocks;
  struct wn_layer_temp temp;
  int32_t *positions, *evicted_at; /* [batch,T], [batch,P,T] */
  float *k, *v, *sq,
      *sk;    /* [batch,T,...] positions before the first changed one come from `state`, the others are new */
  float *f;   /* [batch,G,T] */
  float *y;   /* [batch,T,G*D] output of a call for the selection only; not used */
  void *rows; /* arrays per row (q, y, ...) of a call that is extended to the beginning of a tile */
  size_t rows_bytes;
  void *x_out, *n_out, *rstd, *mean, *logits;
  double *loss;     /* [batch*T] */
  double *row_loss; /* [rows of the set] scratch */
  uint8_t *hit;
  int64_t chunk;
  void *scratch;
  size_t scratch_bytes;
};

/* A task: what an evaluation computes. */
struct wn_reuse_task {
  int64_t first_layer, first; /* the first layer and the first position that change */
  bool fresh;                 /* from the embedding on, since nothing is held yet */
  bool every;                 /* compute everything, changed or not */
  int64_t row0, B;
  const wn_budgets *budgets;
  const struct wn_reuse_version *to; /* where results are kept; NULL: nowhere */
  double *row_loss;                  /* [rows] receives the sums of the rows' losses; NULL: nothing */
};

/* An array [rows,T,width], from row `row` on. */
struct wn_reuse_rows {
  float *x;
  int64_t row, width;
};
/* Copies `count` positions from `first` on, of each of B rows. */
void wn_reuse_copy(const struct wn_reuse *r, int64_t B, struct wn_reuse_rows to, struct wn_reuse_rows from,
                   int64_t first, int64_t count);
int64_t wn_reuse_kv_width(const struct wn_reuse *r);
/* The attention of the new positions over all keys. h: receives the layer's keys, values and selecting queries for all
 * positions. */
wn_status wn_reuse_attend(struct wn_run *run, struct wn_reuse *r, const struct wn_reuse_task *t, int64_t l,
                          struct wn_layer_acts *a, struct wn_reuse_held *h);

/* The first position that a budget of `to` can change, lowered so that products have enough rows. */
int64_t wn_reuse_first_changed(const struct wn_reuse *r, int64_t to);
/* Runs one batch; *sum: the loss over its counted positions, with those before the first changed one taken from
 * `state`. */
wn_status wn_reuse_run_batch(struct wn_reuse *r, const struct wn_reuse_task *whole, bool measuring, size_t *need,
                             double *sum);
/* Runs the part's batches. */
wn_status wn_reuse_run_part(struct wn_reuse *r, const struct wn_reuse_task *t, const struct wn_prune_part *part);
/* Runs all batches; gives the mean loss. */
wn_status wn_reuse_run_set(struct wn_reuse *r, const struct wn_reuse_task *t, double *loss);

#endif
