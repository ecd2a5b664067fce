/* Attention row by row, forward. Each (sequence, head) goes through its query rows in order, with its own carry c[j] =
 * the sum of S over earlier rows; with open rows the sum over all rows, computed by an earlier pass. The selecting
 * head's logits are recomputed for every head: 2D operations more per pair, but no head waits for another. Scratch:
 * some rows of Tk doubles per thread. */
#include "backends/ref/attention_rows.inc"
#ifndef REAL

static size_t forward_doubles(const struct wn_attention *a) {
  return row_doubles(a) + 2 * (size_t)a->Tk + (size_t)a->D;
}

static size_t rows_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  if (backward) return (size_t)workers(exec, a->B) * wn_ref_attention_backward_doubles(a) * sizeof(double);
  const int64_t last = a->B * wn_selection_groups(a) * a->Tk, sums = a->slots.sums ? a->B * a->H * a->Tk : 0;
  return ((size_t)workers(exec, a->B * a->H) * forward_doubles(a) + (size_t)(last + sums)) * sizeof(double);
}

#define REAL_FILE "backends/ref/attention.c"
#include "backends/ref/twice.h"

size_t wn_ref_attention_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  return a->k_type ? wn_wide_keys_scratch(exec, a, backward, rows_scratch)
                   : wn_wide_rows_scratch(exec, a, backward, rows_scratch);
}
static wn_status forward_wide(const struct wn_exec *exec, const struct wn_attention *a) {
  return exec->dtype == WN_F64 ? attention_forward_f64(exec, a) : attention_forward_f32(exec, a);
}
wn_status wn_ref_attention_forward(const struct wn_exec *exec, const struct wn_attention *a) {
  return a->k_type ? wn_wide_keys_run(exec, a, forward_wide) : wn_wide_rows_run(exec, a, false, forward_wide);
}
#else

/* Passes a row's attention weights to the look function. as: scratch of Tk. */
static void NAME(show_row)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, const double *weight,
                           double *as) {
  const int64_t position = position_of(a, r), first = document_start(a, b, position);
  float *w = (float *)as;
  for (int64_t j = 0; j <= position; j++) w[j] = j < first ? 0 : (float)weight[a->sinks.n + j];
  a->look.rows(a->look.user, &(struct wn_attention_view){.a = a,
                                                         .b = b,
                                                         .h = h,
                                                         .r = r,
                                                         .rows = 1,
                                                         .columns = position + 1,
                                                         .stride = position + 1,
                                                         .w = w,
                                                         .thread = wn_hand()});
}

/* One head of one sequence. row, carry: [Tk]; acc: [D]; weight: [row_doubles]; sums: [Tk] or NULL. */
static void NAME(forward_head)(const struct wn_attention *a, int64_t b, int64_t h, double *row, double *carry,
                               double *acc, double *weight, double *sums) {
  const int64_t D = a->D, G = wn_selection_groups(a), group = h / (a->H / G);
  const bool leads = h % (a->H / G) == 0; /* writes the group's F and M once */
  const REAL *f_in = a->sel.on ? a->sel.f_in : NULL;
  const int32_t *places = wn_slot_positions(a, b, selecting_head(a, group) / (a->H / a->Hkv));
  for (int64_t j = 0; sums && j < a->Tk; j++) sums[j] = 0;
  for (int64_t j = 0; j < a->Tk; j++)
    carry[j] = f_in ? (double)f_in[(b * G + group) * wn_selection_stride(a) + j] : 0.0;
  if (a->sel.on && a->open) NAME(open_sums)(a, b, group, row, carry);
  for (int64_t r = 0; r < a->Tq; r++) {
    const int64_t position = position_of(a, r), first = document_start(a, b, position), n = (b * a->H + h) * a->Tq + r;
    REAL *y = (REAL *)a->y + b * a->s_y.b + r * a->s_y.t + h * a->s_y.h;
    if (a->sel.on) {
      /* F may be requested for every j; where the row does not select, it equals the carry. */
      const int64_t at = (b * G + group) * a->Tq + r;
      REAL *F = leads && a->sel.F ? (REAL *)a->sel.F + at * a->Tk : NULL;
      NAME(base_row)(a, b, group, r, first, row);
      if (a->open)
        NAME(open_row)(a, b, group, r, row, carry, row);
      else
        NAME(select_row)(a, group, position, first, places, row, carry);
      if (F)
        for (int64_t j = 0; j < a->Tk; j++) F[j] = (REAL)(a->open || (j >= first && j <= position) ? row[j] : carry[j]);
      if (leads && a->sel.mem && a->sel.M) {
        double kept = (double)(position + 1 - first);
        for (int64_t j = first; j <= position; j++) kept -= fmin(row[j], a->sel.mem_tau) / a->sel.mem_tau;
        ((REAL *)a->sel.M)[at] = (REAL)kept;
      }
    }
    const double lse = NAME(weights)(a, b, h, r, a->sel.on ? row : NULL, weight, weight + 2 * (a->sinks.n + a->Tk),
                                     a->threshold.on && a->threshold.count ? a->threshold.count + n : NULL,
                                     a->look.n > 0 ? a->look.count + n * a->look.n : NULL);
    if (a->look.rows) NAME(show_row)(a, b, h, r, weight, weight + 2 * (a->sinks.n + a->Tk));
    for (int64_t j = first; sums && j <= position; j++) sums[j] += weight[a->sinks.n + j];
    NAME(mix)(a, b, h, r, weight, acc);
    if (a->exclusive.on) {
      const REAL *v = NAME(v_at)(a, b, position, h / (a->H / a->Hkv));
      const double gate = a->exclusive.gate ? (double)((const REAL *)a->exclusive.gate)[h] : 1;
      double along = 0, size = 0; /* summed alike: if y equals v, the quotient is exactly 1 and the output 0 */
      for (int64_t d = 0; d < D; d++) along += acc[d] * (double)v[d], size += (double)v[d] * (double)v[d];
      size = fmax(size, 1e-30);
      if (a->exclusive.dot) ((REAL *)a->exclusive.dot)[n] = (REAL)along;
      for (int64_t d = 0; d < D; d++) acc[d] -= gate * along / size * (double)v[d];
    }
    for (int64_t d = 0; a->gate.on && a->gate.ungated && d < D; d++)
      ((REAL *)a->gate.ungated)[((b * a->Tq + r) * a->H + h) * D + d] = (REAL)acc[d];
    for (int64_t d = 0; d < D; d++) y[d] = (REAL)(a->gate.on ? acc[d] * NAME(gate)(a, b, r, h, d) : acc[d]);
    if (a->lse) ((REAL *)a->lse)[n] = (REAL)lse;
  }
}

