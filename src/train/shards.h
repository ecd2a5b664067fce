/* Data-parallel training: the parts of a batch, who computes them, and how their gradients become one. */
#ifndef WN_TRAIN_SHARDS_H
#define WN_TRAIN_SHARDS_H

#include "base/arrays.h"
#include "train/adapt_rows.h"
#include "winnow/train.h"

enum { WN_SHARDS_LEVELS = 33 };

/* Neighbours in the gradients with one owner, sent as one message; or in the parameters. */
struct wn_shard_span {
  int bucket, owner;
  size_t at, count; /* elements of the gradients */
  size_t in;        /* elements into what each other process sends, where this one is the owner */
  void *p;          /* of parameters */
};

struct wn_shards {
  wn_context *ctx;
  int rank, size;
  int64_t parts, rows, micro_steps; /* of a step; rows of a micro-step */
  int64_t first, count;             /* parts of this process */
  struct wn_arrays arrays, sums;    /* sums: the backend's */
  void *sum[WN_SHARDS_LEVELS];      /* [levels][gradients] sums of parts that wait for others; [0] receives the whole */
  int levels, top;                  /* top: the one that the part at hand goes to */
  size_t gradients, element;
  wn_dtype dtype;
  const struct wn_model *model;
  const struct wn_adapt_rows *learns;
  struct wn_optimizer *opt;
  uint8_t *begun; /* the trainer's */
  int buckets;
  int *bucket, *whole; /* [learns.count] of rows that learn; [table.count] wn_model_whole_after of the model's */
  bool *posted;        /* [buckets] */
  bool overlap;
  struct wn_shard_span *spans, *params; /* [span_count], [param_count] */
  int span_count, param_count;
  int *requests; /* [request_count] */
  int request_count, under_way;
  void *in; /* [size-1][in_count] */
  size_t in_count;
  wn_status status; /* of what ran behind backward */
  double waited;    /* seconds, this step */
};

/* Parts, rows and micro-steps by the recipe; nothing is allocated. WN_ERR_CONFIG where rows cannot be parted so. */
wn_status wn_shards_plan(wn_context *ctx, const wn_train_config *config, struct wn_shards *out);
/* Buckets of the rows that learn, which *share then refers to; before the optimizer. */
wn_status wn_shards_share(struct wn_shards *s, const struct wn_model *model, const struct wn_adapt_rows *learns,
                          struct wn_optimizer_share *share);
/* Arrays and messages; after the optimizer. All are borrowed. */
wn_status wn_shards_open(struct wn_shards *s, struct wn_optimizer *opt, uint8_t *begun);
void wn_shards_clear(struct wn_shards *s);

/* Where the gradient of this process's part `i` (from 0) goes. */
void *wn_shards_begin(struct wn_shards *s, int64_t i);
/* Part i is computed. All but the last. */
void wn_shards_add(struct wn_shards *s, int64_t i);
/* In the last micro-step of the last part: the gradients of decoder layer l are whole (as wn_step's `whole`). */
void wn_shards_layer(void *shards, int64_t l);
/* Afterwards sum[0] has the gradient of the whole batch: of this process's pieces. */
wn_status wn_shards_finish(struct wn_shards *s);
/* The updated parameters of every owner to all. */
wn_status wn_shards_gather(struct wn_shards *s);

#endif
