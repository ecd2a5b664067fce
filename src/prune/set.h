/* The rows on which losses are measured, in memory. Several processes take the batches in turn; a process holds the
 * rows of its own batches. */
#ifndef WN_PRUNE_SET_H
#define WN_PRUNE_SET_H

#include "base/arrays.h"
#include "winnow/prune.h"

struct wn_prune_set {
  int64_t rows, T;
  int64_t read;              /* tokens of each row that are its context, of which no position counts; 0: none */
  int64_t all_rows;          /* rows of all processes */
  uint64_t counted;          /* positions with a target, in all rows */
  double *row_tokens;        /* [all_rows] of each row */
  const char *unit;          /* what a row is: "block" or "document" */
  int32_t *tokens, *targets; /* [rows,T]; targets of -1 do not count */
  char fingerprint[24];      /* of all rows */
  bool shared;               /* divided among several processes */
  bool idle;                 /* this process has no batch of its own, and holds the first process's rows */
  double *sums;              /* sums of a round's batches */
  struct wn_arrays arrays;
};
/* what: "search set" or "report set", for messages. shuffled: the rows in an order drawn at random, always the same,
 * instead of that of the file. */
wn_status wn_prune_set_load(wn_context *ctx, const char *what, const wn_prune_data *data, int64_t T, int64_t vocab_size,
                            bool shuffled, struct wn_prune_set *out);
/* The first `read` tokens of each row are a context. Before wn_prune_set_share. WN_ERR_ARGUMENT: nothing follows. */
wn_status wn_prune_set_leave(wn_context *ctx, const char *what, struct wn_prune_set *set, int64_t read);
void wn_prune_set_clear(struct wn_prune_set *set);
/* Keeps this process's rows and drops the others. batch: the batch size of all later evaluations. */
void wn_prune_set_share(wn_context *ctx, struct wn_prune_set *set, int64_t batch);

/* Computes the sum of the losses of held rows row0 .. row0 + B - 1. */
typedef wn_status (*wn_prune_batch_fn)(void *user, int64_t row0, int64_t B, double *sum);
/* The mean loss over all counted positions, in every process. The batches' sums are added in the order of the batches,
 * whichever process computed them. WN_ERR_CANCELLED once the first process is cancelled. */
wn_status wn_prune_set_mean(wn_context *ctx, const struct wn_prune_set *set, int64_t batch, wn_prune_batch_fn run,
                            void *user, double *mean);

/* Rows from `from` to `until` - 1, whole batches. */
struct wn_prune_part {
  int64_t from, until;
};
/* Runs the batches of these rows, in every process those that it holds. */
wn_status wn_prune_set_run(wn_context *ctx, const struct wn_prune_set *set, int64_t batch,
                           const struct wn_prune_part *part, wn_prune_batch_fn run, void *user, double *sum);
/* Collects a number of each held row, own [rows], `stride` doubles apart, in all [all_rows] of every process; of the
 * part's rows, the others stay. NULL: of all. */
wn_status wn_prune_set_gather(wn_context *ctx, const struct wn_prune_set *set, int64_t batch,
                              const struct wn_prune_part *part, const double *own, int64_t stride, double *all);

#endif
