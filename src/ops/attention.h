/* The attention operation: one loop with terms (DESIGN section 3). Forward serves whole sequences, chunks of a
 * prefill and single-token decoding alike: Tq queries are the last Tq of Tk keys. */
#ifndef WN_OPS_ATTENTION_H
#define WN_OPS_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* Strides in elements of batch, token and head; the head's D values are contiguous. */
struct wn_stride { int64_t b, t, h; };

struct wn_attention {
  int64_t B, Tq, Tk, H, Hkv, D; /* query row i (0..Tq-1) has position i + Tk - Tq */
  double scale;

  const void *q; struct wn_stride s_q;      /* [B,Tq,H,D] */
  const void *k, *v; struct wn_stride s_k, s_v; /* [B,Tk,Hkv,D] */
  void *y; struct wn_stride s_y;            /* [B,Tq,H,D] */
  const int32_t *doc_start;                 /* [B,Tk] position of the first token of each token's document, or NULL:
                                               keys before the query's doc_start are masked */
  void *lse;                                /* [B,H,Tq] log of the row's sum of exponentials, kept for backward; or NULL */

  /* Selective term (arXiv 2410.02703 section 3.2, 3.3). */
  struct {
    bool on, relu, protect_first, protect_self, shift, bilinear;
    int head;
    const void *sq, *sk; struct wn_stride s_sq, s_sk; /* bilinear only: [B,Tq,D], [B,Tk,D]; .h unused */
    const void *f_in;  /* [B,Tk] selections that rows before the first query have made (the cache's F); NULL: 0 */
    void *f_out;       /* [B,Tk] the same after the last query row; NULL: not wanted. May alias f_in */
    void *F;           /* [B,Tq,Tk] for inspection, NULL in all ordinary use; j > i is the running sum too */
    /* L_mem: M[b,i] = (i+1-doc_start) - sum_j min(F[i,j], tau)/tau over the row's visible j. */
    bool mem;
    double mem_tau;
    double mem_coef;   /* backward adds d(mem_coef * sum_b max_i M[b,i]) */
    void *M;           /* [B,Tq], written by forward, read by backward; ties of the maximum go to the first row */
  } sel;

  /* Backward (Tq == Tk, f_in NULL). dq, dk, dv, dsq, dsk have the strides of q, k, v, sq, sk; dy those of y.
   * y and lse are forward's. */
  const void *dy;
  void *dq, *dk, *dv, *dsq, *dsk;
};

#endif
