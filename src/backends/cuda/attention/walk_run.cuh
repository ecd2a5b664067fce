/* Runs the evictions of a call: chunks of rows, scratch, launches. Products are those of attention with stored
 * attention weights. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_WALK_RUN_CUH
#define WN_BACKENDS_CUDA_ATTENTION_WALK_RUN_CUH

#include "backends/cuda/attention/stored_run.cuh"
#include "backends/cuda/attention/walk.cuh"

extern "C" {
#include "ops/policy/keydiff.h"
#include "ops/policy/knorm.h"
}

namespace wn_cuda {

WN_POLICY_KERNELS(knorm)
WN_POLICY_KERNELS(keydiff)

const policy_kernels *policy_kernels_for(const wn_policy_kind *kind) {
  return kind->id == WN_POLICY_ID_KNORM     ? &knorm_policy
         : kind->id == WN_POLICY_ID_KEYDIFF ? &keydiff_policy
                                            : static_cast<const policy_kernels *>(kind->kernels);
}

struct walk_call {
  const wn_evictions *op;
  wn_attention call;
  stored_call x;
  walk_args w;
  const policy_kernels *kernels;

  static_assert(sizeof(walk_args) < 4000, "arguments of a kernel");

  void plan(const wn_evictions *of, cudaStream_t stream) {
    op = of, call = *of->a;
    call.open = false, call.lse = nullptr, call.slots.evicted_at = nullptr;
    x.c = &call, x.stream = stream, x.backward_pass = false;
    x.plan(0);
    w = walk_args();
    const int64_t P = wn_slot_groups(&call), G = call.sel.on ? wn_selection_groups(&call) : 0;
    w.rule = op->rule, w.scale = call.scale;
    w.group0 = (int)op->group0, w.groups = (int)op->groups, w.first_group = (int)op->first_group;
    for (int n = 0; n < w.groups; n++)
      w.group[n] = {of_int(op->group[n].K), of_int(op->group[n].sinks), of_int(op->group[n].recent)};
    w.sums = op->sums, w.piece = op->piece, w.ring = op->change == WN_NOTES_RING;
    w.heads = (int)(call.H / P), w.choices = op->sums || op->selections ? (int)(G > 1 ? G / P : G) : 0;
    w.notes = (int)op->notes, w.matters = of_int(op->rows);
    const bool kind = op->rule.by == WN_EVICT_KIND;
    kernels = kind ? policy_kernels_for(op->rule.kind) : nullptr;
    if (kind) w.kind = *op->rule.kind;
    w.k = call.k, w.v = call.v, w.type = call.k_type;
    w.note = static_cast<float *>(op->note), w.evicted_at = op->evicted_at, w.left = op->left;
  }
  static int of_int(int64_t n) { return (int)(n < INT32_MAX ? n : INT32_MAX); }

  bool oldest() const { return op->rule.by == WN_EVICT_OLDEST; }
  bool by_distance() const { return x.s.relative.P > 0 && (w.sums || (w.choices > 0 && !call.sel.bilinear)); }
  void lay(char *base) {
    stored_args &s = x.s;
    room scratch = {base, 0};
    const int64_t rows = call.B * call.H * s.R, blocks = call.B * w.groups;
    if (!oldest()) {
      if (w.sums) s.W = s.raw = scratch.take<float>(rows * s.ld), s.sinks.row = scratch.take<float>(rows * s.sinks.ld);
      if (by_distance()) s.relative.row = scratch.take<float>(rows * s.relative.ld);
      if (w.choices > 0) s.S = scratch.take<float>(call.B * s.a.G * s.R * s.ld);
      w.F = scratch.take<double>(blocks * w.choices * s.ld);
      w.N = scratch.take<double>(blocks * w.notes * s.ld);
      w.score = scratch.take<double>(blocks * s.ld);
      w.held = scratch.take<int32_t>(blocks * s.ld);
      w.state = scratch.take<int32_t>(blocks * 2);
      if (op->rule.by == WN_EVICT_KIND && !w.kind.constant) {
        w.each = wn_policy_room(&w.kind, s.ld, s.a.D);
        w.room = scratch.take<double>(blocks * w.each);
        w.places = scratch.take<int32_t>(blocks * s.ld);
      }
    }
    x.scratch = scratch;
  }

  void find() {
    const unsigned blocks = (unsigned)(call.B * w.groups);
    w.s = x.s;
    if (oldest()) {
      WN_LAUNCH(dim3((unsigned)((call.Tk + WALK_THREADS - 1) / WALK_THREADS), blocks), dim3(WALK_THREADS), 0, x.stream,
                walk_oldest, w);
      return;
    }
    const int parts = w.heads < WALK_WARPS ? WALK_WARPS / w.heads : 1;
    const size_t shared = w.sums ? (size_t)(w.heads * (parts + 1)) * sizeof(walk_shares) : 0;
    for (int n = 0; n < x.windows; n++) {
      x.window_at(n);
      if (w.sums) {
        x.dot(x.on_keys(x.s.raw), x.queries(), x.keys());
        x.add_biases(false);
        if (x.s.sinks.n > 0) x.dot(x.on_sinks(x.s.sinks.row), x.queries(), x.sink_rows(call.sinks.k));
      }
      if (by_distance()) x.dot(x.on_distances(), x.queries(), x.distances());
      if (w.choices > 0) x.dot(x.on_selection(), x.selecting(false), x.selecting(true));
      if (w.choices > 0 && !call.sel.bilinear) x.add_biases(true);
      w.s = x.s;
      if (kernels)
        kernels->walk(w, blocks, shared, x.stream);
      else
        WN_LAUNCH(dim3(blocks), dim3(WALK_THREADS), shared, x.stream, walk_rows<nullptr>, w);
    }
  }
};

outcome run_evictions(pass what, const wn_evictions *op, void *scratch, cudaStream_t stream) {
  walk_call x;
  x.plan(op, stream);
  x.lay(static_cast<char *>(scratch));
  if (what == FORWARD) x.find();
  return {x.x.scratch.used, x.x.what};
}

} // namespace wn_cuda

#endif
