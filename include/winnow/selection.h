/* winnow: what every token of a text sees in every layer: attention weights, the selections F that reduce them
 * (Leviathan, Kalman, Matias, arXiv 2410.02703, section 3), and which tokens a budget has evicted. */
#ifndef WINNOW_SELECTION_H
#define WINNOW_SELECTION_H

#include <stddef.h>
#include "winnow/data.h"
#include "winnow/kv.h"
#include "winnow/model.h"

WN_EXPERIMENTAL_BEGIN

/* One layer of one text of T tokens. Arrays are borrowed for the call. Row i is the query, column j the key. Entries j
 * > i are 0, except in an encoder, which is bidirectional. */
typedef struct wn_selection_layer {
  int64_t layer, T, heads;
  int64_t budget;       /* tokens; where key-value heads have budgets of their own, the largest; 0: none */
  int64_t groups;       /* P, groups of heads that evict on their own; 0: nothing is evicted */
  const float *weights; /* [T,T] mean over the heads; a row sums to 1 minus the weight of learned sinks. NULL for an
                           encoder, of which only F is shown */
  const float *head_weights; /* [H,T,T]; NULL unless asked for */
  const float *F; /* [T,T] what is subtracted from row i's logits, the mean over the layer's selections; NULL: the
                     attention is not selective */
  const int32_t *evicted_at; /* [P,T] first row that no longer sees the key, INT32_MAX: none; NULL: no eviction */
} wn_selection_layer;
/* Called for each layer. A status other than WN_OK ends the analysis and is returned. */
typedef wn_status (*wn_selection_fn)(void *user, const wn_selection_layer *layer);

/* The options of an analysis of one text. */
typedef struct wn_selection_options {
  size_t size;               /* sizeof the struct (context.h) */
  const wn_budgets *budgets; /* in force; NULL: none */
  bool heads;                /* the layers have head_weights too */
  wn_selection_fn layer;     /* called for each layer, in order */
  void *user;
  bool encoder; /* analyse the model's selective encoder, with the tokens as its input; then neither budgets nor heads,
                   and the loss is 0 */
} wn_selection_options;

/* tokens [T], one document, T at most the model's context. loss (may be NULL): mean over the text's positions, nats.
 * The weights are those that the attention uses, with all of its mechanisms. Cost: a forward pass and T*T*H additions a
 * layer; memory: 12 bytes per pair of tokens, 4 G + 4 more with F, 4 H more with `heads`. WN_ERR_UNSUPPORTED: a model
 * with an encoder, unless `encoder` asks for that; budgets with cache_positions. */
wn_status wn_analyze_selection(wn_context *ctx, wn_model *model, const int32_t *tokens, int64_t T,
                               const wn_selection_options *options, double *loss);

/* The mean over many sequences, in cells of `cell` by `cell` pairs of tokens. Pairs with padding do not count, nor
 * pairs j > i except in an encoder; a cell without pairs is 0. */
typedef struct wn_selection_mean {
  int64_t layers, T, cell, size; /* size: ceil(T/cell) */
  uint64_t sequences;
  double loss;
  float *weights; /* [L,size,size] mean weight; NULL for an encoder */
  float *masked;  /* [L,size,size] mean of 1 - exp(-F), the share by which F alone reduces a weight before the
                     normalisation; NULL: not selective */
  /* [L,T] mean of 1 - exp(-F) in the last row; NULL likewise. Sequences that end in padding are left out */
  float *last;
  float *F;       /* [L,size,size] mean F (figures 7 and 8 of the paper); NULL likewise */
  bool encoder;   /* the layers are an encoder's: cells above the diagonal count too */
  double *pairs;  /* [size,size] number of pairs in each cell, over all sequences */
  uint64_t whole; /* number of sequences without padding, over which `last` is the mean; 0: `last` is 0 */
} wn_selection_mean;
typedef struct wn_selection_mean_options {
  size_t size;        /* sizeof the struct (context.h) */
  int64_t T;          /* tokens of a sequence: the context that the source was created with; at most the model's */
  uint64_t sequences; /* the first so many sequences of the source, or all if it has fewer */
  int64_t cell;       /* 0: the smallest for which `size` is at most 256 */
  void (*progress)(void *user, uint64_t done, uint64_t total); /* may be NULL */
  void *user;
  bool encoder; /* analyse the model's selective encoder: the sequences are its inputs, with T the source's input
                   length, or plain rows of a source without inputs; the loss is 0 */
} wn_selection_mean_options;
/* Released with wn_selection_mean_destroy. */
wn_status wn_analyze_selection_mean(wn_context *ctx, wn_model *model, const wn_data_source *source,
                                    const wn_selection_mean_options *options, wn_selection_mean **out);
