/* Runs a call of attention on the kernels: chunks of rows, scratch, launches. Included once for each type of rows, with
 * and without terms. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_RUN_CUH
#define WN_BACKENDS_CUDA_ATTENTION_RUN_CUH

#include "backends/cuda/attention/backward_keys.cuh"
#include "backends/cuda/attention/bilinear.cuh"
#include "backends/cuda/attention/call.cuh"
#include "backends/cuda/attention/forward.cuh"
#include "backends/cuda/attention/reduce.cuh"
#include "backends/cuda/attention/select.cuh"
#include "backends/cuda/attention.h"

namespace wn_cuda {

template <class P, class T = no_terms> struct call {
  static constexpr bool IS_ROUNDED = sizeof(typename P::element) == 2; /* y is rounded: delta is not computed from it */
  attention_args a;
  int windows, rows; /* rows: in a chunk */
  room scratch;
  float *carries; /* [windows,B,G,key_tiles * TILE] F at each chunk's first row */
  int64_t carry;  /* floats in one of them */
  dim3 by_rows, by_keys, by_groups;

  static stride of(const wn_stride &s) { return {s.b, s.t, s.h}; }
  static bool whole_vectors(const void *p, const stride &s) {
    constexpr int n = 16 / (int)sizeof(typename P::element);
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && s.b % n == 0 && s.t % n == 0 && s.h % n == 0;
  }

  void arguments(const wn_attention *c) {
    a = attention_args();
    a.B = (int)c->B, a.Tq = (int)c->Tq, a.Tk = (int)c->Tk, a.H = (int)c->H, a.Hkv = (int)c->Hkv, a.D = (int)c->D;
    a.G = (int)wn_selection_groups(c);
    a.offset = a.Tk - a.Tq;
    a.scale = (float)c->scale, a.to_log2 = (float)(c->scale * 1.4426950408889634);
    a.q = c->q, a.k = c->k, a.v = c->v, a.y = c->y, a.lse = static_cast<float *>(c->lse);
    a.s_q = of(c->s_q), a.s_k = of(c->s_k), a.s_v = of(c->s_v), a.s_y = of(c->s_y);
    a.window = (int)(c->window < INT32_MAX ? c->window : 0);
    a.strided = (int)(c->strided < INT32_MAX ? c->strided : 0);
    a.doc_start = c->doc_start, a.evicted_at = c->slots.evicted_at, a.at = c->slots.at;
    a.slot_groups = (int)wn_slot_groups(c), a.slot_stride = wn_slot_stride(c);
    if (c->span.on) {
      a.span.on = true, a.span.dynamic = c->span.dynamic, a.span.exclude_self = c->span.exclude_self;
      a.span.limit = (float)c->span.limit, a.span.ramp = (float)c->span.ramp;
      a.span.z = static_cast<const float *>(c->span.z), a.span.s_z = of(c->span.s_z);
    }
    if (c->exclusive.on) {
      a.exclusive.on = true, a.exclusive.gate = static_cast<const float *>(c->exclusive.gate);
      a.exclusive.dot = static_cast<float *>(c->exclusive.dot);
    }
    if (c->sel.on) select_arguments(c);
    terms_arguments(c);
    a.dy = c->dy, a.s_dy = a.s_y, a.dq = c->dq, a.dk = c->dk, a.dv = c->dv, a.dk_from = (int)c->dk_from;
    a.vectors = a.D % (16 / (int)sizeof(typename P::element)) == 0 && whole_vectors(a.q, a.s_q) &&
                whole_vectors(a.k, a.s_k) && whole_vectors(a.v, a.s_v) && whole_vectors(a.dy, a.s_y) &&
                (!c->sel.bilinear || (whole_vectors(a.sel.q, a.sel.s_q) && whole_vectors(a.sel.k, a.sel.s_k)));
  }

  void terms_arguments(const wn_attention *c) {
    a.map.head0 = (int)c->head0, a.map.head_step = c->head_step > 0 ? (int)c->head_step : 1;
    for (int64_t n = 0; n < c->maps; n++) {
      const double *number = c->map[n].number;
      if (c->map[n].kind->id == WN_SCORE_ALIBI)
        a.map.alibi = true, a.map.slopes = c->map[n];
      else if (c->map[n].kind->id == WN_SCORE_SOFTCAP)
        a.map.cap = (float)(number[0] / c->scale), a.map.per_cap = (float)(c->scale / number[0]);
    }
    a.sinks.n = (int)c->sinks.n;
    a.sinks.k = static_cast<const float *>(c->sinks.k), a.sinks.v = static_cast<const float *>(c->sinks.v);
    if (c->gate.on) {
      a.gate.on = true, a.gate.elementwise = c->gate.elementwise, a.gate.g = static_cast<const float *>(c->gate.g);
      a.gate.s_g = of(c->gate.s_g), a.gate.ungated = static_cast<float *>(c->gate.ungated);
    }
    a.dropout.limit = c->dropout.p * 4294967296.0, a.dropout.factor = (float)(1 / (1 - c->dropout.p));
    a.dropout.least = (uint32_t)ceil(a.dropout.limit < 4294967295.0 ? a.dropout.limit : 4294967295.0);
    a.dropout.seed = c->dropout.seed, a.dropout.stream = c->dropout.stream;
    a.root.on = c->root.on, a.root.buffer = c->root.buffer, a.root.density = c->root.density;
  }

  void select_arguments(const wn_attention *c) {
    a.sel.on = true, a.sel.relu = c->sel.relu, a.sel.shift = c->sel.shift;
    a.sel.protect_first = c->sel.protect_first, a.sel.protect_self = c->sel.protect_self;
    a.sel.joins = !c->sel.bilinear, a.sel.head = c->sel.head;
    if (c->sel.bilinear) {
      a.sel.q = c->sel.sq, a.sel.k = c->sel.sk, a.sel.s_q = of(c->sel.s_sq), a.sel.s_k = of(c->sel.s_sk);
    } else { /* the selecting head of each group */
      const int64_t share = c->H / a.G, kv = c->sel.head / (c->H / c->Hkv);
      typedef typename P::element element;
      a.sel.q = static_cast<const element *>(c->q) + c->sel.head * c->s_q.h;
      a.sel.k = static_cast<const element *>(c->k) + kv * c->s_k.h;
      a.sel.s_q = {c->s_q.b, c->s_q.t, share * c->s_q.h};
      a.sel.s_k = {c->s_k.b, c->s_k.t, c->s_k.h};
    }
    a.sel.strength = static_cast<const float *>(c->sel.strength);
    a.sel.f_in = static_cast<const float *>(c->sel.f_in), a.sel.f_stride = wn_selection_stride(c);
    a.sel.tau = (float)c->sel.mem_tau;
  }

  /* Sets the chunk's rows; window 0: chooses them. */
  void plan(const wn_attention *c, int64_t window) {
    arguments(c);
    if (window < 1) window = 4096;
    rows = (int)((window < c->Tq ? window : c->Tq) + P::TILE - 1) / P::TILE * P::TILE;
    if (!a.sel.on) rows = (a.Tq + P::TILE - 1) / P::TILE * P::TILE;
    windows = (a.Tq + rows - 1) / rows;
    a.key_tiles = (a.Tk + P::TILE - 1) / P::TILE;
    carry = (int64_t)a.B * a.G * a.key_tiles * P::TILE;
    by_keys = dim3((unsigned)a.key_tiles, (unsigned)a.Hkv, (unsigned)a.B);
    by_groups = dim3((unsigned)a.key_tiles, (unsigned)a.G, (unsigned)a.B);
  }

  int64_t block_count() const { return (int64_t)a.B * a.G * (rows / P::TILE) * a.key_tiles; }
  bool has_root() const { return T::ON && a.root.on && !a.at; }
  int sink_parts() const { return (int)(((int64_t)a.B * a.Tq * (a.H / a.Hkv) + SINK_ROWS - 1) / SINK_ROWS); }
  void lay_forward() {
    if (T::ON && a.root.on) a.root.seen = scratch.take<uint32_t>(a.Tk / 32 + 1);
    if (a.at) a.root.seen = nullptr;
    if (!a.sel.on) return;
    a.F = scratch.take<float>(block_count() * P::TILE * P::TILE);
    carries = scratch.take<float>(windows > 1 ? carry : 0);
  }
  void lay_backward(const wn_attention *c) {
    const int64_t by_row = (int64_t)a.B * a.H * a.Tq;
    a.delta = scratch.take<float>(by_row);
    if (T::ON && a.root.on) a.root.seen = scratch.take<uint32_t>(a.Tk / 32 + 1);
    if (T::ON && a.sinks.n > 0)
      a.sinks.parts = scratch.take<float>(2 * (int64_t)a.Hkv * a.sinks.n * a.D * sink_parts());
    if (T::ON && a.gate.on) a.gate.dg = static_cast<float *>(c->gate.dg);
    if (changes_output()) a.mixed = scratch.take<typename P::element>(by_row * a.D);
    if (a.sel.on) {
      a.F = scratch.take<float>(block_count() * P::TILE * P::TILE);
      a.X = scratch.take<typename P::block>(block_count() * P::BLOCK);
      carries = scratch.take<float>(windows > 1 ? windows * carry : 0);
      a.back = scratch.take<float>(carry);
      a.sel.dM = c->sel.mem ? static_cast<const float *>(c->sel.dM) : nullptr;
      if (c->sel.dstrength) a.sel.dstrength = scratch.take<float>((int64_t)a.B * a.G * a.key_tiles);
    }
    if (a.exclusive.on) {
      a.exclusive.own = scratch.take<float>((int64_t)a.B * a.Tq * a.Hkv * a.D);
      if (c->exclusive.gate && c->exclusive.dgate) a.exclusive.dgate = scratch.take<float>(by_row);
    }
    if (a.span.on && c->span.dz) a.span.dz = scratch.take<float>(by_row);
    if (windows > 1) a.sums = scratch.take<float>(2 * (int64_t)a.B * a.Tk * a.Hkv * a.D);
  }

  void window_at(int w) {
    a.row0 = w * rows, a.rows = a.Tq - a.row0 < rows ? a.Tq - a.row0 : rows;
    a.row_tiles = (a.rows + P::TILE - 1) / P::TILE;
    a.first_rows = w == 0, a.last_rows = w == windows - 1;
    by_rows = dim3((unsigned)a.row_tiles, (unsigned)a.H, (unsigned)a.B);
  }
  bool changes_output() const { return a.exclusive.on || (T::ON && a.gate.on); }
  void select(cudaStream_t stream) {
    WN_LAUNCH(by_groups, dim3(P::THREADS), select_room<P>::BYTES, stream, (attention_select<P, T>), a);
  }
  void find_root(cudaStream_t stream) {
    if constexpr (T::ON)
      if (has_root()) WN_LAUNCH(dim3((unsigned)(a.Tk / 8192 + 1)), dim3(256), 0, stream, attention_root, a);
  }

  const char *forward(const wn_attention *c, cudaStream_t stream) {
    if (failed(wn_shared_limit(attention_select<P, T>, select_room<P>::BYTES)) ||
        failed(wn_shared_limit(attention_forward<P, T>, forward_room<P>::BYTES)))
      return what;
    lay_forward();
    find_root(stream);
    a.sel.f_out = static_cast<float *>(c->sel.f_out);
    for (int w = 0; w < windows; w++) {
      window_at(w);
      if (a.sel.on) {
        a.carry_in = w > 0 ? carries : nullptr, a.carry_out = w < windows - 1 ? carries : nullptr;
        select(stream);
        a.sel.M = c->sel.mem ? static_cast<float *>(c->sel.M) : nullptr;
        if (a.sel.M)
          WN_LAUNCH(dim3((unsigned)(a.rows + 7) / 8, (unsigned)a.G, (unsigned)a.B), dim3(256), 0, stream,
                    (attention_memory<P>), a);
      }
      WN_LAUNCH(by_rows, dim3(P::THREADS), forward_room<P>::BYTES, stream, (attention_forward<P, T>), a);
    }
    failed(cudaGetLastError());
    return what;
  }

  const char *backward(const wn_attention *c, cudaStream_t stream) {
    [[maybe_unused]] constexpr int bilinear = dF_room<P>::ROWS * (int)sizeof(typename P::element) + P::WEIGHTS * 4;
    if (failed(wn_shared_limit(attention_select<P, T>, select_room<P>::BYTES)) ||
        failed(wn_shared_limit(attention_select_back<P, T>, select_room<P>::BYTES)) ||
        failed(wn_shared_limit(attention_dF<P, T>, dF_room<P>::BYTES)) ||
        failed(wn_shared_limit(attention_dq<P, T>, dq_dkv_room<P>::BYTES)) ||
        failed(wn_shared_limit(attention_dkv<P, T>, dq_dkv_room<P>::BYTES)))
      return what;
    if constexpr (IS_ROUNDED) {
      if (failed(wn_shared_limit(attention_row_sums<P, T>, dF_room<P>::BYTES))) return what;
    } else { /* bf16 rows with a bilinear selection are served by others (is_fused) */
      if (failed(wn_shared_limit(attention_dsq<P>, bilinear)) || failed(wn_shared_limit(attention_dsk<P>, bilinear)))
        return what;
    }
    lay_backward(c);
    find_root(stream);
    const void *given = a.dy;
    if (!IS_ROUNDED || changes_output())
      WN_LAUNCH(dim3((unsigned)(a.Tq + 7) / 8, (unsigned)a.Hkv, (unsigned)a.B), dim3(256), 0, stream,
                (attention_delta<P, T>), a, given);
    if (changes_output()) { /* dy is now the gradient of y before those changes */
      a.dy = a.mixed;
      a.s_dy = {(int64_t)a.Tq * a.H * a.D, (int64_t)a.H * a.D, a.D};
    }
    float *F = a.F;
    for (int w = 0; w < windows - 1; w++) { /* recomputes what earlier rows have selected */
      window_at(w);
      a.F = nullptr, a.carry_in = w > 0 ? carries + w * carry : nullptr, a.carry_out = carries + (w + 1) * carry;
      select(stream);
    }
    a.F = F, a.carry_out = nullptr;
    for (int w = windows - 1; w >= 0; w--) {
      window_at(w);
      if (a.sel.on) {
        a.carry_in = w > 0 ? carries + w * carry : nullptr;
        select(stream);
      }
      if constexpr (IS_ROUNDED)
        WN_LAUNCH(by_rows, dim3(P::THREADS), dF_room<P>::BYTES, stream, (attention_row_sums<P, T>), a);
      if (a.sel.on) {
        WN_LAUNCH(dim3((unsigned)a.key_tiles, (unsigned)a.row_tiles, (unsigned)(a.B * a.G)), dim3(P::THREADS),
                  dF_room<P>::BYTES, stream, (attention_dF<P, T>), a);
        WN_LAUNCH(by_groups, dim3(P::THREADS), select_room<P>::BYTES, stream, (attention_select_back<P, T>), a);
        if constexpr (!IS_ROUNDED) {
          if (c->sel.bilinear && c->dsq)
            WN_LAUNCH(dim3((unsigned)a.row_tiles, (unsigned)a.G, (unsigned)a.B), dim3(P::THREADS), bilinear, stream,
                      (attention_dsq<P>), a, c->dsq);
          if (c->sel.bilinear && c->dsk)
            WN_LAUNCH(by_groups, dim3(P::THREADS), bilinear, stream, (attention_dsk<P>), a, c->dsk);
        }
      }
      WN_LAUNCH(by_rows, dim3(P::THREADS), dq_dkv_room<P>::BYTES, stream, (attention_dq<P, T>), a);
      WN_LAUNCH(by_keys, dim3(P::THREADS), dq_dkv_room<P>::BYTES, stream, (attention_dkv<P, T>), a);
    }
    if constexpr (T::ON)
      if (c->sinks.n > 0 && (c->sinks.dk || c->sinks.dv)) sinks_back(c, stream);
    sums_by_head(c, stream);
    failed(cudaGetLastError());
    return what;
  }

  void sinks_back(const wn_attention *c, cudaStream_t stream) {
    const int parts = sink_parts(), count = a.Hkv * a.sinks.n * a.D;
    a.row0 = 0, a.rows = a.Tq;
    WN_LAUNCH(dim3((unsigned)parts, (unsigned)a.sinks.n, (unsigned)a.Hkv), dim3(128), 0, stream,
              (attention_sinks_back<P>), a);
    void *const to[2] = {c->sinks.dk, c->sinks.dv};
    for (int n = 0; n < 2; n++)
      if (to[n])
        WN_LAUNCH(dim3((unsigned)count), dim3(256), 0, stream, attention_reduce,
                  static_cast<const float *>(a.sinks.parts + (int64_t)n * count * parts), static_cast<float *>(to[n]),
                  (int64_t)1, 1, count, parts);
  }

  void sums_by_head(const wn_attention *c, cudaStream_t stream) {
    if (a.sel.dstrength)
      WN_LAUNCH(dim3((unsigned)a.G), dim3(256), 0, stream, attention_reduce, a.sel.dstrength,
                static_cast<float *>(c->sel.dstrength), 1, a.B, a.G, a.key_tiles);
    if (a.exclusive.dgate)
      WN_LAUNCH(dim3((unsigned)a.H), dim3(256), 0, stream, attention_reduce, a.exclusive.dgate,
                static_cast<float *>(c->exclusive.dgate), 1, a.B, a.H, a.Tq);
    if (!a.span.dz) return;
    float *to = static_cast<float *>(c->span.dz);
    if (a.span.dynamic)
      WN_LAUNCH(dim3((unsigned)(a.Tq + 255) / 256, (unsigned)a.H, (unsigned)a.B), dim3(256), 0, stream,
                attention_spread, a.span.dz, to, a.span.s_z, a.H, a.Tq);
    else
      WN_LAUNCH(dim3((unsigned)a.H), dim3(256), 0, stream, attention_reduce, a.span.dz, to, a.span.s_z.h, a.B, a.H,
                a.Tq);
  }

  const char *what = nullptr;
  bool failed(cudaError_t error) {
    if (error != cudaSuccess) what = cudaGetErrorString(error);
    return error != cudaSuccess;
  }
};

template <class P, class T>
outcome run_on(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream) {
  call<P, T> x;
  x.scratch = {static_cast<char *>(scratch), 0};
  x.plan(c, rows);
  if (what == FORWARD) return {0, x.forward(c, stream)};
  if (what == BACKWARD) return {0, x.backward(c, stream)};
  if (what == MEASURE_FORWARD)
    x.lay_forward();
  else
    x.lay_backward(c);
  return {x.scratch.used, nullptr};
}
template <template <int> class P, class T>
outcome run(pass what, const wn_attention *c, void *scratch, int64_t rows, cudaStream_t stream) {
  if (c->D <= 32) return run_on<P<32>, T>(what, c, scratch, rows, stream);
  if (c->D <= 64) return run_on<P<64>, T>(what, c, scratch, rows, stream);
  if (c->D <= 96) return run_on<P<96>, T>(what, c, scratch, rows, stream);
  return run_on<P<128>, T>(what, c, scratch, rows, stream);
}

} // namespace wn_cuda

#endif
