/* Low-rank updates of a model's attention maps, in training only. */
#ifndef WN_TRAIN_LORA_H
#define WN_TRAIN_LORA_H

#include "base/alloc.h"
#include "model/model.h"

/* Rows [first, first+rows) of one map W [out, in]. */
struct wn_lora_map {
  char name[96]; /* "layers.3.attn.q": the tensors are NAME.lora_a and NAME.lora_b */
  int row;       /* of the model's table */
  int64_t first, rows, columns;
  void *a, *b;       /* [rank,columns], [rows,rank] */
  void *base;        /* [rows,columns] W as it was */
  size_t a_at, b_at; /* elements into the gradients */
};

struct wn_lora {
  struct wn_model *model; /* borrowed; its maps are the merged ones at all times */
  int64_t rank;
  double scale; /* alpha / rank */
  struct wn_lora_map *maps;
  int count;
  struct wn_exec exec;
  struct wn_arena arena;
  void *scaled; /* [most rows, rank] */
};

/* Finds the maps q, k, v and out of all layers but those of `frozen` tensors [table.count] (NULL: none), A random from
 * (seed, map), B 0: nothing changes. *gradients grows by the elements of the A and B. Cleared with wn_lora_clear, also
 * after a failure. */
wn_status wn_lora_init(wn_context *ctx, struct wn_model *model, int64_t rank, double alpha, uint64_t seed,
                       const bool *frozen, size_t *gradients, struct wn_lora *out);
void wn_lora_clear(struct wn_lora *lora);
/* Is this one of the tensors whose maps get updates? Their gradient is needed; they do not learn themselves. */
bool wn_lora_has(const struct wn_lora *lora, int row);
/* From the maps' gradients, at grad_at[row] of grads, to those of A and B, which are added to. */
wn_status wn_lora_backward(struct wn_lora *lora, const size_t *grad_at, void *grads);
/* The model's maps from base, A and B. */
wn_status wn_lora_merge(struct wn_lora *lora);

#endif
