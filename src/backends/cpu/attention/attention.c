/* Fused attention: the backend's slots. A call is planned (plan.c), its scratch is laid out, and the kernels run:
 * forward.c, backward.c, decode.c (single rows), open.c (rows without causality), open_select.c (such rows with
 * selection). */
#include "backends/cpu/attention/bf16.h"
#include "backends/cpu/attention/dead_keys.h"
#include "backends/cpu/attention/gate.h"
#include "backends/cpu/attention/open_select.h"
#include "backends/cpu/attention/score.h"
#include "backends/cpu/attention/sparse.h"
#include "backends/cpu/attention/terms.h"
#include "backends/wide_rows.h"
#include "base/alloc.h"
#include "ops/terms.h"

static struct wn_arrays kernels_scratch(const struct wn_attention_plan *p, bool backward) {
  if (p->a->open) return p->a->sel.on ? wn_open_select_scratch(p, backward) : wn_open_scratch(p, backward);
  return backward                            ? wn_attention_backward_scratch(p)
         : wn_attention_decodes(p->a, false) ? wn_attention_decode_scratch(p)
                                             : wn_attention_forward_scratch(p);
}

/* A call's scratch; the kernels' arrays come first. */
struct attention_scratch {
  float *bias, *distances;
  struct wn_terms_scratch terms; /* unused when a single row decodes */
};

static void scratch_lay(const struct wn_attention_plan *p, bool backward, struct wn_arrays *l,
                        struct attention_scratch *s) {
  const struct wn_arrays kernels = kernels_scratch(p, backward);
  wn_arrays_lay_copies(l, &kernels, 1);
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(s->bias, "biases", true, WN_DIMS(wn_score_floats(p, backward))),
      WN_ARRAY_FOR(s->distances, "far distances", true, WN_DIMS(wn_sparse_floats(p))),
  };
  WN_ARRAYS_LAY(l, rows);
  if (!wn_attention_decodes(p->a, backward)) wn_terms_lay(p, l, backward, &s->terms);
}

static size_t scratch_bytes(const struct wn_attention_plan *p, bool backward) {
  struct wn_arrays l = {0};
  struct attention_scratch unused;
  scratch_lay(p, backward, &l, &unused);
  return wn_arrays_bytes(&l);
}

/* Skips dead keys only if there is scratch for it. The scratch may have been sized for a call that skips no keys
 * (another pass with the same workspace, with dropout or a look at the attention weights), and must suffice for this
 * one. */
static wn_status plan(struct wn_attention_plan *p, const struct wn_exec *exec, const struct wn_attention *a,
                      const struct wn_tile_ops *ops, bool backward) {
  WN_TRY(wn_attention_plan_init(p, exec, a, ops, backward));
  if (p->dead_keys.wanted && exec->scratch && exec->scratch_bytes < scratch_bytes(p, backward))
    p->dead_keys.wanted = false;
  return WN_OK;
}

static wn_status run(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  struct wn_attention_plan p;
  const bool avx512 = exec->ctx->isa == WN_ISA_AVX512;
  if (backward && a->threshold.on && !a->threshold.cut)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT,
                   "attention: threshold.cut: expected the array that forward filled, found NULL");
#if WN_HAS_AVX512
  const struct wn_tile_ops *ops = avx512 ? &wn_tile_ops_avx512 : &wn_tile_ops_avx2;
#else
  const struct wn_tile_ops *ops = &wn_tile_ops_avx2;
#endif
  WN_TRY(plan(&p, exec, a, ops, backward));
  p.dead_keys.on = p.dead_keys.wanted && wn_dead_keys_final(a);
  struct attention_scratch s = {0};
  scratch_lay(&p, backward, &(struct wn_arrays){.base = exec->scratch}, &s);
  wn_sparse_fill(&p, s.distances);
  wn_score_begin(&p, s.bias, backward);
  if (wn_attention_decodes(a, backward)) {
    a->open ? wn_open_forward_run(&p) : wn_attention_decode_run(&p);
    return WN_OK;
  }
  WN_TRY(wn_attention_plan_kernels(&p, avx512));
  p.terms = s.terms;
  wn_terms_relative_pack(&p);
  if (a->open && a->sel.on)
    backward ? wn_open_select_backward_run(&p) : wn_open_select_forward_run(&p);
  else if (a->open)
    backward ? wn_open_backward_run(&p) : wn_open_forward_run(&p);
  else if (backward)
    wn_attention_backward_run(&p), wn_terms_backward_end(&p);
  else
    wn_attention_forward_run(&p);
  return WN_OK;
}

static size_t attention_scratch_of(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  struct wn_attention_plan p;
  struct wn_attention floats = *a; /* of other calls: those in bf16 need less */
  floats.rounds = false;
  if (plan(&p, exec, &floats, NULL, backward) != WN_OK) return 0;
  const size_t bytes = scratch_bytes(&p, backward);
  if (!wn_sparse_may(&p, backward)) return bytes;
  /* Whether keys are gathered by distance depends on the number of keys and on evictions. A call with fewer keys or
   * without evictions may need more scratch than the largest one that was sized, so every call gets room for it. */
  wn_sparse_most(&p);
  const size_t gathered = scratch_bytes(&p, backward);
  return bytes > gathered ? bytes : gathered;
}

