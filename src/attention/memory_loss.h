/* L_mem (arXiv 2410.02703, section 4, equation 2) as a function of M, which attention's forward gives and whose
 * gradient its backward takes:
 *   sum over documents of max_i M[i] / n, over the n rows of the document that are tokens.
 * A sequence without documents is one; padding at its end is none of its rows, and so changes nothing. */
#ifndef WN_ATTENTION_MEMORY_LOSS_H
#define WN_ATTENTION_MEMORY_LOSS_H

#include <stdint.h>
#include "winnow/tensor.h"

/* The rows of M [B,G,T]. */
struct wn_memory_rows {
  int64_t B, G, T;
  const int32_t *doc_start; /* [B,T] or NULL: one document each */
  const int32_t *count;     /* [B] rows that are tokens, the rest is padding; NULL: T */
};
/* How many documents have a row; G counts as one. */
int64_t wn_memory_documents(const struct wn_memory_rows *rows);
/* The sum over documents and the G selections. */
double wn_memory_loss(const struct wn_memory_rows *rows, wn_dtype dtype, const void *M);
/* M is replaced by coef times its gradient: it is coef/n in the first of a document's longest rows, 0 in all others. */
void wn_memory_loss_gradient(const struct wn_memory_rows *rows, wn_dtype dtype, double coef, void *M);

#endif
