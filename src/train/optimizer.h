/* Optimizers over tensors that learn: clipping, weight decay, state in one block of memory. */
#ifndef WN_TRAIN_OPTIMIZER_H
#define WN_TRAIN_OPTIMIZER_H

#include "base/arrays.h"
#include "model/model.h"
#include "train/muon.h"
#include "winnow/train.h"

/* A tensor that learns. */
struct wn_optimizer_row {
  char name[104];
  void *p;         /* [count] the values, of the model's dtype */
  size_t grad_at;  /* elements into the gradients */
  size_t at, at_v; /* elements into m and into v, set by wn_optimizer_init_rows */
  size_t count;
  size_t part[3]; /* of count, in order: elements of the modules that share the tensor; all 0: it is one */
  int ndim;
  int64_t shape[3];
  bool matrix; /* updated by Muon, with that optimizer: its modules one by one; no second moment */
  bool decay;
  enum wn_param_range range; /* kept after each step */
  double lr;                 /* factor of the rate */
};

struct wn_optimizer {
  struct wn_model *model; /* borrowed */
  wn_optimizer_kind kind;
  struct wn_exec exec;
  struct wn_arrays arrays; /* the backend's; own: norms */
  struct wn_arrays own;
  struct wn_optimizer_row *rows; /* [count] */
  int count;
  size_t total, total_v; /* elements of m and of v, with padding */
  void *m;               /* [total] of the model's dtype, first moment or momentum; NULL for Adagrad */
  void *v;               /* [total_v] second moment (AdamW) or sum of squares (Adagrad) */
  struct wn_muon muon;   /* room for its iterations */
  double *sums;          /* [count,3] squares of it, the backend's */
  double *norms;         /* [count,3] gradient norm of each tensor's modules, of the last wn_optimizer_measure */
};

/* Initialises *opt (caller's storage); cleared with wn_optimizer_clear, also after a failure. All the model's tensors
 * learn, from gradients laid out as its parameters. */
wn_status wn_optimizer_init(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind, struct wn_optimizer *opt);
/* The same for any tensors; rows are copied. */
wn_status wn_optimizer_init_rows(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind,
                                 const struct wn_optimizer_row *rows, int count, struct wn_optimizer *opt);
/* The row of a table's tensor in the model's layout. */
struct wn_optimizer_row wn_optimizer_row_of(const struct wn_model *model, int i);
void wn_optimizer_clear(struct wn_optimizer *opt);
/* Row i's first moment (which 0) or second (1), [count]; NULL where it has none. */
void *wn_optimizer_moment(const struct wn_optimizer *opt, int i, int which);

/* Fills opt->norms from grads; *norm: of the gradient of all tensors that learn. */
wn_status wn_optimizer_measure(struct wn_optimizer *opt, const void *grads, double *norm);
/* Updates the parameters with the gradient that was just measured. step counts from 1. grads stay as they are:
 * clipping is folded into the update. */
wn_status wn_optimizer_apply(struct wn_optimizer *opt, const wn_train_config *config, const void *grads, double lr,
                             int64_t step);

#endif