/* Behind the hands' scratch: [B,G,Tk], f_out; then [B,H,Tk], sums, or NULL. */
static double *NAME(forward_last)(const struct wn_exec *exec, const struct wn_attention *a, double **sums) {
  double *last = (double *)exec->scratch + (size_t)workers(exec, a->B * a->H) * forward_doubles(a);
  *sums = a->slots.sums ? last + a->B * wn_selection_groups(a) * a->Tk : NULL;
  return last;
}

static void NAME(forward_task)(void *call, int64_t task) {
  const struct wn_exec *exec = ((const struct wn_call *)call)->exec;
  const struct wn_attention *a = ((const struct wn_call *)call)->a;
  const int64_t G = wn_selection_groups(a);
  double *sums, *last = NAME(forward_last)(exec, a, &sums);
  double *row = (double *)exec->scratch + (size_t)wn_hand() * forward_doubles(a), *carry = row + a->Tk;
  double *acc = carry + a->Tk;
  const int64_t b = task / a->H, h = task % a->H;
  NAME(forward_head)(a, b, h, row, carry, acc, acc + a->D, sums ? sums + task * a->Tk : NULL);
  if (h % (a->H / G) == 0) memcpy(last + (b * G + h / (a->H / G)) * a->Tk, carry, (size_t)a->Tk * sizeof *last);
}

static wn_status NAME(attention_forward)(const struct wn_exec *exec, const struct wn_attention *a) {
  const int64_t G = wn_selection_groups(a);
  double *sums, *last = NAME(forward_last)(exec, a, &sums);
  wn_parallel_for(exec->threads, a->B * a->H, NAME(forward_task), &(struct wn_call){exec, a});
  /* after all heads have read f_in, which f_out may alias */
  if (a->sel.on && a->sel.f_out)
    for (int64_t n = 0; n < a->B * G; n++)
      for (int64_t j = 0; j < a->Tk; j++)
        ((REAL *)a->sel.f_out)[n * wn_selection_stride(a) + j] = (REAL)last[n * a->Tk + j];
  const int64_t share = a->H / wn_slot_groups(a);
  for (int64_t n = 0; sums && n < a->B * wn_slot_groups(a); n++)
    for (int64_t j = 0; j < a->Tk; j++) {
      double sum = 0;
      for (int64_t h = n * share; h < (n + 1) * share; h++) sum += sums[h * a->Tk + j];
      ((REAL *)a->slots.sums)[n * wn_slot_stride(a) + j] = (REAL)sum;
    }
  return WN_OK;
}
#endif
