/* Which parameters learn in a run, where their gradients are, and which values training sets instead. */
#ifndef WN_TRAIN_ADAPT_ROWS_H
#define WN_TRAIN_ADAPT_ROWS_H

#include "train/lora.h"
#include "train/optimizer.h"

struct wn_adapt_rows {
  struct wn_optimizer_row *rows; /* [count] */
  int count;
  size_t *grad_at;  /* [table.count] for wn_step */
  size_t gradients; /* elements of the gradients' array */
  bool has_lora;
  struct wn_lora lora;
};

/* As train.tune, freeze, lora and lr_mechanisms say. Scheduled strengths never learn. To be cleared with
 * wn_adapt_rows_clear, also after a failure. */
wn_status wn_adapt_rows_init(wn_context *ctx, struct wn_model *model, const wn_train_config *config,
                             struct wn_adapt_rows *out);
void wn_adapt_rows_clear(struct wn_adapt_rows *rows);

/* The scheduled strength at optimizer step `step`, counted from 1; 0 before the first. */
double wn_adapt_strength(const wn_train_config *config, int64_t step);
/* Sets it in the model, if its configuration has a scheduled strength. While it rises in a model that is adapted, gates
 * that learn open no further than their falling ceiling (struct wn_param, `adapted`). */
wn_status wn_adapt_strength_set(struct wn_model *model, const wn_train_config *config, const struct wn_adapt_rows *rows,
                                int64_t step);

#endif
