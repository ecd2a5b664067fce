/* Low-rank updates (LoRA) of a model's attention projections, for training. */
#ifndef WN_TRAIN_LORA_H
#define WN_TRAIN_LORA_H

#include "base/arrays.h"
#include "model/model.h"

/* Rows [first, first+rows) of one projection W [out, in]. */
struct wn_lora_map {
  char name[96]; /* "layers.3.attn.q": the tensors are NAME.lora_a and NAME.lora_b */
  int row;       /* in the model's table */
  int64_t first, rows, columns;
  void *a, *b;       /* [rank,columns], [rows,rank]; in the backend's memory, as is base */
  void *base;        /* [rows,columns] the original W */
  size_t a_at, b_at; /* offsets in the array of gradients, in elements */
};

struct wn_lora {
  struct wn_model *model; /* borrowed; its projections are always the merged ones */
  int64_t rank;
  double scale; /* alpha / rank */
  struct wn_lora_map *maps;
  int count;
  struct wn_exec exec;
  struct wn_arrays arrays;
  void *scaled; /* [the most rows of a projection, rank] */
};

/* Makes updates for the projections q, k, v and out of all layers, except `frozen` tensors [table.count] (NULL: none).
 * A is random from (seed, projection), B is 0, so the model does not change. *gradients grows by the number of elements
 * of all A and B. To be cleared with wn_lora_clear, also after a failure. */
wn_status wn_lora_init(wn_context *ctx, struct wn_model *model, int64_t rank, double alpha, uint64_t seed,
                       const bool *frozen, size_t *gradients, struct wn_lora *out);
void wn_lora_clear(struct wn_lora *lora);
/* Does this tensor hold projections with updates? Its gradient is needed, though the tensor itself does not learn. */
bool wn_lora_has(const struct wn_lora *lora, int row);
/* Computes gradients of A and B from the projections' gradients at grad_at[row] of grads, and adds them. */
wn_status wn_lora_backward(struct wn_lora *lora, const size_t *grad_at, void *grads);
/* Computes the model's projections from base, A and B. */
wn_status wn_lora_merge(struct wn_lora *lora);

#endif
