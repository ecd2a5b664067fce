/* What is held between evaluations, and what is run of one: private to reuse*.c. */
#ifndef WN_PRUNE_REUSE_H
#define WN_PRUNE_REUSE_H

#include "model/layer.h"
#include "model/workspace.h"
#include "prune/evaluator.h"

/* One layer's arrays for all rows of the set: [rows,T,width] each. */
struct wn_reuse_held {
  float *x, *k, *v;
  float *sq, *sk; /* selecting queries; bilinear keys; or NULL */
};
struct wn_reuse_version {
  struct wn_reuse_held *layers; /* [L+1]; of the last, the end, x alone */
  double *loss;                 /* [rows,T] */
  int64_t *first; /* [batches,L+1] of a trial: the first position that is in its arrays (L: and in loss) */
};

struct wn_reuse {
  struct wn_prune_evaluator base;
  wn_context *ctx;
  struct wn_model *model;
  const struct wn_prune_set *set;
  wn_budgets budgets; /* tokens: the accepted ones */
  int64_t batch;
  struct wn_rotary rotary;                    /* own, where rows are longer than the model's table */
  int64_t select_heads, select_width;         /* G, G*D; 0 without selection */
  struct wn_reuse_version state, trial, best; /* trial.layers NULL: trials are not kept */
  int64_t best_layer, best_to;                /* -1: none */
  double best_loss;
  bool probed;
  struct wn_arrays arrays;
  /* A batch at work. */
  struct wn_layer_blocks blocks;
  struct wn_layer_temp temp;
  int32_t *positions, *evicted_at; /* [batch,T], [batch,P,T] */
  float *k, *v, *sq, *sk;          /* [batch,T,...] rows before the first changed from state, the others new */
  float *f;                        /* [batch,G,T] */
  float *y;                        /* [batch,T,G*D] of the selection alone, dropped */
  void *rows;                      /* q, y and the like of a call that begins where a tile does */
  size_t rows_bytes;
  void *x_out, *n_out, *rstd, *mean, *logits;
  double *loss; /* [batch*T] */
  uint8_t *hit;
  int64_t chunk;
  void *scratch;
  size_t scratch_bytes;
};

/* What is being run. */
struct wn_reuse_task {
  int64_t first_layer, first; /* the first layer, and position, that change */
  bool fresh;                 /* from the embedding on: nothing is held yet */
  bool every;                 /* all the way, changed or not */
  int64_t row0, B;
  const wn_budgets *budgets;
  const struct wn_reuse_version *to; /* where results go; NULL: nowhere */
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
/* Attention of the new positions over all; h: the layer's whole keys, values and selecting queries. */
wn_status wn_reuse_attend(struct wn_run *run, struct wn_reuse *r, const struct wn_reuse_task *t, int64_t l,
                          struct wn_layer_acts *a, struct wn_reuse_held *h);

/* The first position that a budget of `to` can change, with enough rows for the products. */
int64_t wn_reuse_first_changed(const struct wn_reuse *r, int64_t to);
/* One batch; *sum: over its counted positions, those before the first changed ones from state. */
wn_status wn_reuse_run_batch(struct wn_reuse *r, const struct wn_reuse_task *whole, bool measuring, size_t *need,
                             double *sum);
/* All batches; the mean loss. */
wn_status wn_reuse_run_set(struct wn_reuse *r, const struct wn_reuse_task *t, double *loss);

#endif
