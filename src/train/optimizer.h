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
  void *p;        /* [count] the values, of the model's dtype */
  size_t grad_at; /* elements into the gradients */
  size_t count;
  size_t part[3]; /* of count, in order: elements of the modules that share the tensor; all 0: it is one */
  int ndim;
  int64_t shape[3];
  bool matrix; /* updated by Muon, with that optimizer: its modules one by one; no second moment */
  bool decay;
  enum wn_param_range range; /* kept after each step */
  double lr;                 /* factor of the rate */
};

/* A part of a tensor: what one process updates, and holds the state of (ZeRO, Rajbhandari et al. 2019, arXiv
 * 1910.02054, stage 1). A module, or, where a batch has several parts, so many elements of it; Muon's matrices stay
 * whole. */
struct wn_optimizer_piece {
  int row, module, owner;
  size_t first, count; /* of the row's elements */
  size_t at, at_v;     /* elements into m and into v, the owner's */
};

/* Who updates what. */
struct wn_optimizer_share {
  int rank, size;
  size_t most;       /* elements of a piece, a multiple of 16 */
  const int *bucket; /* [rows] each bucket is divided over all by itself; NULL: one bucket */
};

struct wn_optimizer {
  struct wn_model *model; /* borrowed */
  wn_optimizer_kind kind;
  struct wn_exec exec;
  struct wn_arrays arrays; /* the backend's; own: norms */
  struct wn_arrays own;
  struct wn_optimizer_row *rows; /* [count] */
  int count;
  struct wn_optimizer_piece *pieces; /* [piece_count] in the order of the rows */
  int piece_count;
  int rank, size;
  size_t total, total_v;  /* elements of m and of v, with padding: those of this process's pieces */
  void *m;                /* [total] of the model's dtype, first moment or momentum; NULL for Adagrad */
  void *v;                /* [total_v] second moment (AdamW) or sum of squares (Adagrad) */
  struct wn_muon muon;    /* room for its iterations */
  double *sums, *squares; /* [piece_count] of the gradient's squares: the backend's, and for the host */
  double *norms;          /* [count,3] gradient norm of each tensor's modules, of the last wn_optimizer_measure */
};

/* Initialises *opt (caller's storage); cleared with wn_optimizer_clear, also after a failure. All the model's tensors
 * learn, from gradients laid out as its parameters. */
wn_status wn_optimizer_init(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind, struct wn_optimizer *opt);
/* The same for any tensors; rows are copied. share NULL: all are this process's. */
wn_status wn_optimizer_init_rows(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind,
                                 const struct wn_optimizer_row *rows, int count, const struct wn_optimizer_share *share,
                                 struct wn_optimizer *opt);
/* The row of a table's tensor in the model's layout. */
struct wn_optimizer_row wn_optimizer_row_of(const struct wn_model *model, int i);
void wn_optimizer_clear(struct wn_optimizer *opt);
/* Has row i a first moment (which 0), a second (1)? */
bool wn_optimizer_has_moment(const struct wn_optimizer *opt, int i, int which);
/* The whole of it, [count] in out on rank 0, from all processes, which all call; and back, each takes its pieces. */
wn_status wn_optimizer_moment_collect(const struct wn_optimizer *opt, int i, int which, void *out);
wn_status wn_optimizer_moment_restore(struct wn_optimizer *opt, int i, int which, const void *whole);
size_t wn_optimizer_bytes(const struct wn_optimizer *opt);

/* Fills opt->norms from grads; *norm: of the gradient of all tensors that learn. Of several processes each looks at its
 * pieces, and all have the same numbers afterwards. */
wn_status wn_optimizer_measure(struct wn_optimizer *opt, const void *grads, double *norm);
/* Updates the parameters of this process's pieces with the gradient that was just measured; muon_lr: the rate of Muon's
 * matrices. step counts from 1. grads stay as they are: clipping is folded into the update. */
wn_status wn_optimizer_apply(struct wn_optimizer *opt, const wn_train_config *config, const void *grads, double lr,
                             double muon_lr, int64_t step);

#endif