void wn_selection_mean_destroy(wn_selection_mean *mean); /* NULL is allowed */

/* How alike two runs select, for every pair of layers. Compared are the cells of their mean 1 - exp(-F) that have pairs
 * in both (on and below the diagonal; all cells of an encoder). Any two layers mask old tokens more than new ones and
 * so correlate: pairs of different layers show how much correlation means nothing. */
typedef struct wn_selection_likeness {
  int64_t layers[2];
  double *correlation; /* [layers[0], layers[1]] Pearson's; 0 where a layer has one value everywhere */
  double *difference;  /* [layers[0], layers[1]] mean absolute difference */
  double same, others; /* mean correlation of layers with the same number, and of all other pairs; 0: there are none */
  /* for each layer of the first run the largest correlation with a layer of the second; the mean of these */
  double best;
  double same_difference, other_difference; /* mean differences of the same pairs */
} wn_selection_likeness;
/* WN_ERR_ARGUMENT unless both means are of selective models, over sequences of the same length in the same cells. Their
 * `pairs` may be NULL: every cell counts. Released with wn_selection_likeness_destroy. */
wn_status wn_selection_compare(wn_context *ctx, const wn_selection_mean *first, const wn_selection_mean *second,
                               wn_selection_likeness **out);
void wn_selection_likeness_destroy(wn_selection_likeness *likeness); /* NULL is allowed */

/* What selection does on a synthetic task (data.h), where it is known which tokens are still needed (Leviathan et al.,
 * section 2). A token counts as selected away for a row where 1 - exp(-F) > 0.5. Only rows that give an answer are
 * looked at. "spent" tokens are no longer needed, "needed" ones are.
 *
 *   variable_assignment   spent: names and values of assignments that a later one to the same variable replaces;
 *                         needed: those of the last assignment to each variable
 *   copy spent: symbols copied so far, when the row predicts the next one;
 *                           needed: symbols still to be copied
 *   parity                spent: all before the last two;
 *                         needed: the last two that can be masked: the one before the row
 *
 * A sequence's first token is never masked and not counted. */
typedef struct wn_task_share {
  uint64_t count;          /* tokens, over rows and sequences */
  double selected, masked; /* share selected away; mean of 1 - exp(-F) */
} wn_task_share;
typedef struct wn_task_layer {
  wn_task_share spent, needed;
  wn_task_share spent_names, needed_names; /* variable_assignment: the names; the fields above: the values */
} wn_task_layer;
typedef struct wn_task_selection {
  int64_t layers;
  uint64_t sequences;
  wn_task_layer *layer; /* [layers] */
  wn_task_layer any;    /* selected away in any layer; masked: the largest over layers */
} wn_task_selection;
/* On the first `sequences` of the task's validation rows at `seed`. WN_ERR_UNSUPPORTED: a model without selective
 * attention, or another kind of data. Released with wn_task_selection_destroy. */
wn_status wn_analyze_task_selection(wn_context *ctx, wn_model *model, const wn_data_config *task, uint64_t sequences,
                                    uint64_t seed, wn_task_selection **out);
void wn_task_selection_destroy(wn_task_selection *selection); /* NULL is allowed */

WN_API_END
#endif
