/* Attention row by row, after the equations of ops/attention.h and arXiv 2410.02703 section 3.
 *
 * Forward: each (sequence, head) walks its query rows in order with its own carry c[j] = sum of S over earlier rows
 * (the selecting head's logits are formed again for every head: 2D operations more a pair, and no waiting).
 * Backward: each sequence walks its rows from last to first. F at a row comes from checkpoints of the carry every
 * ROWS rows, replayed inside the block, so that F is bit for bit forward's; dF's reversed column sum is the other
 * carry. Nothing of size T x T is kept: the scratch is T*T/ROWS + ROWS*T doubles a thread. */
#ifndef REAL
#include <string.h>
#include "backends/ref/ref.h"

#define ROWS 32

/* Doubles that one thread's forward and backward need. */
static size_t forward_doubles(const struct wn_attention *a) {
  return 2 * (size_t)a->Tk + (size_t)a->D;
}

static size_t backward_doubles(const struct wn_attention *a) {
  const size_t T = (size_t)a->Tk, D = (size_t)a->D, blocks = (T + ROWS - 1) / ROWS;
  return blocks * T + 2 * ROWS * T      /* carries; F and base of one block */
         + 2 * T * (size_t)a->Hkv * D   /* dk, dv */
         + T * D + (size_t)a->H * D + D /* dsk; dq of one row; dsq of one row */
         + 4 * T;                       /* weights, dweights, dF of one row; the carry */
}

static int workers(const struct wn_exec *exec, int64_t tasks) {
  return tasks < exec->threads ? (int)tasks : exec->threads;
}

size_t wn_ref_attention_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  if (backward) return (size_t)workers(exec, a->B) * backward_doubles(a) * sizeof(double);
  return ((size_t)workers(exec, a->B * a->H) * forward_doubles(a) + (size_t)(a->B * a->Tk)) * sizeof(double);
}

/* May row position i select key j, in a document that starts at `first`? */
static bool may_select(const struct wn_attention *a, int64_t i, int64_t j, int64_t first) {
  if (j < first || j > i) return false;
  if (a->sel.protect_self && j == i) return false;
  if (a->sel.protect_first && j == first) return false;
  return true;
}

static int64_t document_start(const struct wn_attention *a, int64_t b, int64_t position) {
  return a->doc_start ? a->doc_start[b * a->Tk + position] : 0;
}

#include <omp.h>
#define REAL_FILE "backends/ref/attention.c"
#include "backends/ref/twice.h"
WN_REF_SLOT(attention_forward, struct wn_attention)
WN_REF_SLOT(attention_backward, struct wn_attention)
#else

static double NAME(dot)(const REAL *x, const REAL *y, int64_t D) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < D; d++) sum += (double)x[d] * (double)y[d];
  return sum;
}

/* base[j] for j in first..position: the logits that row r of sequence b selects with. */
static void NAME(base_row)(const struct wn_attention *a, int64_t b, int64_t r, int64_t first, double *base) {
  const int64_t position = r + a->Tk - a->Tq;
  const REAL *q, *k;
  int64_t step;
  if (a->sel.bilinear) {
    q = (const REAL *)a->sel.sq + b * a->sel.s_sq.b + r * a->sel.s_sq.t;
    k = (const REAL *)a->sel.sk + b * a->sel.s_sk.b;
    step = a->sel.s_sk.t;
  } else {
    q = (const REAL *)a->q + b * a->s_q.b + r * a->s_q.t + a->sel.head * a->s_q.h;
    k = (const REAL *)a->k + b * a->s_k.b + a->sel.head / (a->H / a->Hkv) * a->s_k.h;
    step = a->s_k.t;
  }
  for (int64_t j = first; j <= position; j++) base[j] = a->scale * NAME(dot)(q, k + j * step, a->D);
}

/* base becomes F of the row (entries first..position; the rest of `carry` is F there too); carry takes the row in. */
static void NAME(select_row)(const struct wn_attention *a, int64_t position, int64_t first, double *base,
                             double *carry) {
  for (int64_t j = first; j <= position; j++) {
    double s = 0;
    if (may_select(a, position, j, first)) s = a->sel.relu && !(base[j] > 0) ? 0 : base[j];
    const double before = carry[j];
    carry[j] = before + s;
    base[j] = a->sel.shift ? before : carry[j];
  }
}

