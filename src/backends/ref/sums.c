/* What a step reports (losses, hits, spans, L_mem), with the gradients of losses: sequential sums in double. */
#ifndef REAL
#include "backends/ref/ref.h"
#include "ops/documents.h"
#include "ops/gates.h"

static struct wn_documents gate_documents(const struct wn_gate_share *a) {
  return (struct wn_documents){.B = a->B, .T = a->T, .doc_start = a->doc_start, .count = a->count};
}
/* What all keys would count if nothing were given up; 1 without keys. */
static double gate_all(const struct wn_gate_share *a) {
  const struct wn_documents rows = gate_documents(a);
  double all = 0;
  for (struct wn_document d = {0}; wn_document_next(&rows, &d);) {
    const double n = (double)(d.end - d.first);
    all += a->ages ? n * (n + 1) / 2 : n;
  }
  return all > 0 ? all * (double)a->heads : 1;
}

#define REAL_FILE "backends/ref/sums.c"
#include "backends/ref/twice.h"
WN_REF_SLOT(span_sum_forward, struct wn_span_sum)
WN_REF_SLOT(span_sum_backward, struct wn_span_sum)
WN_REF_SLOT(memory_loss_forward, struct wn_memory_loss)
WN_REF_SLOT(memory_loss_backward, struct wn_memory_loss)
WN_REF_SLOT(gate_share_forward, struct wn_gate_share)
WN_REF_SLOT(gate_share_backward, struct wn_gate_share)

wn_status wn_ref_loss_sums_forward(const struct wn_exec *exec, const struct wn_loss_sums *a) {
  (void)exec;
  double loss = a->sums[0];
  int64_t hits = 0;
  for (int64_t m = 0; m < a->M; m++) {
    if (a->targets[m] < 0) continue;
    loss += a->loss[m];
    hits += a->hit[m] != 0;
  }
  a->sums[0] = loss;
  a->sums[1] += (double)hits;
  return WN_OK;
}
#else

static bool NAME(span_counts)(const struct wn_span_sum *a, int64_t row) {
  return !a->row_count || row % a->T < a->row_count[row / a->T];
}

static wn_status NAME(span_sum_forward)(const struct wn_exec *exec, const struct wn_span_sum *a) {
  (void)exec;
  const REAL *z = a->z; /* [rows,heads] */
  double sum = 0;
  for (int64_t i = 0; i < a->rows; i++)
    for (int64_t h = 0; h < a->heads && NAME(span_counts)(a, i); h++) sum += (double)z[i * a->heads + h];
  *a->sum = sum / a->tokens;
  return WN_OK;
}

static wn_status NAME(span_sum_backward)(const struct wn_exec *exec, const struct wn_span_sum *a) {
  (void)exec;
  REAL *dz = a->dz; /* [rows,heads] */
  const double each = a->scale / a->tokens;
  for (int64_t i = 0; i < a->rows; i++)
    for (int64_t h = 0; h < a->heads && NAME(span_counts)(a, i); h++)
      dz[i * a->heads + h] = (REAL)((double)dz[i * a->heads + h] + each);
  return WN_OK;
}

/* The first row with the document's largest M, in the row of M that begins at `at`. */
static int64_t NAME(document_longest)(const struct wn_document *d, const REAL *M, int64_t at) {
  int64_t longest = d->first;
  for (int64_t t = d->first + 1; t < d->end; t++)
    if (M[at + t] > M[at + longest]) longest = t;
  return longest;
}

static wn_status NAME(memory_loss_forward)(const struct wn_exec *exec, const struct wn_memory_loss *a) {
  (void)exec;
  const REAL *M = a->M; /* [B,G,T] */
  const struct wn_documents rows = {.B = a->B, .T = a->T, .doc_start = a->doc_start, .count = a->count};
  double sum = 0;
  for (struct wn_document d = {0}; wn_document_next(&rows, &d);)
    for (int64_t g = 0; g < a->G; g++) {
      const int64_t at = (d.b * a->G + g) * a->T;
      sum += (double)M[at + NAME(document_longest)(&d, M, at)] / (double)(d.end - d.first);
    }
  *a->sum = sum;
  return WN_OK;
}

static wn_status NAME(memory_loss_backward)(const struct wn_exec *exec, const struct wn_memory_loss *a) {
  (void)exec;
  REAL *M = a->M; /* [B,G,T]; gradients before `done`, as documents come in order, selection by selection */
  int64_t done = 0;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t g = 0; g < a->G; g++) {
      const struct wn_documents one = {.B = 1,
                                       .T = a->T,
                                       .doc_start = a->doc_start ? a->doc_start + b * a->T : NULL,
                                       .count = a->count ? a->count + b : NULL};
      for (struct wn_document d = {0}; wn_document_next(&one, &d);) {
        const int64_t longest = NAME(document_longest)(&d, M, done);
        for (int64_t t = d.first; t < d.end; t++)
          M[done + t] = (REAL)(t == longest ? a->scale / (double)(d.end - d.first) : 0);
      }
      for (int64_t t = a->count ? a->count[b] : a->T; t < a->T; t++) M[done + t] = 0;
      done += a->T;
    }
  return WN_OK;
}

static wn_status NAME(gate_share_forward)(const struct wn_exec *exec, const struct wn_gate_share *a) {
  (void)exec;
  const REAL *c = a->c; /* [B,T,heads] */
  const struct wn_documents rows = gate_documents(a);
  double sum = 0, slope;
  for (struct wn_document d = {0}; wn_document_next(&rows, &d);)
    for (int64_t t = d.first; t < d.end; t++)
      for (int64_t h = 0; h < a->heads; h++)
        sum += wn_gate_kept(a->ages, (double)c[(d.b * a->T + t) * a->heads + h], d.end - t, &slope);
  *a->sum = sum / gate_all(a);
  return WN_OK;
}

static wn_status NAME(gate_share_backward)(const struct wn_exec *exec, const struct wn_gate_share *a) {
  (void)exec;
  const REAL *c = a->c; /* [B,T,heads] */
  REAL *dc = a->dc;
  const struct wn_documents rows = gate_documents(a);
  double slope, kept = 0;
  for (int64_t l = 0; a->sums && l < a->layers; l++) kept += a->sums[l] / (double)a->layers;
  if (a->sums && !(kept > a->most)) return WN_OK;
  const double each = a->scale / gate_all(a);
  for (struct wn_document d = {0}; wn_document_next(&rows, &d);)
    for (int64_t t = d.first; t < d.end; t++)
      for (int64_t h = 0; h < a->heads; h++) {
        const int64_t i = (d.b * a->T + t) * a->heads + h;
        wn_gate_kept(a->ages, (double)c[i], d.end - t, &slope);
        dc[i] = (REAL)((double)dc[i] + each * slope);
      }
  return WN_OK;
}
#endif
