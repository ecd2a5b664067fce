/* Low-rank adapters of Hugging Face's peft. Private to src/formats and to training. An adapter is a folder with
 * adapter_config.json and adapter_model.safetensors. Its tensors carry transformers' names of the projections to which
 * they are added (Hu et al. 2021, arXiv 2106.09685): W' = W + alpha/r B A, A [r, in], B [out, r].
 *
 * The embedding's update is the transpose, A [r, V], B [C, r]. Where the output is tied to the embedding, peft updates
 * the one of the two that the adapter names, so that they are no longer the same; with "ensure_weight_tying" both. */
#ifndef WN_FORMATS_ADAPTER_H
#define WN_FORMATS_ADAPTER_H

#include "formats/import.h"
#include "model/model.h"

struct wn_adapter;
/* Opens the folder and finds the model's projection for each of its tensors. A tensor that belongs to no projection is
 * refused, and an adapter that asks for more than low-rank updates. */
wn_status wn_adapter_open(wn_context *ctx, const char *dir, const struct wn_import *import, struct wn_adapter **out);
void wn_adapter_close(struct wn_adapter *adapter); /* NULL is allowed */
/* Does the adapter change this tensor of the model's table? */
bool wn_adapter_changes(const struct wn_adapter *adapter, const char *row);
/* Does it change one of embedding and output, which the model ties, and not the other? */
bool wn_adapter_unties(const struct wn_adapter *adapter);
/* Adds the updates to the model's projections, which must be floats. */
wn_status wn_adapter_merge(wn_context *ctx, const struct wn_adapter *adapter, struct wn_model *model);

/* An update of rows first, first + 1, ... of a tensor of the model's table. */
struct wn_adapter_update {
  const char *row; /* "layers.3.attn.qkv.weight" */
  int64_t first, rows, columns;
  const float *a, *b; /* [rank,columns], [rows,rank] */
};
struct wn_adapter_updates {
  const struct wn_adapter_update *all; /* in the order of the tensors and their rows */
  int count;
  int64_t rank;
  double alpha;
  const char *base; /* the path of the base model, or "" */
};
/* Writes adapter_config.json and adapter_model.safetensors into dir, if transformers has names for a model of this
 * configuration; else writes nothing. */
wn_status wn_adapter_write(wn_context *ctx, const char *dir, const wn_model_config *config,
                           const struct wn_adapter_updates *updates);

#endif
