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
  void *p;        /* [count] the parameters, of the model's dtype */
  size_t grad_at; /* offset in the array of gradients, in elements */
  size_t count;
  size_t part[3]; /* elements of each module that shares the tensor, in order; all 0: one module */
  int ndim;
  int64_t shape[3];
  bool matrix; /* with optimizer Muon: updated by it, module by module, without a second moment */
  bool decay;
  enum wn_param_range range; /* values are clamped to it after each step */
  double lr;                 /* factor of the learning rate */
};

/* A part of a tensor that one process updates and whose optimizer state it holds (ZeRO stage 1, Rajbhandari et al.
 * 2019, arXiv 1910.02054). A piece is a module, or with several processes a limited number of a module's elements.
 * Muon's matrices are not cut. */
struct wn_optimizer_piece {
  int row, module, owner;
  size_t first, count; /* among the row's elements */
  size_t at, at_v;     /* offsets in the owner's m and v, in elements */
};

/* Who updates what. */
struct wn_optimizer_share {
  int rank, size;
  size_t most;       /* the most elements of a piece, a multiple of 16 */
  const int *bucket; /* [rows] the bucket of each row; each bucket is divided among all processes by itself; NULL: one
                        bucket */
};

struct wn_optimizer {
  struct wn_model *model; /* borrowed */
  wn_optimizer_kind kind;
  struct wn_exec exec;
  struct wn_arrays arrays; /* in the backend's memory; own: norms, on the host */
  struct wn_arrays own;
  struct wn_optimizer_row *rows; /* [count] */
  int count;
  struct wn_optimizer_piece *pieces; /* [piece_count] in the order of the rows */
  int piece_count;
  int rank, size;
  size_t total, total_v;  /* elements of m and of v in this process, with padding */
  void *m;                /* [total] of the model's dtype, first moment or momentum; NULL for Adagrad */
  void *v;                /* [total_v] second moment (AdamW) or sum of squares (Adagrad) */
  struct wn_muon muon;    /* temporary arrays of Muon */
  double *sums, *squares; /* [piece_count] sums of the gradient's squares: in the backend's memory, and on the host */
  double *norms;          /* [count,3] gradient norms of each tensor's modules, from the last wn_optimizer_measure */
};

/* Initialises *opt (caller's storage); to be cleared with wn_optimizer_clear, also after a failure. rows: the tensors
 * that learn, copied. share NULL: this process owns all pieces. */
wn_status wn_optimizer_init(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind,
                            const struct wn_optimizer_row *rows, int count, const struct wn_optimizer_share *share,
                            struct wn_optimizer *opt);
/* The row of a table's tensor in the model's layout. */
struct wn_optimizer_row wn_optimizer_row_of(const struct wn_model *model, int i);
void wn_optimizer_clear(struct wn_optimizer *opt);
/* Does row i have a first moment (which 0) or a second one (which 1)? */
bool wn_optimizer_has_moment(const struct wn_optimizer *opt, int i, int which);
/* _collect: gathers a whole moment [count] in `out` on rank 0. _restore: each process takes its pieces of a whole
 * moment. All processes must call them. */
wn_status wn_optimizer_moment_collect(const struct wn_optimizer *opt, int i, int which, void *out);
wn_status wn_optimizer_moment_restore(struct wn_optimizer *opt, int i, int which, const void *whole);

/* Fills opt->norms from grads; *norm: the norm of the gradient of all tensors that learn. Several processes each
 * measure their pieces, and then all have the same numbers. */
wn_status wn_optimizer_measure(struct wn_optimizer *opt, const void *grads, double *norm);
/* Updates this process's pieces of the parameters with the gradient that was measured last. muon_lr: the rate of Muon's
 * matrices. step counts from 1. grads do not change: clipping is part of the update. */
wn_status wn_optimizer_apply(struct wn_optimizer *opt, const wn_train_config *config, const void *grads, double lr,
                             double muon_lr, int64_t step);

#endif