/* One head of one sequence. row, carry: [Tk]; acc: [D]. */
static void NAME(forward_head)(const struct wn_attention *a, int64_t b, int64_t h, double *row, double *carry,
                               double *acc) {
  const int64_t g = h / (a->H / a->Hkv);
  const REAL *k = (const REAL *)a->k + b * a->s_k.b + g * a->s_k.h;
  const REAL *v = (const REAL *)a->v + b * a->s_v.b + g * a->s_v.h;
  const REAL *f_in = a->sel.on ? a->sel.f_in : NULL;
  for (int64_t j = 0; j < a->Tk; j++) carry[j] = f_in ? (double)f_in[b * a->Tk + j] : 0.0;
  for (int64_t r = 0; r < a->Tq; r++) {
    const int64_t position = r + a->Tk - a->Tq, first = document_start(a, b, position);
    const REAL *q = (const REAL *)a->q + b * a->s_q.b + r * a->s_q.t + h * a->s_q.h;
    REAL *y = (REAL *)a->y + b * a->s_y.b + r * a->s_y.t + h * a->s_y.h;
    if (a->sel.on) {
      /* F may be asked for at every j, where the row leaves the carry as it was. */
      REAL *F = h == 0 && a->sel.F ? (REAL *)a->sel.F + (b * a->Tq + r) * a->Tk : NULL;
      NAME(base_row)(a, b, r, first, row);
      NAME(select_row)(a, position, first, row, carry);
      if (F)
        for (int64_t j = 0; j < a->Tk; j++) F[j] = (REAL)(j >= first && j <= position ? row[j] : carry[j]);
      if (h == 0 && a->sel.mem && a->sel.M) {
        double kept = (double)(position + 1 - first);
        for (int64_t j = first; j <= position; j++) kept -= fmin(row[j], a->sel.mem_tau) / a->sel.mem_tau;
        ((REAL *)a->sel.M)[b * a->Tq + r] = (REAL)kept;
      }
    } else {
      for (int64_t j = first; j <= position; j++) row[j] = 0;
    }
    double top = -INFINITY, total = 0;
    for (int64_t j = first; j <= position; j++) {
      row[j] = a->scale * NAME(dot)(q, k + j * a->s_k.t, a->D) - row[j];
      if (row[j] > top) top = row[j];
    }
    for (int64_t d = 0; d < a->D; d++) acc[d] = 0;
    for (int64_t j = first; j <= position; j++) {
      const double e = exp(row[j] - top);
      total += e;
      for (int64_t d = 0; d < a->D; d++) acc[d] += e * (double)v[j * a->s_v.t + d];
    }
    for (int64_t d = 0; d < a->D; d++) y[d] = (REAL)(acc[d] / total);
    if (a->lse) ((REAL *)a->lse)[(b * a->H + h) * a->Tq + r] = (REAL)(top + log(total));
  }
}

static wn_status NAME(attention_forward)(const struct wn_exec *exec, const struct wn_attention *a) {
  const int team = workers(exec, a->B * a->H);
  const size_t each = forward_doubles(a);
  double *scratch = exec->scratch, *last = scratch + (size_t)team * each; /* last: [B,Tk], f_out */
#pragma omp parallel for num_threads(team) schedule(static)
  for (int64_t task = 0; task < a->B * a->H; task++) {
    const int64_t b = task / a->H, h = task % a->H;
    double *row = scratch + (size_t)omp_get_thread_num() * each, *carry = row + a->Tk, *acc = carry + a->Tk;
    NAME(forward_head)(a, b, h, row, carry, acc);
    if (h == 0) memcpy(last + b * a->Tk, carry, (size_t)a->Tk * sizeof *last);
  }
  /* After all heads have read f_in, which f_out may be. */
  if (a->sel.on && a->sel.f_out)
    for (int64_t n = 0; n < a->B * a->Tk; n++) ((REAL *)a->sel.f_out)[n] = (REAL)last[n];
  return WN_OK;
}

