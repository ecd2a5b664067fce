/* Low-rank updates of a model's attention projections, in training only. */
#ifndef WN_TRAIN_LORA_H
#define WN_TRAIN_LORA_H

#include "base/arrays.h"
#include "model/model.h"

/* Rows [first, first+rows) of one projection W [out, in]. */
struct wn_lora_map {
  char name[96]; /* "layers.3.attn.q": the tensors are NAME.lora_a and NAME.lora_b */
  int row;       /* of the model's table */
  int64_t first, rows, columns;
  void *a, *b;       /* [rank,columns], [rows,rank]; the backend's, as base */
  void *base;        /* [rows,columns] the original W */
  size_t a_at, b_at; /* elements into the gradients */
};

struct wn_lora {
  struct wn_model *model; /* borrowed; its projections always are the merged ones */
  int64_t rank;
  double scale; /* alpha / rank */
  struct wn_lora_map *maps;
  int count;
  struct wn_exec exec;
  struct wn_arrays arrays;
  void *scaled; /* [most rows, rank] */
};

/* Finds the projections q, k, v and out of all layers but those of `frozen` tensors [table.count] (NULL: none), with A
 * random from (seed, projection) and B 0, which changes nothing. *gradients grows by the elements of the A and B.
 * Cleared with wn_lora_clear, also after a failure. */
wn_status wn_lora_init(wn_context *ctx, struct wn_model *model, int64_t rank, double alpha, uint64_t seed,
                       const bool *frozen, size_t *gradients, struct wn_lora *out);
void wn_lora_clear(struct wn_lora *lora);
/* Does this tensor hold projections with updates? Its gradient is needed, but it does not learn itself. */
bool wn_lora_has(const struct wn_lora *lora, int row);
/* Adds to the gradients of A and B from the projections' gradients, at grad_at[row] of grads. */
wn_status wn_lora_backward(struct wn_lora *lora, const size_t *grad_at, void *grads);
/* Computes the model's projections from base, A and B. */
wn_status wn_lora_merge(struct wn_lora *lora);

#endif
