/* Muon's update of one matrix (muon.c): momentum, orthogonalised by Newton-Schulz iterations. */
#ifndef WN_TRAIN_MUON_H
#define WN_TRAIN_MUON_H

#include "base/arrays.h"
#include "ops/ops.h"
#include "winnow/train.h"

/* Temporary arrays for the largest matrix, in the backend's memory. */
struct wn_muon {
  int64_t most, least; /* elements of the largest matrix; and of the largest product of a matrix with itself */
  void *x, *y;         /* [most] */
  void *a, *b;         /* [least] */
  double *sum;         /* [1] */
  size_t scratch;      /* bytes that exec needs */
};

/* A matrix to update. */
struct wn_muon_matrix {
  int64_t rows, columns;
  void *p;                 /* [rows,columns] */
  const void *g;           /* [rows,columns] its gradient */
  void *m;                 /* [rows,columns] momentum */
  double lr, decay, scale; /* learning rate; weight decay; factor of the gradient */
};

/* Makes the arrays' sizes suffice for a matrix of this shape; called before the arrays are laid out. */
void wn_muon_count(struct wn_muon *muon, const struct wn_exec *exec, int64_t rows, int64_t columns);
wn_status wn_muon_step(const struct wn_exec *exec, const struct wn_muon *muon, const wn_train_config *config,
                       const struct wn_muon_matrix *matrix);

#endif