/* dF of row r gets this head's share -G, dq (of one head), dk and dv theirs. weight, dweight: [T]. */
static void NAME(backward_head)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, const double *F,
                                double *weight, double *dweight, double *dF, double *dq, double *dk, double *dv) {
  const int64_t g = h / (a->H / a->Hkv), D = a->D, first = document_start(a, b, r);
  const REAL *q = (const REAL *)a->q + b * a->s_q.b + r * a->s_q.t + h * a->s_q.h;
  const REAL *dy = (const REAL *)a->dy + b * a->s_y.b + r * a->s_y.t + h * a->s_y.h;
  const REAL *k = (const REAL *)a->k + b * a->s_k.b + g * a->s_k.h;
  const REAL *v = (const REAL *)a->v + b * a->s_v.b + g * a->s_v.h;
  double top = -INFINITY, total = 0, mean = 0;
  for (int64_t j = first; j <= r; j++) {
    weight[j] = a->scale * NAME(dot)(q, k + j * a->s_k.t, D) - (a->sel.on ? F[j] : 0.0);
    if (weight[j] > top) top = weight[j];
  }
  for (int64_t j = first; j <= r; j++) {
    weight[j] = exp(weight[j] - top);
    total += weight[j];
  }
  for (int64_t j = first; j <= r; j++) {
    weight[j] /= total;
    dweight[j] = NAME(dot)(dy, v + j * a->s_v.t, D);
    mean += weight[j] * dweight[j];
  }
  for (int64_t j = first; j <= r; j++) {
    const double G = weight[j] * (dweight[j] - mean);
    dF[j] -= G;
    for (int64_t d = 0; d < D; d++) {
      dq[d] += a->scale * G * (double)k[j * a->s_k.t + d];
      dk[(j * a->Hkv + g) * D + d] += a->scale * G * (double)q[d];
      dv[(j * a->Hkv + g) * D + d] += weight[j] * (double)dy[d];
    }
  }
}

/* The gradient of row r's selections, dS[j] = the sum of dF below it, goes to what the row selected with. */
static void NAME(backward_select)(const struct wn_attention *a, int64_t b, int64_t r, const double *base,
                                  const double *dS, double *dq, double *dk, double *dsq, double *dsk) {
  const int64_t D = a->D, first = document_start(a, b, r), g = a->sel.head / (a->H / a->Hkv);
  const bool own = a->sel.bilinear;
  const REAL *q = own ? (const REAL *)a->sel.sq + b * a->sel.s_sq.b + r * a->sel.s_sq.t
                      : (const REAL *)a->q + b * a->s_q.b + r * a->s_q.t + a->sel.head * a->s_q.h;
  const REAL *k = own ? (const REAL *)a->sel.sk + b * a->sel.s_sk.b : (const REAL *)a->k + b * a->s_k.b + g * a->s_k.h;
  const int64_t step = own ? a->sel.s_sk.t : a->s_k.t;
  double *to_q = own ? dsq : dq + a->sel.head * D;
  for (int64_t j = first; j <= r; j++) {
    if (!may_select(a, r, j, first) || (a->sel.relu && !(base[j] > 0))) continue;
    double *to_k = own ? dsk + j * D : dk + (j * a->Hkv + g) * D;
    for (int64_t d = 0; d < D; d++) {
      to_q[d] += a->scale * dS[j] * (double)k[j * step + d];
      to_k[d] += a->scale * dS[j] * (double)q[d];
    }
  }
}

