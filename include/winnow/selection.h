/* winnow: what every token of a text sees in every layer: attention weights, the selections F that reduce them
 * (Leviathan, Kalman, Matias, arXiv 2410.02703, section 3), and the tokens that a budget has evicted. */
#ifndef WINNOW_SELECTION_H
#define WINNOW_SELECTION_H

#include <stddef.h>
#include "winnow/data.h"
#include "winnow/kv.h"
#include "winnow/model.h"

WN_EXPERIMENTAL_BEGIN

/* One layer of one text of T tokens. Arrays are borrowed for the call. Row i is the query, column j the key; entries j
 * > i are 0. */
typedef struct wn_selection_layer {
  int64_t layer, T, heads;
  int64_t budget;            /* tokens; the largest, where key-value heads have budgets of their own; 0: none */
  int64_t groups;            /* P, groups of heads that evict on their own; 0: nothing is evicted */
  const float *weights;      /* [T,T] mean over the heads; a row sums to 1 minus the weight of learned sinks */
  const float *head_weights; /* [H,T,T]; NULL unless asked for */
  const float *F;            /* [T,T] is subtracted from row i's logits, mean over the layer's selections; NULL: the
                                attention is not selective */
  const int32_t *evicted_at; /* [P,T] first row that no longer sees the key, INT32_MAX: none; NULL: no eviction */
} wn_selection_layer;
/* A status other than WN_OK ends the analysis and is returned. */
typedef wn_status (*wn_selection_fn)(void *user, const wn_selection_layer *layer);

/* What is looked at, and who is told. */
typedef struct wn_selection_options {
  size_t size;               /* sizeof the struct (context.h) */
  const wn_budgets *budgets; /* in force; NULL: none */
  bool heads;                /* the layers have head_weights too */
  wn_selection_fn layer;     /* called for each layer, in order */
  void *user;
} wn_selection_options;

/* tokens [T], one document, T at most the model's context. loss (may be NULL): mean over the text's positions, nats.
 * The weights are those that the attention uses, with all of its mechanisms. Cost: a forward pass and T*T*H additions a
 * layer; memory: 12 bytes per pair of tokens, 4 G + 4 more with F, 4 H more with `heads`. WN_ERR_UNSUPPORTED: a model
 * with an encoder; budgets with cache_positions. */
wn_status wn_analyze_selection(wn_context *ctx, wn_model *model, const int32_t *tokens, int64_t T,
                               const wn_selection_options *options, double *loss);

/* The mean over many sequences, in cells of `cell` by `cell` pairs of tokens. Pairs j > i are not counted; a cell
 * without pairs is 0. */
typedef struct wn_selection_mean {
  int64_t layers, T, cell, size; /* size: ceil(T/cell) */
  uint64_t sequences;
  double loss;
  float *weights; /* [L,size,size] mean weight */
  float *masked;  /* [L,size,size] mean of 1 - exp(-F), the part by which F alone reduces a weight before the
                     normalisation; NULL: not selective */
  float *last;    /* [L,T] mean of 1 - exp(-F) in the last row; NULL likewise */
} wn_selection_mean;
typedef struct wn_selection_mean_options {
  size_t size;        /* sizeof the struct (context.h) */
  int64_t T;          /* tokens of a sequence: the context that the source was created with; at most the model's */
  uint64_t sequences; /* the first so many of the source; fewer where it has fewer */
  int64_t cell;       /* 0: the smallest for which `size` is at most 256 */
  void (*progress)(void *user, uint64_t done, uint64_t total); /* may be NULL */
  void *user;
} wn_selection_mean_options;
/* Released with wn_selection_mean_destroy. */
wn_status wn_analyze_selection_mean(wn_context *ctx, wn_model *model, const wn_data_source *source,
                                    const wn_selection_mean_options *options, wn_selection_mean **out);
void wn_selection_mean_destroy(wn_selection_mean *mean); /* NULL is allowed */

WN_API_END
#endif
