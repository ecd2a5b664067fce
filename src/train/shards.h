/* Data-parallel training: the parts of a batch, which process computes them, and how their gradients are summed. */
#ifndef WN_TRAIN_SHARDS_H
#define WN_TRAIN_SHARDS_H

#include "base/arrays.h"
#include "train/adapt_rows.h"
#include "winnow/train.h"

enum { WN_SHARDS_LEVELS = 33 };

/* Neighbouring elements of the gradients, or of the parameters, that have one owner and are sent as one message. */
struct wn_shard_span {
  int bucket, owner;
  size_t at, count; /* in the gradients, in elements */
  size_t in;        /* if this process is the owner: offset in what each other process sends, in elements */
  void *p;          /* for parameters: their address */
};

struct wn_shards {
  wn_context *ctx;
  int rank, size;
  int64_t parts, rows, micro_steps; /* parts of a step; rows of a micro-step; micro-steps of a step */
  int64_t first, count;             /* parts of this process */
  struct wn_arrays arrays, sums;    /* sums: in the backend's memory */
  void *sum[WN_SHARDS_LEVELS]; /* [levels][gradients] sums of parts that wait to be added to others; [0] receives the
                                  sum of all */
  int levels, top;             /* top: the level of the current part */
  size_t gradients, element;
  const struct wn_model *model;
  const struct wn_adapt_rows *learns;
  struct wn_optimizer *opt;
  uint8_t *begun; /* the array of the trainer */
  int buckets;
  int *bucket, *whole; /* bucket [learns.count]: of each row that learns; whole [table.count]: wn_model_whole_after of
                          each tensor */
  bool *posted;        /* [buckets] */
  bool overlap;
  struct wn_shard_span *spans, *params; /* [span_count], [param_count] */
  int span_count, param_count;
  int *requests; /* [request_count] */
  int request_count, under_way;
  void *in; /* [size-1][in_count], in the backend's memory */
  size_t in_count;
  wn_status status; /* of messages posted during backward */
  double waited;    /* seconds, this step */
};

/* Computes parts, rows and micro-steps from the recipe; allocates nothing. WN_ERR_CONFIG if the rows cannot be divided
 * so. */
wn_status wn_shards_plan(wn_context *ctx, const wn_train_config *config, struct wn_shards *out);
/* Makes the buckets of the rows that learn; *share then refers to them. Called before the optimizer is made. */
wn_status wn_shards_share(struct wn_shards *s, const struct wn_model *model, const struct wn_adapt_rows *learns,
                          struct wn_optimizer_share *share);
/* Makes arrays and messages. Called after the optimizer is made. All arguments are borrowed. */
wn_status wn_shards_open(struct wn_shards *s, struct wn_optimizer *opt, uint8_t *begun);
void wn_shards_clear(struct wn_shards *s);

/* Returns the array for the gradient of this process's part `i`, counted from 0. */
void *wn_shards_begin(struct wn_shards *s, int64_t i);
/* Adds the gradient of part i, for all parts except the last. */
wn_status wn_shards_add(struct wn_shards *s, int64_t i);
/* To be called in the last micro-step of the last part when the gradients of decoder layer l are complete (`whole` of
 * wn_step). */
void wn_shards_layer(void *shards, int64_t l);
/* Adds the last part. Then sum[0] has the gradient of the whole batch, for this process's pieces. */
wn_status wn_shards_finish(struct wn_shards *s);
/* Sends the updated parameters from their owners to all processes. */
wn_status wn_shards_gather(struct wn_shards *s);

#endif