static void NAME(backward_sequence)(const struct wn_attention *a, int64_t b, double *scratch) {
  const int64_t T = a->Tk, D = a->D, H = a->H, Hkv = a->Hkv, blocks = (T + ROWS - 1) / ROWS;
  double *carries = scratch;        /* [blocks,T] the carry at each block's first row */
  double *F = carries + blocks * T; /* [ROWS,T] of the block at hand */
  double *base = F + ROWS * T;      /* [ROWS,T] */
  double *dk = base + ROWS * T;     /* [T,Hkv,D] */
  double *dv = dk + T * Hkv * D;    /* [T,Hkv,D] */
  double *dsk = dv + T * Hkv * D;   /* [T,D] */
  double *dq = dsk + T * D;         /* [H,D] one row */
  double *dsq = dq + H * D;         /* [D] one row */
  double *weight = dsq + D, *dweight = weight + T, *dF = dweight + T, *dS = dF + T; /* [T] */
  memset(dk, 0, (size_t)(2 * T * Hkv * D + T * D) * sizeof *dk);
  memset(dS, 0, (size_t)T * sizeof *dS);

  int64_t longest = -1; /* the row whose M is largest: the only one that L_mem's gradient reaches */
  if (a->sel.on && a->sel.mem && a->sel.mem_coef != 0) {
    const REAL *M = (const REAL *)a->sel.M + b * T;
    longest = 0;
    for (int64_t r = 1; r < T; r++)
      if (M[r] > M[longest]) longest = r;
  }
  if (a->sel.on) {
    memset(weight, 0, (size_t)T * sizeof *weight); /* serves as the carry here */
    for (int64_t r = 0; r < T; r++) {
      const int64_t first = document_start(a, b, r);
      if (r % ROWS == 0) memcpy(carries + r / ROWS * T, weight, (size_t)T * sizeof *weight);
      NAME(base_row)(a, b, r, first, base);
      NAME(select_row)(a, r, first, base, weight);
    }
  }
  for (int64_t block = blocks - 1; block >= 0; block--) {
    const int64_t start = block * ROWS, end = start + ROWS < T ? start + ROWS : T;
    if (a->sel.on) {
      for (int64_t r = start; r < end; r++) {
        const int64_t first = document_start(a, b, r);
        double *row = base + (r - start) * T, *to = F + (r - start) * T;
        NAME(base_row)(a, b, r, first, row);
        memcpy(to + first, row + first, (size_t)(r + 1 - first) * sizeof *to);
        NAME(select_row)(a, r, first, to, carries + block * T);
      }
    }
    for (int64_t r = end - 1; r >= start; r--) {
      const int64_t first = document_start(a, b, r);
      const double *Frow = F + (r - start) * T;
      memset(dq, 0, (size_t)(H * D + D) * sizeof *dq);
      for (int64_t j = first; j <= r; j++) dF[j] = 0;
      for (int64_t h = 0; h < H; h++) NAME(backward_head)(a, b, h, r, Frow, weight, dweight, dF, dq + h * D, dk, dv);
      if (a->sel.on) {
        if (r == longest)
          for (int64_t j = first; j <= r; j++)
            if (Frow[j] < a->sel.mem_tau) dF[j] -= a->sel.mem_coef / a->sel.mem_tau;
        if (!a->sel.shift)
          for (int64_t j = first; j <= r; j++) dS[j] += dF[j];
        NAME(backward_select)(a, b, r, base + (r - start) * T, dS, dq, dk, dsq, dsk);
        if (a->sel.shift)
          for (int64_t j = first; j <= r; j++) dS[j] += dF[j];
        if (a->sel.bilinear && a->dsq)
          for (int64_t d = 0; d < D; d++) ((REAL *)a->dsq)[b * a->sel.s_sq.b + r * a->sel.s_sq.t + d] = (REAL)dsq[d];
      }
      if (a->dq)
        for (int64_t h = 0; h < H; h++)
          for (int64_t d = 0; d < D; d++)
            ((REAL *)a->dq)[b * a->s_q.b + r * a->s_q.t + h * a->s_q.h + d] = (REAL)dq[h * D + d];
    }
  }
  for (int64_t j = 0; j < T; j++) {
    for (int64_t g = 0; g < Hkv; g++) {
      for (int64_t d = 0; d < D; d++) {
        const int64_t n = (j * Hkv + g) * D + d;
        if (a->dk) ((REAL *)a->dk)[b * a->s_k.b + j * a->s_k.t + g * a->s_k.h + d] = (REAL)dk[n];
        if (a->dv) ((REAL *)a->dv)[b * a->s_v.b + j * a->s_v.t + g * a->s_v.h + d] = (REAL)dv[n];
      }
    }
    if (a->sel.on && a->sel.bilinear && a->dsk)
      for (int64_t d = 0; d < D; d++)
        ((REAL *)a->dsk)[b * a->sel.s_sk.b + j * a->sel.s_sk.t + d] = (REAL)dsk[j * D + d];
  }
}

static wn_status NAME(attention_backward)(const struct wn_exec *exec, const struct wn_attention *a) {
  const int team = workers(exec, a->B);
  const size_t each = backward_doubles(a);
  double *scratch = exec->scratch;
#pragma omp parallel for num_threads(team) schedule(static)
  for (int64_t b = 0; b < a->B; b++) NAME(backward_sequence)(a, b, scratch + (size_t)omp_get_thread_num() * each);
  return WN_OK;
}
#endif