/* Scratch that also suffices for fewer and for shorter sequences. All threads work together on a large call, but a call
 * whose sequences divide evenly among the threads, or with too few row blocks, gives each thread its own sequences and
 * arrays (wn_attention_plan_init). */
static size_t attention_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  const int64_t threads = exec->threads, few = (2 * threads - 1) * WN_TILE;
  size_t most = attention_scratch_of(exec, a, backward);
  if (wn_attention_decodes(a, backward)) return most;
  struct wn_attention fewer = *a;
  if (a->Tq == a->Tk && !backward) {
    fewer.Tq = fewer.Tk = 1; /* takes its own path */
    const size_t single = attention_scratch_of(exec, &fewer, false);
    most = single > most ? single : most;
  }
  /* With open rows that select, the division of columns depends only on the number of sequences. */
  const bool dealt = a->open && a->sel.on;
  if (threads == 1 && !dealt) return most;
  fewer = *a;
  for (int pass = 0; pass < 2; pass++) { /* first at full length, then the longest with too few row blocks */
    if (pass == 1 && (a->open || a->Tq != a->Tk || a->Tk <= few)) break;
    if (pass == 1) fewer.Tq = fewer.Tk = few;
    for (fewer.B = 1; fewer.B <= wn_min_i64(a->B, dealt ? 4 * threads + 8 : 4 * threads); fewer.B++) {
      const size_t bytes = attention_scratch_of(exec, &fewer, backward);
      most = bytes > most ? bytes : most;
    }
  }
  return most;
}

static size_t floats_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  return wn_gate_scratch(exec, a, backward, attention_scratch);
}

static size_t cpu_attention_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  if (!wn_bf16_serves(exec, a, backward)) return wn_wide_rows_scratch(exec, a, backward, floats_scratch);
  const size_t most = attention_scratch(exec, a, backward);
  struct wn_attention single = *a;
  single.Tq = single.Tk = 1;
  const size_t wide = backward || a->Tq != a->Tk ? 0 : wn_wide_rows_scratch(exec, &single, false, attention_scratch);
  return most > wide ? most : wide;
}

static wn_status forward_floats(const struct wn_exec *exec, const struct wn_attention *a) {
  return wn_gate_run(exec, a, false, run);
}
static wn_status backward_floats(const struct wn_exec *exec, const struct wn_attention *a) {
  return wn_gate_run(exec, a, true, run);
}
static wn_status cpu_attention_forward(const struct wn_exec *exec, const struct wn_attention *a) {
  if (wn_bf16_serves(exec, a, false)) return run(exec, a, false);
  return wn_wide_rows_run(exec, a, false, forward_floats);
}
static wn_status cpu_attention_backward(const struct wn_exec *exec, const struct wn_attention *a) {
  if (wn_bf16_serves(exec, a, true)) return run(exec, a, true);
  return wn_wide_rows_run(exec, a, true, backward_floats);
}

/* Terms that decoding serves: the forward of a single row. */
enum {
  ROW_SERVED = WN_TERM_SELECTION | WN_TERM_WINDOW | WN_TERM_STRIDED | WN_TERM_SQUARE_ROOT | WN_TERM_SPAN |
               WN_TERM_RELATIVE | WN_TERM_SINKS | WN_TERM_THRESHOLD | WN_TERM_EXCLUSIVE | WN_TERM_GATE |
               WN_TERM_DROPOUT | WN_TERM_DOCUMENTS | WN_TERM_EVICTION | WN_TERM_EVICTION_BY_HEAD | WN_TERM_POSITIONS |
               WN_TERM_POSITIONS_BY_HEAD | WN_TERM_SUMS | WN_TERM_LOOK | WN_TERM_OPEN | WN_TERM_HALF | WN_TERM_BLOCKS |
               WN_TERM_CONSTANT_KEYS | WN_TERM_SOME_HEADS | WN_TERM_BF16 | WN_TERM_SCORE_MAP | WN_TERM_KEYED
};

void wn_cpu_attention_fill(struct wn_backend *table, enum wn_isa isa) {
  if (isa == WN_ISA_REF) return;
  table->attention_served = (struct wn_attention_served){
      .forward = ROW_SERVED & ~(WN_TERM_SUMS | WN_TERM_POSITIONS_BY_HEAD),
      .row = ROW_SERVED,
      .backward = ROW_SERVED & (WN_TERMS_BACKWARD | WN_TERM_SCORE_MAP),
  };
  table->whole_selections = true;
  table->attention_forward = cpu_attention_forward;
  table->attention_backward = cpu_attention_backward;
  table->attention_scratch = cpu_attention_scratch;
}
