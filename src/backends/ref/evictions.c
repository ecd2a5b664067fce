/* Evictions of whole sequences and of pieces of a prompt: runs the walk (walk.h) for every sequence and head group, one
 * thread for each. */
#include "ops/evictions.h"

#include <stdatomic.h>

#include "backends/ref/ref.h"
#include "backends/ref/walk.h"

static struct wn_arrays evictions_count(const struct wn_exec *exec, const struct wn_evictions *op) {
  struct wn_arrays arrays = {0};
  struct wn_walk unused;
  wn_walk_lay(exec, op, &arrays, &unused);
  return arrays;
}

size_t wn_ref_evictions_scratch(const struct wn_exec *exec, const struct wn_evictions *op, bool backward) {
  (void)backward;
  return (size_t)exec->threads * evictions_count(exec, op).bytes;
}

/* ---- whole sequences ---- */

static int64_t evictions_document(const struct wn_attention *a, int64_t b, int64_t t) {
  return a->doc_start ? a->doc_start[b * a->Tk + t] : 0;
}

static wn_status evictions_sequence(const struct wn_exec *exec, struct wn_walk *w, int64_t b, int64_t group,
                                    int32_t *evicted_at) {
  const int64_t T = w->a->Tk;
  wn_walk_begin(w, b, group);
  for (int64_t first = 0, end; first < T; first = end) {
    for (end = first + 1; end < T && evictions_document(w->a, b, end) == first;) end++;
    if (end - first <= w->K) continue;
    wn_walk_document(w, first);
    WN_TRY(wn_walk_rows(exec, w, first, end - first, end - 1, evicted_at));
  }
  return WN_OK;
}

/* ---- pieces ---- */

/* out[i] = x[first+i]. */
static void evictions_read(const void *x, wn_dtype dtype, int64_t first, int64_t n, double *out) {
  for (int64_t i = 0; i < n; i++) out[i] = wn_number(x, first + i, dtype);
}

/* Continues from the keys before the walk's rows, and returns the updated notes. */
static wn_status evictions_piece(const struct wn_exec *exec, struct wn_walk *w, int64_t b, int64_t group,
                                 int32_t *evicted_at) {
  const struct wn_evictions *op = w->op;
  const struct wn_attention *a = op->a;
  const int64_t older = a->Tk - a->Tq, G = a->sel.on ? wn_selection_groups(a) : 0, cap = a->Tk;
  const int64_t stride = wn_slot_stride(a), row = b * wn_slot_groups(a) + group;
  const int32_t *positions = wn_slot_positions(a, b, group);
  void *notes = wn_element(op->note, row * w->notes * stride, w->dtype);
  wn_walk_begin(w, b, group);
  for (int64_t j = 0; j < older; j++) wn_walk_enter(w, j, j, positions ? positions[j] : j);
  for (int64_t i = 0; i < w->notes; i++) evictions_read(notes, w->dtype, i * stride, older, w->note + i * cap);
  for (int64_t s = 0; a->sel.f_in && s < w->choices; s++)
    evictions_read(a->sel.f_in, w->dtype, (b * G + group * w->choices + s) * wn_selection_stride(a), older,
                   w->F + s * cap);
  w->n = w->alive = older;
  WN_TRY(wn_walk_rows(exec, w, 0, a->Tq, -1, evicted_at));
  for (int64_t i = 0; i < w->notes; i++)
    for (int64_t c = 0; c < w->n; c++) wn_number_set(notes, i * stride + w->key[c], w->dtype, w->note[i * cap + c]);
  if (!op->left) return WN_OK;
  int32_t *left = op->left + row * wn_ref_min(w->K, a->Tk);
  for (int64_t j = 0, n = 0; j < a->Tk; j++)
    if (evicted_at[j] == WN_EVICTED_NEVER) left[n++] = (int32_t)j;
  return WN_OK;
}

struct evictions_run {
  const struct wn_exec *exec;
  const struct wn_evictions *op;
  struct wn_arrays counted;
  atomic_int status;
};
static void evictions_task(void *args, int64_t n) {
  struct evictions_run *run = args;
  const struct wn_evictions *op = run->op;
  const struct wn_attention *a = op->a;
  struct wn_exec one = *run->exec;
  struct wn_arrays mine = wn_arrays_copy(&run->counted, run->exec->scratch, wn_hand());
  struct wn_walk w;
  wn_walk_lay(run->exec, op, &mine, &w);
  one.threads = 1;
  one.scratch = NULL, one.scratch_bytes = 0;
  const int64_t b = n / op->groups, group = op->group0 + n % op->groups;
  int32_t *evicted_at = op->evicted_at + (b * wn_slot_groups(a) + group) * wn_slot_stride(a);
  for (int64_t j = 0; j < a->Tk; j++) evicted_at[j] = WN_EVICTED_NEVER;
  const wn_status here =
      op->piece ? evictions_piece(&one, &w, b, group, evicted_at) : evictions_sequence(&one, &w, b, group, evicted_at);
  if (here != WN_OK) run->status = (int)here;
}

wn_status wn_ref_evictions_forward(const struct wn_exec *exec, const struct wn_evictions *op) {
  struct evictions_run run = {.exec = exec, .op = op, .counted = evictions_count(exec, op), .status = WN_OK};
  WN_TRY(wn_arrays_check(exec->ctx, &run.counted, "evictions of %lld keys", (long long)op->a->Tk));
  wn_parallel_tasks(exec->threads, op->a->B * op->groups, evictions_task, &run);
  return (wn_status)run.status;
}
